"""What the swap decision sees of a node: its seats, its GPUs, and what it is to go by. Pure."""

from __future__ import annotations

import math
from dataclasses import field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from kybernate.dataclass import dataclass
from kybernate.types import GpuUuid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.tiers.tiering import TierView
    from kybernate.types import GroupName, PodUid, SeatName, SeatState

Places = tuple[frozenset[GpuUuid], ...]
"""Sets of GPUs, on any of which a seat may be."""


SPARE: Final = 4
"""One of so many places is kept free: see `SwapPolicy.spare`."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a seat that always wants its GPUs says of it: whose it is, and its `weight` among those
    of its namespace. `yields`: it gives up the turn that it has."""

    namespace: str
    weight: float = 1.0
    yields: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """What a seat that takes turns is owed. The smallest `place` comes first. Before `until` it
    need not give way to others who take turns. `due`: since when only requests keep it out. Of a
    seat that answers requests, `rest`: unused for so many seconds it gives way to a turn."""

    place: tuple[float, int] = (0.0, 0)
    until: float = -math.inf
    due: float = math.inf
    rest: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """What a seat's swaps are expected to take (s), and how often a second it is asked for.
    `within`: when its requests are in time, where the seat itself doesn't say (s)."""

    wakes_in: float = 0.0
    parks_in: float = 0.0
    calls: float = 0.0
    within: float | None = None


@dataclass(frozen=True, slots=True)
class SeatView:
    """What the decision knows of a seat. All times are of one monotonic clock, in seconds.

    `vram` in bytes per GPU, None for the whole GPU. `drained`: it drains, and no proxy holds it any
    more. `bound_at` is since when it wants to start;
    `idle_since` since when nothing was in flight or waiting; before `not_before` it asks for
    nothing (an attempt has just been refused), and before `stays_until` it isn't asked to leave (a
    park has just failed). `asked_since`: since when somebody other than a
    proxy wants it awake (an operator, bytes at its sockets). `leave`: why it must leave GPU memory
    though nobody needs its GPUs; meanwhile it asks for nothing. `unparkable`: why it can't be
    parked, neither now nor as soon as others have left RAM. `forfeit`: if it must leave, it ends
    instead of being parked, which takes no RAM. `on_demand`: at the gate it asks for
    its turn only when wake-requested. `unverified`: nobody knows yet whether it uses its GPUs,
    which go to no other meanwhile. `turn`: it wants its GPUs whenever it may have them; None: only
    when wake-requested. `idle_limit`: unused for so long it leaves GPU memory though nobody needs
    its GPUs; None: it stays.

    `places`: the sets of GPUs on any of which it may be woken; empty: on `gpus` alone. `within`:
    its requests should be answered so many seconds after they came; None: nobody said so.
    `wakes_in`, `parks_in`: seconds that its swaps are expected to take; `calls`: how often a second
    it is expected to be asked for. `min_residency`, `max_wait`: what is said of it instead of the
    policy's, as far as that allows it; None: nothing.
    """

    uid: PodUid
    name: SeatName
    group: GroupName
    gpus: frozenset[GpuUuid]
    vram: int | None
    state: SeatState
    bound_at: float
    active_since: float | None = None
    idle_since: float | None = None
    in_flight: int = 0
    waiting: int = 0
    waiting_since: float | None = None
    drained: bool = False
    drain_since: float | None = None
    connected: bool = False
    priority: int = 0
    not_before: float = 0.0
    stays_until: float = 0.0
    asked_since: float | None = None
    leave: str = ""
    unparkable: str = ""
    on_demand: bool = False
    unverified: bool = False
    turn: Turn | None = None
    idle_limit: float | None = None
    places: Places = ()
    within: float | None = None
    wakes_in: float = 0.0
    parks_in: float = 0.0
    calls: float = 0.0
    min_residency: float | None = None
    max_wait: float | None = None
    forfeit: bool = False

    def on(self, gpus: frozenset[GpuUuid]) -> SeatView:
        """The same on these GPUs."""
        values = list(_values_of(self))
        values[_GPUS] = gpus
        return SeatView(*values)


_FIELDS: Final = [one.name for one in fields(SeatView)]
_GPUS: Final = _FIELDS.index("gpus")
# `replace` takes five times as long, and a decision does this for each seat that it serves.
_values_of: Final = attrgetter(*_FIELDS)


def residency(said: float | None, usual: float, most: float) -> float:
    """Seconds for which a seat that has traffic stays once it woke: as long as is `said` of it and,
    since others wait for so long, `most` at most."""
    return usual if said is None else min(said, max(usual, most))


@dataclass(frozen=True, slots=True)
class SwapPolicy:
    """Seconds. `drain_limit`: how long requests in flight may hold up a switch. `max_wait`: demand
    this old comes before all priorities. `most_residency`: see `residency`. `spare`: one of so many
    of the places on which seats may be woken is emptied ahead of need, once nobody uses what is on
    it; 0: none."""

    min_residency: float = 1.0
    idle_after: float = 0.5
    drain_limit: float = 30.0
    max_wait: float = 60.0
    spare: int = 0
    most_residency: float = 30.0

    def residency(self, seat: SeatView) -> float:
        """Seconds for which a seat that has traffic stays once it woke."""
        return residency(seat.min_residency, self.min_residency, self.most_residency)

    def longest_wait(self, seat: SeatView) -> float:
        """After so many seconds its demand comes before all priorities: no sooner than `max_wait`,
        since that would be at the expense of those who rank higher."""
        return max(self.max_wait, seat.max_wait or 0.0)


@dataclass(frozen=True, slots=True)
class SwapView:
    """A node: its seats, bytes per healthy GPU, slots per group, bytes never given out.

    `foreign`: bytes per GPU in use by processes of no seat. `draining`: why nothing may start or
    wake on this node and everything active must leave, empty if it may stay. `claims`: of those
    who take turns. `park_room`: bytes of host memory that seats may be parked into now, None if
    nobody counts them; `park_bytes`: what each seat's park puts there. `tiers`: where the states of
    parked seats are and may go, whatever their turns; None where nobody says, or where all are in
    RAM and it has room for all that are awake. `last`: seats that
    come after all others, since their namespaces have used up what is theirs. `absent`: there are
    more seats, parked, which nobody asks for now.
    """

    seats: tuple[SeatView, ...]
    gpu_memory: Mapping[GpuUuid, int]
    active_slots: Mapping[GroupName, int]
    reserve: int = 0
    foreign: Mapping[GpuUuid, int] = field(default_factory=dict)
    draining: str = ""
    claims: Mapping[PodUid, Claim] = field(default_factory=dict)
    park_room: int | None = None
    park_bytes: Mapping[PodUid, int] = field(default_factory=dict)
    tiers: TierView | None = None
    last: frozenset[PodUid] = frozenset()
    absent: bool = False

    def free(self, gpu: GpuUuid) -> int | None:
        """Bytes of the GPU that seats may use; None if it is not healthy."""
        memory = self.gpu_memory.get(gpu)
        return None if memory is None else memory - self.reserve - self.foreign.get(gpu, 0)

    def no_room(self, seat: SeatView) -> bool:
        """Whether the host's memory has no room for the seat's park now."""
        return self.park_room is not None and self.park_bytes.get(seat.uid, 0) > self.park_room
