"""What a seat's pod, its workload and operators want of it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from kybernate.core.seat.seats import SeatEvent
from kybernate.dataclass import dataclass
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.artifacts.restores import RestoreWish

HELD = "the container runtime takes a checkpoint of it"
"""Why a seat leaves its GPUs for that; found in the journal, it tells the next agent."""


EVACUATED = "evacuated"
"""What begins to tell why a seat left for an evacuation, by whichever agent."""


class Declared(Protocol):
    """What a pod says of its seat."""

    @property
    def park_tier(self) -> Tier:
        """How deep it lets the seat go."""
        ...

    @property
    def ready_within(self) -> float | None:
        """What is a timely wake, in seconds."""
        ...

    @property
    def ready_active(self) -> bool:
        """Whether only an active seat's pod is ready."""
        ...

    @property
    def idle(self) -> Mapping[str, float]:
        """Unused for so many seconds the seat leaves the tier."""
        ...

    @property
    def weight(self) -> float | None:
        """Of a seat that always wants its GPUs."""
        ...

    @property
    def min_residency(self) -> float | None:
        """Seconds for which the seat stays once it woke."""
        ...

    @property
    def max_wait(self) -> float | None:
        """Seconds after which its demand comes before all priorities."""
        ...

    @property
    def prefetch(self) -> float | None:
        """Calls per hour from which on it is brought into RAM ahead of need."""
        ...

    @property
    def priority(self) -> int:
        """What its requests rank among those of other seats."""
        ...

    @property
    def keep_connections(self) -> bool:
        """Whether connections are left open over a park."""
        ...

    @property
    def spec_hash(self) -> str:
        """What its container is."""
        ...


@dataclass(slots=True)
class Wishes:
    """Of the pod: `restore`: which artifact it continues from; `park_tier`: how deep it lets the
    seat go; `ready_within` (s): what is a timely wake; `ready_active`: only while it is active
    its pod is ready; `idle` (s): unused for so long the seat
    leaves GPU memory, or the tier of that name; `weight`: of a seat that always wants its GPUs,
    None if it waits for requests; `min_residency`, `max_wait` (s), `prefetch` (calls per hour):
    instead of the agent's settings; `priority`: what its requests rank; `keep_connections`;
    `spec_hash`: what its container is.

    Of the workload: `acquired`: it wants its GPUs until it says otherwise; `yields`: it gives up
    the turn that it has.

    Of operators: `leave`: why it must leave GPU memory though nobody needs its GPUs; with
    `stays_away` also when it has; `rests`: it was sent away, and wants nothing until
    wake-requested; `tier_asked`: where its state should be; `to_save`: a copy of its state is to be
    written next.
    """

    restore: RestoreWish | None = None
    park_tier: str = Tier.OBJECT.value
    ready_within: float | None = None
    ready_active: bool = False
    idle: Mapping[str, float] = field(default_factory=dict)
    weight: float | None = None
    min_residency: float | None = None
    max_wait: float | None = None
    prefetch: float | None = None
    priority: int = 0
    keep_connections: bool = False
    spec_hash: str = ""
    acquired: bool = False
    yields: bool = False
    leave: str = ""
    stays_away: bool = False
    rests: bool = False
    tier_asked: str = ""
    to_save: bool = False

    @property
    def turn_weight(self) -> float:
        """The weight of a seat that wants its GPUs always, or until it says otherwise; 0.0 of one
        that waits for requests."""
        return self.weight or float(self.acquired)

    @property
    def evacuated(self) -> bool:
        """Whether it is an evacuation that keeps it away."""
        return self.leave.startswith(f"{EVACUATED} by ")

    def declared(self, pod: Declared) -> bool:
        """What its pod says now; whether something changed that is noted at once."""
        before = self._noted()
        self.keep_connections, self.spec_hash = pod.keep_connections, pod.spec_hash
        self.park_tier, self.ready_within = pod.park_tier.value, pod.ready_within
        self.ready_active = pod.ready_active
        self.weight, self.idle = pod.weight, pod.idle
        self.min_residency, self.max_wait = pod.min_residency, pod.max_wait
        self.prefetch, self.priority = pod.prefetch, pod.priority
        return before != self._noted()

    def _noted(self) -> tuple[object, ...]:
        said = self.min_residency, self.max_wait, self.prefetch, self.ready_active
        return self.weight, self.idle, self.ready_within, self.priority, *said

    def continues(self, restore: RestoreWish | None) -> None:
        """From which state its pod wants to continue, which is settled when the seat is made."""
        self.restore = restore

    def phase(self, *, acquired: bool, yields: bool) -> None:
        """Its workload knows its phases."""
        self.acquired, self.yields = acquired, yields

    def send_away(self, why: str, *, stays_away: bool) -> None:
        """It must leave GPU memory."""
        self.leave, self.stays_away, self.rests = why, stays_away, not stays_away

    def let_stay(self) -> None:
        """Nobody wants it to leave any more."""
        self.leave, self.stays_away, self.rests = "", False, False

    def has_left(self) -> None:
        """It has left GPU memory, and may be wake-requested unless it stays away."""
        if not self.stays_away:
            self.leave = ""

    def ask_for_tier(self, tier: Tier | None) -> None:
        """An operator wants its state there; None: anywhere."""
        self.tier_asked = tier.value if tier else ""

    def ask_for_copy(self, *, wanted: bool) -> None:
        """Whether a copy of its state is to be written next."""
        self.to_save = wanted

    def met(self, event: SeatEvent) -> None:
        """What is over with this event of its life."""
        if event is SeatEvent.AWAKE and not self.leave:
            self.tier_asked = ""  # else it was asked for while it woke, and is still to go there
        if event is SeatEvent.ENDED or (event is SeatEvent.AWAKE and not self.leave):
            self.rests = False  # sent away while it woke, it rests once it is parked again
        if event in (SeatEvent.PARKED, SeatEvent.ENDED):
            self.yields = False
