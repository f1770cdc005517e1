"""Tells each seat's kyb-init what the seat is doing, so that it can answer probes by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.seat.seats import shown

if TYPE_CHECKING:
    from kybernate.ports import SeatDoors
    from kybernate.types import PodUid
    from nodeagent.seat.record import Seat


class Teller:
    """Implements `node.Observer`. Counters change often; a state is told only when it is new."""

    def __init__(self, doors: SeatDoors) -> None:
        self._doors = doors
        self._told: dict[PodUid, tuple[str, str]] = {}

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        now = (shown(seat.state), seat.why)
        if self._told.get(seat.uid) != now:
            self._told[seat.uid] = now
            self._doors.tell(seat.uid, *now)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._told.pop(seat.uid, None)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Events are for people."""
