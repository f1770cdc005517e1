"""What namespaces used: seconds of active time and of GPUs, GiB-hours of parked memory, wakes.

Each seat has a meter: what it has used, and since when it uses what it uses now. Meters are
journalled at each change of state, so that a restarted agent continues exactly: what a seat did
meanwhile follows from its state and since when it has been in it. The meter of a seat that is
gone is added to its namespace's.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from kybernate.dataclass import dataclass
from kybernate.types import PodUid, SeatState, of_record
from nodeagent import metrics
from nodeagent.seat.node import IN_RAM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

METER = "usage/"
GONE = "usage-of/"
_GIB_HOUR = float((1 << 30) * 3600)
_ADVANCE = 5.0
"""Seconds between two advances of the counters."""


@dataclass(slots=True)
class Total:
    """Use of one namespace: seconds, byte-seconds, seconds times GPUs, and wakes. `last`: whose
    meter was added last."""

    active: float = 0.0
    parked: float = 0.0
    last: str = ""
    gpu: float = 0.0
    wakes: int = 0

    def add(self, meter: Meter, now: float) -> None:
        """What one seat has used up to now."""
        active, parked = meter.until(now)
        self.active, self.parked = self.active + active, self.parked + parked
        self.gpu, self.wakes = self.gpu + active * meter.width, self.wakes + meter.wakes


@dataclass(slots=True)
class Meter:
    """Use of one seat: seconds, byte-seconds, and since wall-clock seconds `since` what it uses
    now: `held` bytes in RAM, None for being active. `since` 0 is: nothing. `width`: how many GPUs
    it has while it is active; `wakes`: how often it woke."""

    namespace: str
    active: float = 0.0
    parked: float = 0.0
    since: float = 0.0
    held: int | None = None
    width: int = 1
    wakes: int = 0

    def until(self, now: float) -> tuple[float, float]:
        """Seconds and byte-seconds up to now."""
        seconds = max(0.0, now - self.since) if self.since else 0.0
        if self.held is None:
            return self.active + seconds, self.parked
        return self.active, self.parked + seconds * self.held

    def turn(self, now: float, since: float, held: int | None) -> None:
        """What it used ends now; from `since` on it uses something else."""
        self.active, self.parked = self.until(now)
        if self.since and self.held is None:
            metrics.RESIDENCY_SECONDS.observe(max(0.0, now - self.since))
        self.since, self.held = since, held

    def record(self) -> dict[str, object]:
        """The journal's form."""
        return {
            "namespace": self.namespace,
            "active": self.active,
            "parked": self.parked,
            "since": self.since,
            "held": self.held,
            "width": self.width,
            "wakes": self.wakes,
        }


class Usage:
    """Implements `node.Observer`; advances the counters of `metrics`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._gone: dict[str, Total] = {}
        self._meters: dict[PodUid, Meter] = {}
        self._shown: dict[str, Total] = {}
        self._turns: dict[str, float] = {}  # by seat, and by cause

    def resume(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue where the last agent was; seats that are gone since end now."""
        for key, record in records.items():
            if key.startswith(METER):
                self._meters[PodUid(key.removeprefix(METER))] = of_record(Meter, record)
            elif key.startswith(GONE):
                self._gone[key.removeprefix(GONE)] = of_record(Total, record)
        now = self._node.world.wall()
        for uid, meter in tuple(self._meters.items()):
            if uid in self._node.seats:
                # An older release noted no GPUs.
                meter.width = len(self._node.seats[uid].identity.gpus)
            if uid not in self._node.seats:
                self._end(uid, now)
        for seat in self._node.seats.values():
            self.seat_changed(seat)
        self.advance()

    async def run(self) -> None:
        """Advance the counters, for ever."""
        while True:
            await asyncio.sleep(_ADVANCE)
            self.advance()

    def totals(self) -> dict[str, Total]:
        """Use by namespace until now."""
        now = self._node.world.wall()
        found = {name: replace(one) for name, one in self._gone.items()}
        for meter in self._meters.values():
            found.setdefault(meter.namespace, Total()).add(meter, now)
        return found

    def advance(self) -> None:
        """Bring the counters up to now. They only grow: a clock set back stops them."""
        for name, total in self.totals().items():
            shown = self._shown.setdefault(name, Total())
            metrics.ACTIVE_SECONDS.labels(name).inc(max(0.0, total.active - shown.active))
            metrics.PARKED_GIB_HOURS.labels(name).inc(
                max(0.0, total.parked - shown.parked) / _GIB_HOUR
            )
            metrics.GPU_SECONDS.labels(name).inc(max(0.0, total.gpu - shown.gpu))
            metrics.NAMESPACE_WAKES.labels(name).inc(max(0, total.wakes - shown.wakes))
            shown.active = max(shown.active, total.active)
            shown.parked = max(shown.parked, total.parked)
            shown.gpu, shown.wakes = max(shown.gpu, total.gpu), max(shown.wakes, total.wakes)
        self._show_turns()

    def _show_turns(self) -> None:
        book, before = self._node.turns, self._turns
        book.count(self._node.world.now())
        for uid, seconds in book.held.items():
            if uid in self._node.seats:
                one = self._node.seats[uid].identity
                more = seconds - before.get(uid, 0.0)
                metrics.TURN_SECONDS.labels(one.pod.namespace, one.name).inc(max(0.0, more))
        for cause, seconds in (("turn", book.swapping), ("request", book.serving)):
            more = seconds - before.get(cause, 0.0)
            metrics.TURN_SWAP_SECONDS.labels(cause).inc(max(0.0, more))
        self._turns = {
            **{str(uid): held for uid, held in book.held.items()},
            "turn": book.swapping,
            "request": book.serving,
        }
        metrics.TURN_SWAP_SHARE.set(book.swap_share())

    # --- Observer -----------------------------------------------------------------------------

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        uses, held = _uses(seat)
        meter = self._meters.get(seat.uid)
        if meter is None:
            if not uses:
                return
            one = seat.identity
            meter = self._meters[seat.uid] = Meter(one.pod.namespace, width=len(one.gpus))
        meter.wakes = seat.history.wakes
        if bool(meter.since) == uses and meter.held == held:
            return
        meter.turn(seat.history.since, seat.history.since if uses else 0.0, held)
        journal = self._node.world.journal
        journal.put(METER + seat.uid, meter.record(), synced=False, late=True)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        if seat.uid in self._meters:
            self._end(seat.uid, seat.history.since)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Use follows from states."""

    def _end(self, uid: PodUid, now: float) -> None:
        meter, journal = self._meters.pop(uid), self._node.world.journal
        total = self._gone.setdefault(meter.namespace, Total())
        if total.last != uid:  # else the last agent was killed between the two writes
            meter.turn(now, 0.0, None)
            total.add(meter, now)
            total.last = uid
            journal.put(GONE + meter.namespace, asdict(total), synced=False)
        journal.delete(METER + uid)


def _uses(seat: Seat) -> tuple[bool, int | None]:
    """Whether it uses anything now, and the bytes if it is parked."""
    if seat.state in IN_RAM:
        return True, sum(seat.tree.held.values())
    return seat.state in (SeatState.ACTIVE, SeatState.DRAINING), None
