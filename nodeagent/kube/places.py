"""What the GPUNode says of where artifacts are: of parked seats, and of all that lie here."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from kybernate.api.gpunodes import MOST_SAVED, ArtifactRow
from kybernate.core.seat.seats import TIER_OF
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nodeagent.artifacts.holds import Custody
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat


def resting(seat: Seat) -> tuple[str | None, int | None]:
    """The tier of a parked seat, and the bytes of its artifact if it is offloaded."""
    tier = TIER_OF.get(seat.state)
    if tier is None or tier is Tier.RAM:
        return tier and tier.value, None
    return tier.value, seat.saved.size


class Places:
    """The artifacts that this node holds, or has put into the object store."""

    def __init__(self, node: Node, custody: Custody) -> None:
        self._node = node
        self._custody = custody

    def rows(self) -> list[ArtifactRow]:
        """Each with its pod and tier, the newest first, no more than MOST_SAVED."""
        found = {(artifact, tier): (uid, size) for artifact, uid, tier, size in self._all()}
        newest = nlargest(MOST_SAVED, found, key=lambda one: (one[0].rpartition("@")[2], *one))
        return [
            ArtifactRow(artifact, found[artifact, tier][0], tier, found[artifact, tier][1])
            for artifact, tier in newest
        ]

    def _all(self) -> Iterator[tuple[str, str, str, int]]:
        for one in self._custody.all():
            for hold in (one.successor, one.person):
                if hold is not None:
                    yield from _places(one.artifact, hold.uid, hold.places.items())
        for seat in self._node.seats.values():
            # What is borrowed is another pod's, and told of by who holds it for that one.
            if seat.saved.artifact and not seat.saved.borrowed:
                places = [(tier, seat.saved.size) for tier in seat.saved.copies]
                yield from _places(seat.saved.artifact, seat.uid, places)


def _places(
    artifact: str, uid: str, places: Iterable[tuple[str, int]]
) -> Iterator[tuple[str, str, str, int]]:
    for tier, size in places:
        if tier != Tier.RAM:
            yield artifact, uid, Tier(tier).value, size
