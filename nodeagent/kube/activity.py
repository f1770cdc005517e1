"""When each seat is used, learned from the demand for it and published with the GPUNode.

A seat's profile outlives the agent (journal) and the pod: the next pod of the same model on this
node continues with it. What is published is renewed every few minutes only, so that the status
changes no more often than it does already.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kybernate.core.swap.activity import Recorder
from kybernate.lib.rounds import rounds
from kybernate.types import PodUid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

SEEN = "activity/"
GONE = "activity-of/"
_GONE_KEPT = 64


class Activity:
    """Implements `node.Observer` and `node.DemandListener`; writes `Node.activity`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._recorders: dict[PodUid, Recorder] = {}
        self._gone: dict[str, Recorder] = {}

    def resume(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue where the last agent was; of a seat that is gone since, the model is not
        known."""
        for key, record in records.items():
            if key.startswith(GONE):
                self._take_up(self._gone, key.removeprefix(GONE), record)
            elif key.startswith(SEEN):
                self._take_up(self._recorders, PodUid(key.removeprefix(SEEN)), record)
        for uid in [uid for uid in self._recorders if uid not in self._node.seats]:
            del self._recorders[uid]
            self._node.world.journal.delete(SEEN + uid)
        for seat in self._node.seats.values():
            self.seat_changed(seat)
        self._show()

    async def run(self) -> None:
        """Publish and journal, for ever."""
        await rounds(self.renew, self._node.settings.activity_interval_s, "seats' activity")

    def renew(self) -> None:
        """Count up to now; publish and journal what is known."""
        now = self._node.world.wall()
        for uid, recorder in self._recorders.items():
            recorder.advance(now)
            self._node.world.journal.put(SEEN + uid, recorder.record(), synced=False)
        self._show()

    def demand_changed(self, seat: Seat) -> None:
        """See `node.DemandListener`."""
        recorder = self._recorders.get(seat.uid)
        if recorder is not None:
            wanted = seat.demand.in_flight + seat.demand.waiting > 0
            recorder.note(self._node.world.wall(), serving=seat.demand.in_flight > 0, wanted=wanted)

    # --- Observer -----------------------------------------------------------------------------

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        if seat.uid not in self._recorders:
            self._recorders[seat.uid] = self._begun(seat)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        recorder = self._recorders.pop(seat.uid, None)
        self._node.use_seen(seat.uid, None)
        if recorder is None:
            return
        recorder.advance(self._node.world.wall())
        journal, key = self._node.world.journal, _model_of(seat)
        self._gone.pop(key, None)
        self._gone[key] = recorder
        journal.put(GONE + key, recorder.record(), synced=False)
        journal.delete(SEEN + seat.uid)
        while len(self._gone) > _GONE_KEPT:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            journal.delete(GONE + oldest)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Activity follows from demand."""

    def _begun(self, seat: Seat) -> Recorder:
        now, before = self._node.world.wall(), self._gone.get(_model_of(seat))
        return Recorder.from_record(before.record(), now) if before else Recorder(now)

    def _take_up(self, into: dict[Any, Recorder], key: str, record: Mapping[str, Any]) -> None:
        try:
            into[key] = Recorder.from_record(record, self._node.world.wall())
        except (KeyError, TypeError, ValueError) as error:
            log.warning("what was learned of the use of %s is forgotten: %r", key, error)

    def _show(self) -> None:
        for uid, recorder in self._recorders.items():
            self._node.use_seen(uid, _published(recorder))


def _model_of(seat: Seat) -> str:
    return f"{seat.identity.pod.namespace}/{seat.identity.model}"


def _published(recorder: Recorder) -> dict[str, Any]:
    """As in the GPUNode's status: shares in thousandths, -1 for what is not known."""
    busy, calls = recorder.profile()
    return {
        "busy": [round(1000 * share) if share >= 0 else -1 for share in busy],
        "calls": [_short(rate) if rate >= 0 else -1 for rate in calls],
        "recentBusy": round(100 * recorder.recent_busy) * 10,
        "recentCalls": _short(recorder.recent_calls),
    }


def _short(rate: float) -> float:
    """Two digits: no status is worth writing for less."""
    return float(f"{rate:.2g}") if rate >= 0.1 else 0.0
