"""What the unit tests ask of SQLite, asked of PostgreSQL; and what only several replicas show."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import inspect

from registry.database import Database
from registry.schema import METADATA
from tests.unit.registry import test_artifacts, test_kept, test_pods
from tests.unit.registry.lineages import Lineages
from tests.unit.registry.replica import Replica, name_of
from tests.unit.registry.test_artifacts import *  # noqa: F403
from tests.unit.registry.test_lineages import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

token = test_artifacts.token
stopped = test_pods.stopped
written = test_kept.written
for _tests in (test_pods, test_kept):
    for _name in dir(_tests):
        if _name.startswith("test_"):
            globals()[_name] = getattr(_tests, _name)


def test_several_that_start_at_once_make_one_schema(database: str) -> None:
    every = [Database(database) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(Database.prepare, every)) == [0, 0, 0, 1]
    with every[0].read() as connection:
        found = inspect(connection)
        for table in METADATA.sorted_tables:
            columns = {one["name"]: one["nullable"] for one in found.get_columns(table.name)}
            assert columns == {one.name: one.nullable for one in table.columns}
    for one in every:
        one.close()


def test_one_of_many_at_once_gets_the_claim(replica: Replica, database: str) -> None:
    one = name_of(1)
    replica.record("n1", one, replica.token("n1", "u1"))
    replica.stop("n1", "u1")
    every = [Replica(database) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        tries = [
            pool.submit(each.claim, "n2", "u1", one, f"heir{number}")
            for number, each in enumerate(every)
        ]
        statuses = sorted(each.result().status for each in tries)
    assert statuses == [200, *[409] * 7]
    for each in every:
        each.close()


def test_one_of_many_at_once_drops_a_copy_and_the_last_stays(
    replica: Replica, database: str
) -> None:
    one, nodes = name_of(1), [f"n{number}" for number in range(1, 7)]
    replica.record("n1", one, replica.token("n1", "u1"))
    for node in nodes[1:]:
        replica.report(node, one, "verified")
    every = [Replica(database) for _ in nodes]
    with ThreadPoolExecutor(len(nodes)) as pool:
        found = list(
            pool.map(lambda pair: pair[0].drop(pair[1], one), zip(every, nodes, strict=True))
        )
    assert sorted(each.status for each in found) == [*[200] * 5, 409]
    for each in every:
        each.close()


def test_tokens_grow_whoever_gives_them(replica: Replica, database: str) -> None:
    other = Replica(database)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(
            lambda number: (replica, other)[number % 2].lease("n1", "u1").body["token"], range(40)
        )
        tokens = list(found)
    assert len(set(tokens)) == 40
    other.close()


@pytest.fixture
def machine(database: str) -> Iterator[type[Lineages]]:
    """Each example begins with empty tables."""

    class OverPostgresql(Lineages):
        def url(self) -> str:
            return database

        def finish(self) -> None:
            cleaner = Database(database)
            with cleaner.write() as connection:
                for table in reversed(METADATA.sorted_tables):
                    if table.name != "marks":
                        connection.execute(table.delete())
            cleaner.close()

    logging.disable(logging.CRITICAL)
    yield OverPostgresql
    logging.disable(logging.NOTSET)


def test_one_writer_and_one_successor_whatever_comes(machine: type[Lineages]) -> None:
    examples = max(1, EXAMPLES // 2)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=12)
    )
