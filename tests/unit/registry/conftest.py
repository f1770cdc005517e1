"""A registry over a SQLite file, called without a socket, by whoever a test says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.registry.replica import Clock, Replica, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def replica(tmp_path: Path, clock: Clock) -> Iterator[Replica]:
    """A registry over a new database, of which an operator has said that nothing was before."""
    made = Replica(url_of(tmp_path), clock)
    assert made.controller("POST", "/v1/settle", {"why": "new"}).status == 200
    yield made
    made.close()
