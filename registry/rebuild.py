"""The database again, from the manifests in the places alone.

Each batch is committed, and what is there already isn't read again: a rebuild that was cut short
continues where it was, and one of a database that lost nothing changes nothing. What no manifest
says is made safe rather than guessed: pods that the database didn't know begin unsettled, so that
nobody gets a claim on them before claims of before were told again; old tokens are none of this
database's, and new ones are greater; and no copy is dropped on account of one that nobody has
reported verified since.
"""

from __future__ import annotations

import time
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import select

from kybernate.adapters.registry.describe import describe
from kybernate.adapters.registry.wire import CopyState
from kybernate.dataclass import dataclass
from kybernate.errors import RefusedError
from registry.artifacts import NOT_TOLD, copy_row, row
from registry.database import insert_new
from registry.pods import add
from registry.schema import ARTIFACTS, COPIES, LONG_AGO, WRITERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection

    from kybernate.adapters.registry.wire import Described, Spot
    from kybernate.core.artifacts.manifest import Manifest
    from registry.database import Database

BATCH = 500
"""Artifacts that are committed together."""


class Found(Protocol):
    """What a place has of an artifact, as `kybernate.checkpoint.catalogue` finds it."""

    @property
    def id(self) -> str:
        """Its ID."""
        ...

    @property
    def manifest(self) -> Manifest | None:
        """Its manifest, if that is believed."""
        ...

    @property
    def problem(self) -> str:
        """Why it isn't."""
        ...


class Catalogue(Protocol):
    """Reads the manifests of a place; those that `skip` says are left out."""

    def __call__(self, skip: Callable[[str], bool]) -> Iterable[Found]:
        """Go through them."""
        ...


@dataclass(slots=True)
class Outcome:
    """What a rebuild from one place did. `there` were known before; `problems` are sentences."""

    new: int = 0
    there: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Artifacts read and stored in a second."""
        return self.new / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class _One:
    """An artifact that was read; `node` has signed it, empty if a shared key did."""

    id: str
    said: Described
    stored: int
    node: str


def rebuild(
    database: Database,
    spot: Spot,
    catalogue: Catalogue,
    say: Callable[[Outcome], None] = lambda _outcome: None,
) -> Outcome:
    """Take in what a place has; `say` hears of each batch. Raises RetryableError, OSError."""
    began, outcome = time.monotonic(), Outcome()
    known = _known(database, spot)

    def skip(artifact: str) -> bool:
        there = artifact in known
        outcome.there += there
        return there

    batch: list[_One] = []
    for found in catalogue(skip):
        _take(found, batch, outcome)
        if len(batch) == BATCH:
            _store(database, spot, batch, outcome)
            outcome.seconds = time.monotonic() - began
            say(outcome)
            batch = []
    _store(database, spot, batch, outcome)
    outcome.seconds = time.monotonic() - began
    return outcome


def _known(database: Database, spot: Spot) -> frozenset[str]:
    here = (
        COPIES.c.place == str(spot.place),
        COPIES.c.node == spot.node,
        COPIES.c.store == spot.store,
    )
    with database.read() as connection:
        return frozenset(connection.execute(select(COPIES.c.artifact).where(*here)).scalars())


def _take(found: Found, batch: list[_One], outcome: Outcome) -> None:
    if found.manifest is None:
        outcome.problems.append(found.problem)
        return
    try:
        manifest = found.manifest
        batch.append(_One(found.id, describe(manifest), manifest.stored, manifest.node))
    except RefusedError as error:
        outcome.problems.append(str(error))


def _store(database: Database, spot: Spot, batch: Sequence[_One], outcome: Outcome) -> None:
    if not batch:
        return
    with database.write() as connection:
        now = database.now(connection)
        insert_new(connection, ARTIFACTS, [row(one.id, one.said, now) for one in batch])
        true = _same(connection, batch, outcome)
        if true:
            copies = [
                copy_row(
                    one.id,
                    spot,
                    (str(CopyState.VERIFIED), one.stored),
                    (one.said.created_ms, NOT_TOLD),
                )
                for one in true
            ]
            insert_new(connection, COPIES, copies)
            # By the manifests alone: what a rebuild can't know, docs/reference/threat-model.md
            # says.
            signed = [
                {"artifact": one.id, "node": one.node, "token": 0, "told_ms": LONG_AGO}
                for one in true
                if one.node
            ]
            if signed:
                insert_new(connection, WRITERS, signed)
            pods = {(one.id.partition("/")[0], one.said.pod_uid) for one in true}
            add(connection, sorted(pods), settled=False)
    outcome.new += len(true)


def _same(connection: Connection, batch: Sequence[_One], outcome: Outcome) -> list[_One]:
    """Those whose artifact is the one that is recorded under their ID."""
    ids = [one.id for one in batch]
    query = select(ARTIFACTS.c.id, ARTIFACTS.c.digest).where(ARTIFACTS.c.id.in_(ids))
    digests = {one.id: one.digest for one in connection.execute(query)}
    true = [one for one in batch if digests[one.id] == one.said.digest]
    outcome.problems += [
        f"{one.id}: another artifact of this name is recorded, with digest {digests[one.id]}"
        for one in batch
        if one not in true
    ]
    return true
