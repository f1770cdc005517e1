"""What the proxy keeps of a seat and of a model's queue, and what a wake of a seat costs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate.types import SeatState
from proxy.actions import Abort, Close

if TYPE_CHECKING:
    from kybernate.types import PodUid
    from proxy.actions import Action, SeatInfo

_WAKE_COST: dict[SeatState, int] = {
    SeatState.ACTIVE: 0,
    SeatState.WAKING: 1,
    SeatState.STARTING: 2,
    SeatState.PARKED: 3,
    SeatState.RESTORING: 4,
    SeatState.DRAINING: 5,
    SeatState.PARKING: 6,
    SeatState.DUMPING: 7,
    SeatState.PARKED_NVME: 8,
    SeatState.PARKED_OBJECT: 9,
    SeatState.WAITING: 10,
    SeatState.UNVERIFIED: 10,
    SeatState.ADOPTING: 10,
    SeatState.FAILED: 11,
    SeatState.GONE: 12,
}
"""Lower is sooner ready. A seat on its way is never abandoned for one that isn't."""


@dataclass(slots=True, eq=False)
class Seat:
    """A seat, its lease and what is in flight there."""

    info: SeatInfo
    connected: bool = True
    confirmed: bool = True  # named by the agent on its present stream
    lease: int | None = None
    draining: bool = False
    in_flight: set[int] = field(default_factory=set)
    requests: int = 0
    ends_at: float | None = None  # when a broken stream ends what is in flight

    @property
    def open(self) -> bool:
        """Whether requests may go there."""
        return (
            self.connected
            and self.lease is not None
            and not self.draining
            and bool(self.info.address)
        )

    @property
    def wake_cost(self) -> int:
        """Lower is sooner ready."""
        return _WAKE_COST[self.info.state]


@dataclass(slots=True)
class Queue:
    """Who waits for a model."""

    waiting: dict[int, float] = field(default_factory=dict)  # ticket → when it came
    target: PodUid | None = None  # the seat that is asked to wake for them


def load(seat: Seat) -> tuple[int, str]:
    """Sorts seats by their requests, the least first."""
    return len(seat.in_flight), str(seat.info.uid)


def order(seat: Seat) -> tuple[str, str, str]:
    """Sorts seats by model, node and name."""
    return seat.info.route, seat.info.node, seat.info.name


def end(seat: Seat, reason: str) -> list[Action]:
    """End all that is in flight there."""
    return [*(Abort(ticket, reason) for ticket in sorted(seat.in_flight)), Close(seat.info.uid)]
