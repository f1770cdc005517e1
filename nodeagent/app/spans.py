"""What a seat goes through as spans of OpenTelemetry: `drain`, `park`, `wake`, `dump`, `restore`.

A wake belongs to the trace of the request that has waited longest for the seat, and what its GPUs'
other seats do meanwhile to the same one. What nobody traced asked for begins a trace of its own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opentelemetry.trace import StatusCode

from kybernate.adapters.spans import CONTEXTS, Sender
from kybernate.dataclass import dataclass
from kybernate.types import SeatState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.types import PodUid
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

_STAGES = {
    SeatState.DRAINING: ("drain", frozenset({SeatState.PARKING, SeatState.ACTIVE})),
    SeatState.PARKING: ("park", frozenset({SeatState.PARKED})),
    SeatState.WAKING: ("wake", frozenset({SeatState.ACTIVE})),
    SeatState.DUMPING: ("dump", frozenset({SeatState.PARKED_NVME})),
    SeatState.RESTORING: ("restore", frozenset({SeatState.PARKED})),
}
"""Names of spans, and the states that they end in if nothing failed."""


@dataclass(frozen=True, slots=True)
class _Begun:
    state: SeatState
    at: int
    trace: str
    phases: Mapping[str, float]


class Spans:
    """Implements `node.Observer`."""

    def __init__(self, node: Node, where: str) -> None:
        """`where`: the node's name."""
        self._node, self._where = node, where
        self._sender = Sender("kyb-agent")
        self._begun: dict[PodUid, _Begun] = {}

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        begun = self._begun.get(seat.uid)
        if begun is not None and begun.state is seat.state:
            return
        if begun is not None:
            del self._begun[seat.uid]
            self._send(seat, begun)
        if seat.state in _STAGES:
            now, trace = time.time_ns(), self._asked(seat)
            self._begun[seat.uid] = _Begun(seat.state, now, trace, seat.history.phases)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        if begun := self._begun.pop(seat.uid, None):
            self._send(seat, begun)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """A span says in which state its stage ended; why is in the seat's events."""

    def close(self) -> None:
        """Send what is left, for a short while at most. Blocks."""
        self._sender.close()

    def _asked(self, seat: Seat) -> str:
        """The trace of who waits longest for the seat, or for another one of its GPUs."""
        gpus = set(seat.identity.gpus)
        waits = [
            (one is not seat, one.demand.waiting_since, one.demand.trace)
            for one in self._node.seats.values()
            if one.demand.trace
            and one.demand.waiting_since is not None
            and gpus & set(one.identity.gpus)
        ]
        return min(waits)[2] if waits else ""

    def _send(self, seat: Seat, begun: _Begun) -> None:
        name, good = _STAGES[begun.state]
        said: dict[str, str | float] = {
            "kyb.seat": f"{self._where}/{seat.identity.name}",
            "kyb.pod": f"{seat.identity.pod.namespace}/{seat.identity.pod.name}",
            "kyb.became": seat.state.value,
        }
        if seat.history.phases is not begun.phases:
            for phase, seconds in seat.history.phases.items():
                said[f"kyb.{phase}_ms"] = round(seconds * 1000, 3)
        above = CONTEXTS.extract({"traceparent": begun.trace} if begun.trace else {})
        tracer = self._sender.tracer
        span = tracer.start_span(name, above, attributes=said, start_time=begun.at)
        if seat.state not in good:
            span.set_status(StatusCode.ERROR)
        span.end(time.time_ns())
