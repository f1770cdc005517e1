"""Saved states that people asked to be kept: nothing drops them but who deletes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kybernate.types import ArtifactId, PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping

    from kybernate.ports import Journal, Sealed

SAVED = "saved/"
"""Journal keys of saved states that are kept."""


@dataclass(frozen=True, slots=True)
class Keepsake:
    """One saved state that is kept: by which operation, of which pod, and its bytes by tier."""

    artifact: ArtifactId
    operation: str
    uid: PodUid
    places: Mapping[Tier, int]

    def record(self) -> dict[str, object]:
        """The journal's form."""
        places = {tier.value: size for tier, size in self.places.items()}
        return {
            "artifact": self.artifact,
            "operation": self.operation,
            "uid": self.uid,
            "places": places,
        }


class Kept:
    """All of them, as the journal has them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._all: dict[str, Keepsake] = {}

    def load(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """After a restart, before anything is dropped."""
        for key, record in records.items():
            if key.startswith(SAVED):
                places = {Tier(tier): int(size) for tier, size in record["places"].items()}
                artifact, uid = ArtifactId(record["artifact"]), PodUid(record["uid"])
                self._all[artifact] = Keepsake(artifact, record["operation"], uid, places)

    def __contains__(self, artifact: str) -> bool:
        return artifact in self._all

    def all(self) -> tuple[Keepsake, ...]:
        """All that is kept."""
        return tuple(self._all.values())

    def of(self, operation: str) -> Keepsake | None:
        """What this operation has kept."""
        return next((one for one in self._all.values() if one.operation == operation), None)

    def bytes_in(self, tier: Tier) -> int:
        """What all of them take there."""
        return sum(one.places.get(tier, 0) for one in self._all.values())

    def put(self, one: Keepsake) -> Awaitable[None]:
        """It is kept from now on; await it, and it is over a restart, too. Raises OSError: then
        put it again."""
        self._all[one.artifact] = one
        return self._journal.put(SAVED + one.artifact, one.record(), synced=True)

    def forget(self, artifact: str) -> None:
        """It was deleted."""
        self._all.pop(artifact, None)
        self._journal.delete(SAVED + artifact)

    def seen(self, tier: Tier, listed: Iterable[Sealed]) -> None:
        """What is in the tier: people may have deleted some."""
        there = {found.id for found in listed}
        for one in tuple(self._all.values()):
            if tier in one.places and one.artifact not in there:
                left = {place: size for place, size in one.places.items() if place is not tier}
                if left:
                    self.put(replace(one, places=left))
                else:
                    self.forget(one.artifact)
