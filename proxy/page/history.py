"""Since when each seat is in its state, and who was in GPU memory before. Pure."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import OCCUPYING, shown
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from kybernate.types import PodUid
    from proxy.actions import SeatInfo

KEPT_S = 600.0
MOST = 4000
"""Spans that are kept, of all seats."""


@dataclass(frozen=True, slots=True)
class Span:
    """A seat was in this state, and so in GPU memory, from `begin` to `end` (s, as `now`)."""

    number: int
    seat: SeatInfo
    state: str
    begin: float
    end: float


class History:
    """Told of each seat as it changes; it remembers KEPT_S seconds, or MOST spans."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the newest span."""
        self._spans: deque[Span] = deque()
        self._now: dict[PodUid, tuple[SeatInfo, float]] = {}

    def seat(self, info: SeatInfo, now: float) -> None:
        """The seat exists, or changed."""
        old = self._now.get(info.uid)
        if old is not None and old[0].state is info.state:
            self._now[info.uid] = info, old[1]
            return
        self.gone(info.uid, now)
        self._now[info.uid] = info, now

    def gone(self, uid: PodUid, now: float) -> None:
        """The seat is no more."""
        info, begin = self._now.pop(uid, (None, now))
        if info is not None and info.state in OCCUPYING:
            self.last += 1
            self._spans.append(Span(self.last, info, shown(info.state), begin, now))
        while self._spans and (len(self._spans) > MOST or self._spans[0].end < now - KEPT_S):
            self._spans.popleft()

    def only(self, uids: Set[PodUid], now: float) -> None:
        """There are these seats: others have gone without a word."""
        for uid in self._now.keys() - uids:
            self.gone(uid, now)

    def since(self, uid: PodUid) -> float | None:
        """Since when the seat is in its state; None if nobody told of it."""
        found = self._now.get(uid)
        return found[1] if found else None

    def spans(self, after: int = 0) -> Iterator[Span]:
        """Those with a higher number, in order."""
        oldest = self._spans[0].number if self._spans else 0
        return islice(self._spans, max(0, after + 1 - oldest), None)
