"""Who of those that wait for the same thing is served next, and who goes where there is no room.

Clients take turns, however many requests each has waiting: between two that are served of one
client, every other that waits is served one. Of one client's requests the one of the highest
priority comes first, then the oldest. So a priority moves nobody but its own client's requests, and
a client that waits is served after at most as many as there are clients. Pure.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Place:
    """One that waits since `came`, until `until` at most (seconds of the owner's clock)."""

    ticket: int
    client: str
    came: float
    until: float
    priority: int = 0
    trace: str = ""
    """Its `traceparent`, where it is traced."""


@dataclass(slots=True)
class FairQueue:
    """Places by client; the client whose turn is next comes first."""

    _by: dict[str, dict[int, Place]] = field(default_factory=dict)
    _count: int = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def __iter__(self) -> Iterator[Place]:
        """All that wait, client by client."""
        return (place for places in self._by.values() for place in places.values())

    @property
    def oldest(self) -> Place | None:
        """The one that waits longest; None if nobody waits."""
        return min(self, key=lambda place: place.came, default=None)

    def add(self, place: Place) -> None:
        """One more waits. A client that had none waiting comes after all others."""
        self._by.setdefault(place.client, {})[place.ticket] = place
        self._count += 1

    def take(self) -> Place:
        """Who is served next, and waits no more. Raises LookupError if nobody waits."""
        if not self._count:
            raise LookupError("nobody waits")
        client, places = next(iter(self._by.items()))
        # The first of the highest priority: a dict keeps the order in which they came.
        place = max(places.values(), key=lambda one: one.priority)
        del self._by[client]
        del places[place.ticket]
        self._count -= 1
        if places:
            self._by[client] = places
        return place

    def remove(self, ticket: int, client: str) -> Place:
        """This one waits no more. Raises KeyError if it doesn't wait."""
        places = self._by[client]
        place = places.pop(ticket)
        self._count -= 1
        if not places:
            del self._by[client]
        return place

    def late(self, now: float) -> list[Place]:
        """Those that have waited as long as they may."""
        return [place for place in self if place.until <= now]

    def goes_for(self, client: str) -> Place | None:
        """Who has to go where there is no room for one more of this client: the last in the line of
        the client that has the most. None: the newcomer itself, as its client would have the most.
        """
        most = max(self._by.values(), key=len, default={})
        if len(most) <= len(self._by.get(client, ())) + 1:
            return None
        lowest = min(place.priority for place in most.values())
        return [place for place in most.values() if place.priority == lowest][-1]
