"""The product's swap decision over a simulated node. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.core.simulate.hostram import CALLS_HOLD
from kybernate.core.simulate.world import Where
from kybernate.core.swap.swap import ActionKind, decided, next_check, ram_order
from kybernate.core.swap.swapview import SPARE, SeatView, SwapPolicy, SwapView, Turn
from kybernate.core.swap.turns import Book, TurnPolicy
from kybernate.types import GpuUuid, GroupName, PodUid, SeatName, SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kybernate.core.simulate.world import World
    from kybernate.core.swap.swap import Action, Judged

_STATES = {
    Where.PARKED: SeatState.PARKED,
    Where.WAKING: SeatState.WAKING,
    Where.ACTIVE: SeatState.ACTIVE,
    Where.PARKING: SeatState.PARKING,
}
_PARKED = {
    (Tier.RAM, None): SeatState.PARKED,
    (Tier.RAM, Tier.NVME): SeatState.DUMPING,
    (Tier.NVME, None): SeatState.PARKED_NVME,
    (Tier.NVME, Tier.RAM): SeatState.RESTORING,
}
_GROUP = GroupName("all")
_GB = 10**9


class Ours:
    """`kybernate.core.swap.swap.decided`, with every model free to wake on any GPU of the node, as
    `kybernate serve` has models of one GPU."""

    def __init__(
        self,
        world: World,
        policy: SwapPolicy | None = None,
        fixed: Sequence[int] = (),
        book: Book | None = None,
    ) -> None:
        self._policy = policy or SwapPolicy(spare=SPARE)
        self._gpus = tuple(GpuUuid(f"GPU-{n}") for n in range(world.gpus))
        self._places = tuple(frozenset({gpu}) for gpu in self._gpus)
        self._memory = {gpu: round(world.costs.gpu_gb * _GB) for gpu in self._gpus}
        self._slots = {_GROUP: len(world.size)}
        self._number = {gpu: n for n, gpu in enumerate(self._gpus)}
        self._fixed = fixed
        """The GPU of each model, where it has one for good."""
        self._judged: dict[frozenset[GpuUuid], tuple[tuple[SeatView, ...], float, Judged]] = {}
        """What was found of each GPU, with which models there, and until when it holds."""
        self._drains: dict[int, float] = {}
        self._seats: dict[int, SeatView] = {}
        self._calls = [0.0] * len(world.size)
        self._renews_at = 0.0
        # Where the host's memory is counted, or turns are taken, nothing found may be kept.
        self._always = world.trace.always
        self._book = book
        """Of models that take turns, each of which has a GPU for good."""
        self._keep = self._recall if world.ram is None and not self._always else None
        if world.ram is not None:
            world.ram.order = lambda: ram_order(self._view(world), self._policy, world.now)

    def act(self, world: World) -> float:
        """See `world.Policy`. Nothing is looked at where nothing could be decided: no model waits
        but those on their way up, and no GPU is to be emptied ahead of need, or none can be."""
        if world.now >= self._renews_at:
            self._renew(world)
        while self._is_asked(world) or self._may_empty(world):
            view = self._view(world)
            found = decided(view, self._policy, world.now, self._keep)
            if not found.actions:
                when = next_check(view, self._policy, world.now, found)
                return math.inf if when is None else when
            for action in found.actions:
                self._do(world, action)
        return math.inf

    def _recall(self, place: frozenset[GpuUuid], there: tuple[SeatView, ...], now: float) -> Judged:
        """See `swap.Recall`. It holds while the same models are there as they are, until one of
        them may leave that could not before."""
        kept = self._judged.get(place)
        if kept is not None and kept[1] > now and kept[0] == there:
            return kept[2]
        times = [time for seat in there for time in _free_to_leave(seat, self._policy)]
        found: Judged = {}
        self._judged[place] = there, min([t for t in times if t > now], default=math.inf), found
        return found

    def _renew(self, world: World) -> None:
        """As the agent does by its clock, and not as it decides."""
        self._renews_at = (world.now // CALLS_HOLD + 1) * CALLS_HOLD
        for m, seen in enumerate(world.seen):
            seen.advance(world.now)
            self._calls[m] = seen.recent_calls / 3600.0
        self._seats.clear()

    def _is_asked(self, world: World) -> bool:
        asks = any(world.state[m] is Where.PARKED for m in world.waiting)
        return asks or bool(self._always)

    def _may_empty(self, world: World) -> bool:
        """Whether too few GPUs are free, and one is idle; or whether a model drains."""
        if any(world.closed):
            return True
        spare = world.gpus // self._policy.spare if self._policy.spare else 0
        idle = False
        for there in world.on:
            stay = [m for m in there if world.state[m] is not Where.PARKING]
            spare -= not stay
            idle = idle or bool(stay and all(world.idle(m) for m in stay))
        return idle and spare > 0

    def _do(self, world: World, action: Action) -> None:
        m = int(action.uid)
        if action.kind is ActionKind.DRAIN:
            world.close(m)
            self._drains[m] = world.now
            return
        self._drains.pop(m, None)
        if action.kind is ActionKind.UNDRAIN:
            world.reopen(m)
        elif action.kind in (ActionKind.PARK, ActionKind.REVOKE):
            world.park(m)
        else:
            gpu = self._fixed[m] if self._fixed else self._number[next(iter(action.gpus))]
            world.wake(m, gpu)

    def _view(self, world: World) -> SwapView:
        """What has not changed since is as it was seen."""
        for m in world.touched:
            self._seats.pop(m, None)
        world.touched.clear()
        there = sorted(world.waiting.union(self._always, *world.on))
        for m in there:
            if m not in self._seats:
                self._seats[m] = self._seat(world, m)
        seats = tuple([self._seats[m] for m in there])
        absent = len(there) < len(world.size)
        view, ram = SwapView(seats, self._memory, self._slots, absent=absent), world.ram
        if self._book is not None:
            view = self._book.look(view, world.now)
        if ram is None:
            return view
        parks = {ram.uids[m]: ram.bytes[m] for those in world.on for m in those}
        return replace(view, park_room=ram.room(), park_bytes=parks, tiers=ram.view())

    def _seat(self, world: World, m: int) -> SeatView:
        where, running, queue = world.state[m], world.running[m], world.queue[m]
        gpus = frozenset() if where is Where.PARKED else self._places[world.gpu[m]]
        active = where is Where.ACTIVE
        waiting = len(queue) + (0 if active else len(world.left[m]))
        in_flight = running if active else 0
        return SeatView(
            uid=PodUid(str(m)),
            name=SeatName(world.trace.names[m]),
            group=_GROUP,
            gpus=self._places[self._fixed[m]] if self._fixed else gpus,
            vram=int(world.need[m] * _GB),
            state=SeatState.DRAINING if world.closed[m] else _state(world, m),
            bound_at=0.0,
            active_since=world.active_since[m] if active else None,
            idle_since=None if in_flight or waiting else world.used_at[m],
            in_flight=in_flight,
            waiting=waiting,
            waiting_since=(queue[0] if queue else world.used_at[m]) if waiting else None,
            drained=not in_flight,
            drain_since=self._drains.get(m),
            places=() if self._fixed else self._places,
            within=world.within[m],
            wakes_in=_wakes_in(world, m),
            parks_in=world.parks_in[m],
            calls=self._calls[m],
            turn=Turn(world.trace.tenants[m]) if m in self._always else None,
        )


def _state(world: World, m: int) -> SeatState:
    where, ram = world.state[m], world.ram
    if where is not Where.PARKED or ram is None:
        return _STATES[where]
    return _PARKED[ram.tier[m], ram.to[m]]


def _wakes_in(world: World, m: int) -> float:
    ram = world.ram
    below = ram is not None and world.state[m] is Where.PARKED and ram.tier[m] is Tier.NVME
    return world.wakes_in[m] + (ram.from_nvme(m) if ram is not None and below else 0.0)


def _free_to_leave(seat: SeatView, policy: SwapPolicy) -> tuple[float, ...]:
    """From when on it has had its residency or, without requests, has been idle for long enough."""
    if seat.active_since is None:
        return ()
    resided = seat.active_since + policy.residency(seat)
    if seat.idle_since is None:
        return (resided,)
    return resided, seat.idle_since + policy.idle_after


def fixed(
    world: World, policy: SwapPolicy | None = None, shares: Mapping[str, float] | None = None
) -> Ours:
    """The same, with each model on one GPU for good, as a pod is on its group's: models are given,
    in their order, the GPU of which the least has been given. Those that always want theirs take
    turns, by their tenants' `shares` (against 1 of a tenant that isn't named)."""
    given, places = [0.0] * world.gpus, []
    for need in world.need:
        gpu = min(range(world.gpus), key=lambda n: given[n])
        places.append(gpu)
        given[gpu] += need
    book = Book(TurnPolicy(shares=shares or {}), world.now) if world.trace.always else None
    return Ours(world, policy, places, book)
