"""What namespaces used: seconds of active time and GiB-hours of parked memory.

A seat's use is a row of spans: active, or parked with so many bytes. Spans that are closed are
summed per namespace and journalled with those that are open, so that a restarted agent goes on
exactly: what a seat did meanwhile follows from its state and since when it has been in it.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kybernate.types import PodUid, SeatState
from nodeagent import metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.node import Node
    from nodeagent.seat import Seat

USAGE = "usage"
_GIB_HOUR = float((1 << 30) * 3600)
_ADVANCE = 5.0
"""Seconds between two advances of the counters."""


@dataclass(slots=True)
class Total:
    """Use of one namespace: seconds, byte-seconds."""

    active: float = 0.0
    parked: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """An open span of a seat, since wall-clock seconds `since`; `held` is None while active."""

    namespace: str
    since: float
    held: int | None

    def add_to(self, total: Total, until: float) -> None:
        """Add what was used until then."""
        seconds = max(0.0, until - self.since)
        if self.held is None:
            total.active += seconds
        else:
            total.parked += seconds * self.held


class Usage:
    """Implements `node.Observer`; advances the counters of `metrics`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._closed: dict[str, Total] = {}
        self._open: dict[PodUid, Span] = {}
        self._shown: dict[str, Total] = {}

    def resume(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on where the last agent was; seats that are gone since are closed now."""
        record = records.get(USAGE, {})
        self._closed = {name: Total(**one) for name, one in record.get("closed", {}).items()}
        self._open = {PodUid(uid): Span(**one) for uid, one in record.get("open", {}).items()}
        for uid in tuple(self._open):
            if uid not in self._node.seats:
                self._close(uid, self._node.world.wall())
        for seat in self._node.seats.values():
            self.seat_changed(seat)
        self.advance()

    async def run(self) -> None:
        """Advance the counters, for ever."""
        while True:
            await asyncio.sleep(_ADVANCE)
            self.advance()

    def totals(self) -> dict[str, Total]:
        """Use by namespace until now, open spans included."""
        now = self._node.world.wall()
        found = {name: Total(one.active, one.parked) for name, one in self._closed.items()}
        for span in self._open.values():
            span.add_to(found.setdefault(span.namespace, Total()), now)
        return found

    def advance(self) -> None:
        """Bring the counters up to now. They only grow: a clock set back stops them."""
        for name, total in self.totals().items():
            shown = self._shown.setdefault(name, Total())
            metrics.ACTIVE_SECONDS.labels(name).inc(max(0.0, total.active - shown.active))
            metrics.PARKED_GIB_HOURS.labels(name).inc(
                max(0.0, total.parked - shown.parked) / _GIB_HOUR
            )
            shown.active = max(shown.active, total.active)
            shown.parked = max(shown.parked, total.parked)

    # --- Observer -----------------------------------------------------------------------------

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        span, before = _span(seat), self._open.get(seat.uid)
        if span is not None and before is not None and span.held == before.held:
            return
        if span is None and before is None:
            return
        if before is not None:
            self._close(seat.uid, seat.since)
        if span is not None:
            self._open[seat.uid] = span
        self._save()

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        if seat.uid in self._open:
            self._close(seat.uid, seat.since)
            self._save()

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Use follows from states."""

    def _close(self, uid: PodUid, until: float) -> None:
        span = self._open.pop(uid)
        total = self._closed.setdefault(span.namespace, Total())
        span.add_to(total, until)
        if span.held is None:
            metrics.RESIDENCY_SECONDS.observe(max(0.0, until - span.since))

    def _save(self) -> None:
        record = {
            "closed": {name: asdict(one) for name, one in self._closed.items()},
            "open": {uid: asdict(span) for uid, span in self._open.items()},
        }
        self._node.world.journal.put(USAGE, record, synced=False)


def _span(seat: Seat) -> Span | None:
    namespace = seat.identity.pod.namespace
    if seat.state in (SeatState.ACTIVE, SeatState.DRAINING):
        return Span(namespace, seat.since, None)
    if seat.state is SeatState.PARKED:
        return Span(namespace, seat.since, sum(seat.held.values()))
    return None
