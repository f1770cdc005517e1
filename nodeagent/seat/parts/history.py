"""What a seat has done so far, and since when it does what it does."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass
from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

_SERVING = (SeatState.ACTIVE, SeatState.DRAINING)


@dataclass(slots=True)
class History:
    """`since` when it is in its state, wall-clock seconds, and the `reason`. All other times are of
    the loop's monotonic clock.

    `generation` counts starts of the command, `lease` the times that it was granted to proxies.
    `bound_at`: since when it wants to start; `used_at`: when it was last in GPU memory; `phases`:
    seconds of the last park, wake, dump or restore. `took`: seconds of its last way from a tier, by
    the tier's name: from RAM into its GPUs, from NVMe into RAM, from the object store to this
    node. `untimely`: a wake from RAM takes longer than its pod calls ready.
    """

    bound_at: float
    since: float
    reason: str = ""
    generation: int = 0
    lease: int = 0
    started_once: bool = False
    starting_since: float | None = None
    active_since: float | None = None
    active_seconds: float = 0.0
    drain_since: float | None = None
    used_at: float = 0.0
    wakes: int = 0
    last_wake_ms: float = 0.0
    last_park_ms: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    took: Mapping[str, float] = field(default_factory=dict)
    untimely: bool = False

    def entered(
        self, before: SeatState, state: SeatState, why: str, *, now: float, wall: float
    ) -> None:
        """It went from one state to another."""
        self.since, self.reason = wall, why
        if before in _SERVING and state not in _SERVING and self.active_since is not None:
            self.active_seconds += now - self.active_since
            self.active_since, self.used_at = None, now
        if state in _SERVING and before not in _SERVING:
            self.active_since = now
        self.drain_since = now if state is SeatState.DRAINING else None
        self.starting_since = now if state is SeatState.STARTING else None

    def explained(self, why: str) -> None:
        """More is known of why it is in its state."""
        self.reason = why

    def starts_by(self, now: float, limit: float) -> bool:
        """Whether it may still be starting. The limit is for one entry into STARTING."""
        if self.starting_since is None:  # in the journal of an older release
            self.starting_since = now
        return now < self.starting_since + limit

    def started(self) -> None:
        """Its command is executed once more."""
        self.generation += 1

    def served(self) -> None:
        """It has started to serve."""
        self.started_once = True

    def found(self, generation: int) -> None:
        """It runs, and no record tells of its start."""
        self.generation, self.started_once = generation, True

    def granted(self) -> None:
        """Proxies may send requests, by a lease of this number."""
        self.lease += 1

    def woke(self, seconds: float) -> None:
        """It took so long."""
        self.wakes += 1
        self.last_wake_ms = seconds * 1000

    def parked(self, seconds: float) -> None:
        """It took so long."""
        self.last_park_ms = seconds * 1000

    def came(self, tier: Tier, seconds: float) -> None:
        """Its way from this tier took so long."""
        self.took = {**self.took, tier.value: seconds}

    def wake_from(self, tier: Tier) -> float | None:
        """What its last way from this tier into its GPUs took (s); None if not all of it was seen
        on this node. It is restored while it comes from the object store."""
        way = {tier.value, Tier.RAM.value}
        return sum(self.took[one] for one in way) if way <= self.took.keys() else None

    def timed(self, phases: Mapping[str, float]) -> None:
        """Seconds by phase of what was done last."""
        self.phases = phases

    def judged(self, *, untimely: bool) -> None:
        """Whether its next wake from RAM takes too long."""
        self.untimely = untimely

    def ended(self, now: float) -> None:
        """It wants to start again since now."""
        self.bound_at = now
