"""Tells each seat's kyb-init what the seat is doing, so that it can answer probes by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import shown
from kybernate.types import SeatState

if TYPE_CHECKING:
    from kybernate.ports import SeatDoors
    from kybernate.types import PodUid
    from nodeagent.seat.record import Seat

_PASSING_S = 0.05
"""Seconds after which a state is told that changes nothing before. A swap in RAM takes less, and
each word would have kyb-init, and a sidecar, run beside it."""
_PASSING = (SeatState.DRAINING, SeatState.PARKED, SeatState.WAKING, SeatState.ACTIVE)
"""Before these, and in them, probes are answered in the same way; or, as before ACTIVE, may be for
a moment longer."""


class Teller:
    """Implements `node.Observer`. Counters change often; a state is told only when it is new, and
    before anything is done about it, unless it is one of `_PASSING`."""

    def __init__(self, doors: SeatDoors) -> None:
        self._doors = doors
        self._told: dict[PodUid, tuple[str, str]] = {}
        self._later: dict[PodUid, asyncio.TimerHandle] = {}

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        if seat.uid in self._told and seat.state in _PASSING:
            if seat.uid not in self._later:
                loop = asyncio.get_running_loop()
                self._later[seat.uid] = loop.call_later(_PASSING_S, self._tell, seat)
            return
        self._forget_later(seat.uid)
        self._tell(seat)

    def _tell(self, seat: Seat) -> None:
        self._later.pop(seat.uid, None)
        now = (shown(seat.state), seat.why)
        if self._told.get(seat.uid) != now:
            self._told[seat.uid] = now
            self._doors.tell(seat.uid, *now)

    def _forget_later(self, uid: PodUid) -> None:
        later = self._later.pop(uid, None)
        if later is not None:
            later.cancel()

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._forget_later(seat.uid)
        self._told.pop(seat.uid, None)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Events are for people."""
