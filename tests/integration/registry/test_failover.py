"""A replica of PostgreSQL that is promoted lacks what it had not received: claims, perhaps."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from kybernate.errors import KybernateError, RetryableError
from registry.database import Database
from registry.pods import Pods
from tests.kit.servers import postgresql as servers
from tests.unit.registry.replica import Replica, name_of, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kit.servers.postgresql import Postgresql
    from tests.unit.registry.replica import Answer

pytestmark = pytest.mark.integration

STATE = name_of(0, "u1")


@pytest.fixture
def server() -> Iterator[Postgresql]:
    """One of its own: it is promoted."""
    started = servers.running()
    try:
        made = started.__enter__()
    except KybernateError as error:
        pytest.skip(f"no PostgreSQL here: {error}")
    yield made
    started.__exit__(None, None, None)


@pytest.fixture
def registry(server: Postgresql) -> Iterator[Replica]:
    """It knows pod u1, whose state can be claimed."""
    made = Replica(server.dsn)
    assert made.controller("POST", "/v1/settle", {"why": "new"}).status == 200
    token = made.token("n1", "u1")
    assert made.record("n1", STATE, token, pod_uid="u1").status == 201
    assert made.stop("n1", "u1").status == 200
    yield made
    made.close()


def lag(server: Postgresql) -> None:
    """From now on the replica receives nothing."""
    server.stop()
    shutil.copytree(server._data, server._data.with_name("lagging"))
    for path in (server._data.with_name("lagging"), *server._data.with_name("lagging").rglob("*")):
        servers._give(path)
    server.start()


def promote(server: Postgresql) -> None:
    """The primary is lost, and the replica takes its place."""
    server.stop()
    shutil.rmtree(server._data)
    server._data.with_name("lagging").rename(server._data)
    (server._data / "standby.signal").touch()
    server.start()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        assert connection.execute("SELECT pg_promote()").fetchone() == (True,)


def answered(call: Callable[[], Answer]) -> Answer:
    """What is said once the database is there again."""
    until = time.monotonic() + 30
    while (found := call()).status == 503 and time.monotonic() < until:
        time.sleep(0.1)
    return found


def test_a_claim_that_failover_lost_is_granted_to_nobody_else(
    server: Postgresql, registry: Replica
) -> None:
    lag(server)
    assert answered(lambda: registry.claim("n2", "u1", STATE, "u2")).status == 200
    promote(server)
    taken = answered(lambda: registry.claim("n1", "u1", STATE, "u3"))
    assert (taken.status, "lost its database" in taken.error) == (409, True)
    assert registry.claim("n2", "u1", STATE, "u2", again=True).status == 200
    assert registry.claim("n1", "u1", STATE, "u3").status == 409


def test_after_a_failover_claims_are_granted_again_once_it_is_settled(
    server: Postgresql, registry: Replica
) -> None:
    lag(server)
    promote(server)
    assert answered(lambda: registry.claim("n1", "u1", STATE, "u3")).status == 409
    settled = registry.controller("POST", "/v1/settle", {"why": "I looked at the pods"})
    assert settled.status == 200
    other = Replica(server.dsn)
    assert other.claim("n1", "u1", STATE, "u3").status == 200
    other.close()


def test_more_pods_than_the_limit_of_a_statement_is_long_enough_for_can_be_unsettled_and_settled(
    server: Postgresql, registry: Replica
) -> None:
    """One row takes as long as very many: else the first write would fail again and again."""
    registry.pods.lease(("ns", "slow"), "n1", 60.0)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(1); RETURN NEW; END'"
        )
        connection.execute(
            "CREATE TRIGGER wait BEFORE UPDATE ON pods FOR EACH ROW "
            "WHEN (OLD.uid = 'slow') EXECUTE FUNCTION wait()"
        )
        connection.execute("UPDATE marks SET value = '00000000' WHERE name = 'timeline'")
    database = Database(server.dsn, limit_s=0.3)
    try:
        pods = Pods(database, 600.0)
        pods.lease(("ns", "u2"), "n1", 60.0)
        assert not pods.get(("ns", "slow")).settled
        assert pods.settle_all() == 3
        assert pods.unsettle_all() == 3
        with pytest.raises(RetryableError, match="statement timeout"):
            pods.stop(("ns", "slow"), "exited", "n1", "it ended")
    finally:
        database.close()


def test_a_restart_is_no_failover(server: Postgresql, registry: Replica) -> None:
    server.stop()
    server.start()
    assert answered(lambda: registry.claim("n1", "u1", STATE, "u3")).status == 200


def test_a_standby_is_not_used(server: Postgresql, registry: Replica) -> None:
    server.stop()
    (server._data / "standby.signal").touch()
    server.start()
    found = registry.controller("GET", pod("u1"))
    while found.status != 503 or "standby" not in found.error:
        assert found.status == 503, found
        found = registry.controller("GET", pod("u1"))
    with pytest.raises(RetryableError, match="is a standby"):
        Database(server.dsn).prepare()
