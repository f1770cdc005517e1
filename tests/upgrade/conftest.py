"""One cluster that begins as the older release, and the table at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kybernate.errors import KybernateError
from tests.upgrade.fleet import Fleet, fleet
from tests.upgrade.table import Table
from tests.upgrade.versions import PAIRS
from tests.upgrade.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Table()


@pytest.fixture(scope="session", params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Two releases that may stand side by side, the older one first."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="session")
def older(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The cluster as the older release has it."""
    release, _ = pair
    try:
        with fleet(release, tmp_path_factory.mktemp("fleet")) as made:
            yield made
    except KybernateError as error:
        pytest.fail(f"no cluster of release {release}: {error}")


@pytest.fixture
def walk(older: Fleet, pair: tuple[str, str]) -> Iterator[Walk]:
    """Everything of the older release, a seat in each tier, and callers at work."""
    older.put_all(pair[0])
    made = Walk(older, *pair, TABLE)
    made.open()
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was replaced, by tier."""
    if TABLE.rows:
        for line in (*TABLE.lines(), TABLE.line()):
            terminalreporter.write_line(line)
