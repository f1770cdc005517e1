"""A registry over a SQLite file, called without a socket, by whoever a test says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.registry.replica import Clock, Replica, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A commit waits for no disk there."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for files of SQLite."""
    with tempfile.TemporaryDirectory(prefix="kyb-registry-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def replica(memory: Path, clock: Clock) -> Iterator[Replica]:
    """A registry over a new database, of which an operator has said that nothing was before."""
    made = Replica(url_of(memory), clock)
    assert made.controller("POST", "/v1/settle", {"why": "new"}).status == 200
    yield made
    made.close()
