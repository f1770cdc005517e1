"""Who of a node's seats is in GPU memory: one pure decision over all of them.

Demand is served by priority, then oldest first; who has waited for `max_wait` comes before all
priorities, oldest first, so nobody waits for ever. A demander that doesn't fit names the seats
that must leave (`victims`); they are drained together once each has had its residency or is idle,
and until then its GPUs are kept from younger demand, also while the demander's own state is on
its way from NVMe into RAM: both continue at once. So a group of several GPUs can't be starved
by smaller groups that keep taking one of them, and the oldest demander always gets its turn.

A seat whose namespace has used up what is its own (`SwapView.last`) comes after the others: its
requests after those of the same priority, until they have waited for `max_wait`; its turn after
everybody's.

After all requests come seats that always want their GPUs and take turns (`core.swap.turns` says
whose it is). They displace nobody who has requests to answer, unless those kept them out for
`max_wait`; a request displaces them once they had `min_residency`. While the next of them has to
wait for what it needs, others may use what is empty, but displace nobody. Requests for one of them
are no reason to have it awake before or longer than its turn, while others take turns for its GPUs.

The host's memory is handed out here, too, in the same order: what must be parked for a demander has
its room before anything is parked for a later one, and seats that are to leave RAM or to come into
it follow that order (`ram_order`, carried out by `core.tiers.tiering`). So whoever needs much RAM
isn't starved by those who need little of it again and again. Nobody is parked for a seat which the
host's memory would keep out after that, and such a seat keeps its GPUs from nobody; `decided` says
why.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from kybernate.core.seat.seats import OCCUPYING, TIER_OF
from kybernate.core.swap.swapview import Claim
from kybernate.core.tiers.tiering import RamOrder, lodges
from kybernate.dataclass import dataclass
from kybernate.types import SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping

    from kybernate.core.swap.swapview import SeatView, SwapPolicy, SwapView
    from kybernate.core.tiers.tiering import Parked
    from kybernate.types import GpuUuid, GroupName, PodUid


_GIB = 1 << 30
_NOWHERE: Final[frozenset[GpuUuid]] = frozenset()
SPENT: Final = "its namespace has used up its GPU-seconds, so seats of others come first"


class ActionKind(StrEnum):
    """What to do with a seat."""

    START = "start"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    REVOKE = "revoke"
    PARK = "park"
    WAKE = "wake"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do, and why, as a sentence for people."""

    kind: ActionKind
    uid: PodUid
    reason: str
    gpus: frozenset[GpuUuid] = frozenset()
    """Where to wake a seat that may be in several places."""


_Like = tuple[object, ...]
_Harm = tuple[list["SeatView"], int, float, float]
"""Who would leave a place, how well that can be, what it costs, and seconds of their parks."""

Judged = dict[_Like, _Harm]
"""What room on a place would cost, for each kind of seat that might need it."""

Recall = Callable[[frozenset["GpuUuid"], tuple["SeatView", ...], float], Judged]
"""What earlier decisions about the same node, by the same policy, found of a place that these seats
are on, as far as it still holds at this time; the decision adds to it. Where seats take turns or
the host's memory is counted nothing holds: who leaves a place depends on others."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What to do now. Empty when nothing is to be done until an event or `next_check`. `why`: of
    each seat that RAM can't serve while the others stay, however long it waits, why not, as a
    sentence. `places_until`: after that the seats that wait may be given other places, though
    nothing has happened (s)."""

    actions: tuple[Action, ...]
    why: Mapping[PodUid, str]
    places_until: float


def decided(
    view: SwapView, policy: SwapPolicy, now: float, recall: Recall | None = None
) -> Decided:
    """What to do now, and who is refused. With `recall` the answer is the same, and comes sooner
    where little has changed since the last."""
    decision = _Decision(view, policy, now, recall)
    actions = decision.run()
    return Decided(actions, decision.refused(), decision.places_until)


def decide(view: SwapView, policy: SwapPolicy, now: float) -> tuple[Action, ...]:
    """What to do now; see `decided`."""
    return decided(view, policy, now).actions


def next_check(view: SwapView, policy: SwapPolicy, now: float, found: Decided) -> float | None:
    """The next time at which `decided` may answer differently than with what was `found` now,
    without an event, or None."""
    moved = (wants(seat) or seat.leave or seat.idle_limit is not None for seat in view.seats)
    if not view.draining and not any(moved):
        return None
    parks = {seat.parks_in for seat in view.seats}
    times = [math.nextafter(found.places_until, math.inf)]
    for seat in view.seats:
        if seat.state in _TURNING:
            times += _turning_points(seat, view, policy, parks, now)
    soonest = min([time for time in times if time > now], default=math.inf)
    return soonest if soonest < math.inf else None


def ram_order(view: SwapView, policy: SwapPolicy, now: float) -> RamOrder:
    """In which order RAM is handed out. Who could not have its GPUs even with all of RAM comes
    last: it would keep RAM from others for nothing."""
    decision = _Decision(view, policy, now)
    decision.run()
    return decision.ram_order()


def fits(view: SwapView, uid: PodUid) -> bool:
    """Whether this seat could be in GPU memory beside all that are, or may be, in it now."""
    (seat,) = (s for s in view.seats if s.uid == uid)
    beside = [s for s in view.seats if s.state in OCCUPYING and s.uid != uid]
    return _fits(seat, beside, view)


def barred(view: SwapView, seat: SeatView) -> bool:
    """Whether the seat could not be in GPU memory now even if nobody else were."""
    return bool(view.draining) or not _fits_alone(seat, view)


def _fits_alone(seat: SeatView, view: SwapView) -> bool:
    return any(_fits(seat, (), view, place) for place in seat.places or (seat.gpus,))


def _reach(seat: SeatView) -> frozenset[GpuUuid]:
    """All GPUs that it may be on."""
    return seat.gpus.union(*seat.places)


def _unclear(seat: SeatView) -> frozenset[GpuUuid]:
    """GPUs of which it is not known whether the seat uses them."""
    if not seat.unverified:
        return _NOWHERE
    return _reach(seat) if seat.state is SeatState.UNVERIFIED else seat.gpus


def obstacle(view: SwapView, policy: SwapPolicy, uid: PodUid, now: float) -> str:
    """Why a seat that asks for its turn hasn't got it yet, as a sentence; empty if nothing stands
    in its way."""
    (seat,) = (s for s in view.seats if s.uid == uid)
    in_its_way = [s for s in view.seats if s.state in OCCUPYING and s.gpus & _reach(seat)]
    bar = _bar(seat, view, now)
    bar = bar or decided(view, policy, now).why.get(uid, "")
    if bar or not in_its_way:
        return bar
    spent = f"{SPENT}; " if uid in view.last else ""
    if fits(view, uid):
        return f"{spent}older or more urgent demand for its GPUs comes first"
    return spent + "; ".join(_excuse(other, seat, view, policy, now) for other in in_its_way)


def _bar(seat: SeatView, view: SwapView, now: float) -> str:
    """What keeps the seat out even of empty GPUs."""
    if view.draining:
        return f"the node is drained: {view.draining}"
    missing = sorted(gpu for gpu in seat.gpus if gpu not in view.gpu_memory)
    if missing and not seat.places:
        return f"GPU {', '.join(missing)} isn't healthy, or isn't in the plugin's inventory"
    if not _fits_alone(seat, view):
        return "its GPUs have less memory free of other processes than it declares"
    if now < seat.not_before:
        return f"the last attempt was refused; the next is in {seat.not_before - now:.1f} s"
    unclear = [s.name for s in view.seats if _unclear(s) & seat.gpus]
    if unclear and not seat.places:
        return f"it is not known yet what seat {', '.join(unclear)} does on its GPUs"
    return ""


def _excuse(other: SeatView, seat: SeatView, view: SwapView, policy: SwapPolicy, now: float) -> str:
    busy = other.in_flight or other.waiting
    if other.state is SeatState.ACTIVE and other.unparkable:
        return f"seat {other.name} can't be parked: {other.unparkable}"
    if other.state is SeatState.ACTIVE and view.no_room(other):
        return f"seat {other.name} is parked once others have left the host's memory"
    if other.state is SeatState.ACTIVE and busy and other.priority > seat.priority:
        most = policy.longest_wait(seat)
        return f"seat {other.name} has work of a higher priority, for {most:g} s at most"
    left = _claim(other, view).until - now
    if other.state is SeatState.ACTIVE and takes_turns(seat, view) and 0 < left < math.inf:
        return f"seat {other.name} has its turn for another {left:.1f} s"
    return f"seat {other.name} is {other.state}"


def wants(seat: SeatView) -> bool:
    """Whether the seat asks for its turn: at the gate, or parked and wake-requested, or always."""
    if seat.state not in _ASKING or seat.leave:
        return False
    asks = seat.waiting > 0 or seat.asked_since is not None or seat.turn is not None
    if seat.state is SeatState.WAITING:
        return seat.connected and (asks or not seat.on_demand)
    return asks


def takes_turns(seat: SeatView, view: SwapView) -> bool:
    """Whether it wants its GPUs because it always does: then it has them in its turn.

    A call changes that only where nobody else takes turns for them: it may have called itself.
    """
    if seat.turn is None or not wants(seat):
        return False
    return not _called(seat) or any(_rivals(other, seat, view) for other in view.seats)


def _rivals(other: SeatView, seat: SeatView, view: SwapView) -> bool:
    """Whether the other takes turns with the seat, or could at once."""
    if other.turn is None or other.uid == seat.uid or not other.gpus & seat.gpus:
        return False
    there = other.state in OCCUPYING and other.state is not SeatState.FAILED
    return there or (wants(other) and not barred(view, other))


def _called(seat: SeatView) -> bool:
    return seat.waiting > 0 or seat.asked_since is not None


_ASKING: Final = frozenset({SeatState.WAITING, *TIER_OF})
_NO_CLAIM: Final = Claim()
_TURNING: Final = frozenset({SeatState.WAITING, SeatState.ACTIVE, SeatState.DRAINING, *TIER_OF})
"""In other states time alone changes nothing."""


def _claim(seat: SeatView, view: SwapView) -> Claim:
    return view.claims.get(seat.uid, _NO_CLAIM)


def _turning_points(
    seat: SeatView, view: SwapView, policy: SwapPolicy, parks: Iterable[float], now: float
) -> list[float]:
    """Times at which the decision may change for this seat, where others take `parks` to leave;
    some that have passed, too."""
    claim = view.claims.get(seat.uid, _NO_CLAIM)
    if seat.state is SeatState.ACTIVE:
        since, idle = seat.active_since, seat.idle_since
        times = [seat.stays_until, claim.until]
        if since is not None:
            times.append(since + policy.residency(seat))
        if idle is not None:
            times += [idle + policy.idle_after, idle + claim.rest, _idles_at(seat, policy)]
        return times
    times = []
    if wants(seat):
        asks, longest = asks_since(seat), policy.longest_wait(seat)
        times += [seat.not_before, asks + longest, claim.due + longest]
        if seat.within is not None and (latest := _start_by(seat, asks)) >= now:
            times.append(math.nextafter(latest, math.inf))  # then it can't be in time any more
            times += [latest - park for park in parks]
    if seat.state is SeatState.DRAINING and seat.drain_since is not None:
        times.append(seat.drain_since + policy.drain_limit)
    return times


def _idles_at(seat: SeatView, policy: SwapPolicy) -> float:
    """When it has been unused for as long as it may be in GPU memory."""
    idle, limit = seat.idle_since, seat.idle_limit
    if idle is None or limit is None or seat.in_flight or seat.waiting or seat.turn is not None:
        return math.inf
    since = idle if seat.active_since is None else seat.active_since
    return max(idle + limit, since + policy.residency(seat))


def asks_since(seat: SeatView) -> float:
    """Since when a seat that wants its turn wants it."""
    if seat.state not in TIER_OF:
        return seat.bound_at
    called = seat.waiting_since if seat.waiting else None
    if called is None or seat.asked_since is None:
        called = seat.asked_since if called is None else called
        return seat.bound_at if called is None else called
    return min(called, seat.asked_since)


def latest_start(seat: SeatView) -> float:
    """When its wake must begin to answer its oldest request in time; where nobody said what is in
    time, since when it wants to be awake."""
    return _start_by(seat, asks_since(seat))


def _start_by(seat: SeatView, asks: float) -> float:
    return asks + (0.0 if seat.within is None else seat.within - seat.wakes_in)


def _fits(
    seat: SeatView,
    beside: Collection[SeatView],
    view: SwapView,
    gpus: frozenset[GpuUuid] | None = None,
) -> bool:
    """Whether the seat could be active beside these, on its GPUs or on those named."""
    for gpu in gpus or seat.gpus:
        if not _fits_on(seat, gpu, [other for other in beside if gpu in other.gpus], view):
            return False
    return True


def _fits_on(seat: SeatView, gpu: GpuUuid, there: Collection[SeatView], view: SwapView) -> bool:
    """Whether the seat could use the GPU beside these, which do."""
    free = view.free(gpu)
    if free is None:
        return False
    need = free if seat.vram is None else seat.vram
    slots = view.active_slots.get(seat.group, 1)
    for other in there:
        need += free if other.vram is None else other.vram
        if other.group != seat.group:
            slots = min(slots, view.active_slots.get(other.group, 1))
    return need <= free and len(there) < slots


_ENTERS = (SeatState.WAITING, SeatState.PARKED)
"""From here a seat enters GPU memory. One that is offloaded keeps its turn meanwhile."""


def _entry(seat: SeatView) -> tuple[ActionKind, SeatView, str]:
    if seat.state is SeatState.WAITING:
        return ActionKind.START, seat, "its turn at the gate has come"
    if seat.waiting:
        return ActionKind.WAKE, seat, f"{seat.waiting} requests wait for it"
    return ActionKind.WAKE, seat, "a wake was requested"


_WAKES = (SeatState.WAKING, SeatState.PARKED)
"""Of a seat that occupies its place: it is on its way in, or is to be from this decision on."""
_LEAVES = (SeatState.PARKING, SeatState.DRAINING)
_SERVES = (SeatState.ACTIVE, SeatState.DRAINING)
_TO_BE_PARKED = (SeatState.WAKING, SeatState.ACTIVE, SeatState.DRAINING)
"""From here a park has yet to take its room in RAM. A start has no known end, and keeps none."""
_IN_RAM = (SeatState.PARKING, SeatState.PARKED)
"""Here its bytes are there already."""
_CALLED: Final = 1.0
"""Calls per hour of a seat whose state should be in RAM."""
_OFFLOADED = (SeatState.PARKED_NVME, SeatState.PARKED_OBJECT)
_ENTERING = (ActionKind.START, ActionKind.WAKE)
_LEAVE_IN_TURN: Final = {SeatState.PARKING: 0, SeatState.DRAINING: 1, SeatState.FAILED: 5}
"""Who leaves first of those who could, but active ones, which depend."""


def _value(seats: Iterable[SeatView]) -> float:
    """What it would cost to have these out of GPU memory: waits of the requests expected soon."""
    return sum([_worth(one) for one in seats])


def _worth(seat: SeatView) -> float:
    return 0.0 if seat.state in _LEAVES else seat.calls * (1.0 + seat.wakes_in)


def _parks_in(seat: SeatView) -> float:
    """Of several that leave, the soonest first: who is called meanwhile waits for its own park."""
    return seat.parks_in


def _suits(beside: Collection[SeatView], in_time: bool) -> tuple[bool, bool, float, int]:
    """How well a place with room beside these suits a seat, which would be `in_time` there or
    nowhere. Whether it is; whether others are used there, and how often they are called, so that
    elsewhere GPUs can be emptied for large ones; how full the place is."""
    used = any(one.in_flight or one.waiting or one.state in _WAKES for one in beside)
    calls, taken = sum([one.calls for one in beside]), sum([one.vram or 0 for one in beside])
    return in_time, used, calls, taken


class _Load:
    """What of one GPU is taken: by whom, how many bytes by those who declare them, how many take
    the whole GPU, and how many may be active beside each other."""

    __slots__ = ("bytes", "seats", "slots", "whole")

    def __init__(self) -> None:
        self.seats: list[SeatView] = []
        self.bytes = self.whole = 0
        self.slots: float = math.inf


class _Seats:
    """Seats by each of their GPUs."""

    def __init__(self, view: SwapView, seats: Iterable[SeatView] = ()) -> None:
        self._slots = view.active_slots
        self.loads: dict[GpuUuid, _Load] = {}
        """What they take of each GPU."""
        for seat in seats:
            self.add(seat)

    def add(self, seat: SeatView) -> None:
        """One more."""
        slots, vram = self._slots.get(seat.group, 1), seat.vram
        for gpu in seat.gpus:
            load = self.loads.get(gpu)
            if load is None:
                load = self.loads[gpu] = _Load()
            load.seats.append(seat)
            if vram is None:
                load.whole += 1
            else:
                load.bytes += vram
            load.slots = min(load.slots, slots)

    def on(self, gpu: GpuUuid) -> Collection[SeatView]:
        """Those that have this GPU."""
        load = self.loads.get(gpu)
        return () if load is None else load.seats

    def on_any(self, gpus: Collection[GpuUuid]) -> Collection[SeatView]:
        """Those that have one of these GPUs, each once."""
        if len(gpus) == 1:
            (gpu,) = gpus
            load = self.loads.get(gpu)
            return () if load is None else load.seats
        return tuple({seat.uid: seat for gpu in gpus for seat in self.on(gpu)}.values())


class _Crowd:
    """A seat on these GPUs beside all who are there, who may leave and come back one by one."""

    __slots__ = ("_beside", "_free", "_gone", "_least", "_many", "_room", "_seat", "_slots")

    def __init__(
        self,
        seat: SeatView,
        gpus: Iterable[GpuUuid],
        beside: Collection[_Seats],
        free: Mapping[GpuUuid, int | None],
        slots: Mapping[GroupName, int],
    ) -> None:
        self._seat, self._beside, self._free, self._slots = seat, beside, free, slots
        self._room: dict[GpuUuid, float] = {}
        self._many: dict[GpuUuid, int] = {}
        self._least: float = slots.get(seat.group, 1)
        """No GPU allows fewer seats than this."""
        self._gone: list[SeatView] = []
        for gpu in gpus:
            most = free.get(gpu)
            if most is None:
                self._room[gpu], self._many[gpu] = -math.inf, 0
                continue
            room, many = 0 if seat.vram is None else most - seat.vram, 0
            for seats in beside:
                load = seats.loads.get(gpu)
                if load is not None:
                    room -= load.bytes + load.whole * most
                    many += len(load.seats)
                    self._least = min(self._least, load.slots)
            self._room[gpu], self._many[gpu] = room, many

    def fits(self) -> bool:
        """Whether there is room for the seat beside those who stay."""
        for gpu, room in self._room.items():
            if room < 0:
                return False
            many = self._many[gpu]
            if many >= self._least and many >= self._slots_of(gpu):
                return False
        return True

    def leaves(self, one: SeatView) -> None:
        """One who is there is no more."""
        self._gone.append(one)
        self._count(one, 1)

    def comes_back(self, one: SeatView) -> None:
        """One who had left is there."""
        self._gone = [other for other in self._gone if other is not one]
        self._count(one, -1)

    def _count(self, one: SeatView, sign: int) -> None:
        for gpu in one.gpus:
            if gpu in self._room:
                size = self._free[gpu] if one.vram is None else one.vram
                self._room[gpu] += sign * (size or 0)
                self._many[gpu] -= sign

    def _slots_of(self, gpu: GpuUuid) -> int:
        gone = {one.uid for one in self._gone}
        stay = [s for seats in self._beside for s in seats.on(gpu) if s.uid not in gone]
        return min([self._slots.get(one.group, 1) for one in (self._seat, *stay)])


_NO_HARM: Final = (0, 0.0)


class _Decision:
    """One run of `decide`; collects actions, and what older demand keeps from younger."""

    def __init__(
        self, view: SwapView, policy: SwapPolicy, now: float, recall: Recall | None = None
    ) -> None:
        self._recall = recall
        self._altered: set[GpuUuid] = set()
        """GPUs on which something was decided."""
        self._view = view
        self._policy = policy
        self._now = now
        self._occupying = _Seats(view, [seat for seat in view.seats if seat.state in OCCUPYING])
        self._held = _Seats(view)
        self._held_for_starts = _Seats(view)
        self._free = {gpu: view.free(gpu) for gpu in view.gpu_memory}
        self._unclear = {gpu for seat in view.seats if seat.unverified for gpu in _unclear(seat)}
        self._next_turns: list[SeatView] = []
        self._needed: set[PodUid] = set()
        self._room = math.inf if view.park_room is None else view.park_room
        self._parks: dict[PodUid, PodUid | None] = {}
        self._found: dict[frozenset[GpuUuid], list[SeatView]] = {}
        """Of the demander that is served, its victims in each place."""
        self._judged: dict[frozenset[GpuUuid], Judged] = {}
        """In each place, the harm that room for a seat like this would do."""
        self._shut: dict[Hashable, bool] = {}
        """Seats like this find no place any more; whether they would find none without others."""
        self._goes_to: dict[PodUid, frozenset[GpuUuid]] = {}
        """Where else than at its last place a seat is to be."""
        self._parks_in = sorted({seat.parks_in for seat in view.seats})
        self._able: dict[PodUid, bool | None] = {}
        """Of each seat that was asked about, whether it may leave; None: not for everybody."""
        self._merits: dict[PodUid, tuple[int, float, float, str]] = {}
        """What speaks against each seat's leaving, whoever it is for."""
        self._without_room: set[PodUid] = set()
        self._stuck: dict[PodUid, str] = {}
        tiers = view.tiers
        self._parked = {one.uid: one for one in (*tiers.awake, *tiers.seats)} if tiers else {}
        self._actions: list[Action] = []
        self.places_until = math.inf
        """See `Decided`."""

    def run(self) -> tuple[Action, ...]:
        """All that is to be done."""
        self._see_off()
        if not self._view.draining:
            for seat in self.demand():
                self._serve(seat)
            self._keep_spare()
        for seat in self._view.seats:
            if seat.state is SeatState.DRAINING and seat.uid not in self._needed:
                short = seat.uid in self._without_room
                why = "RAM has no room for it" if short else "no other seat needs its GPUs any more"
                self._act(ActionKind.UNDRAIN, seat, why)
        return tuple(self._actions)

    def _see_off(self) -> None:
        """Seats that must leave whoever needs their GPUs."""
        for seat in self._view.seats:
            limited = seat.idle_limit is not None
            why = seat.leave or self._view.draining or (limited and self._idled_out(seat))
            if not why or seat.unparkable or self._now < seat.stays_until:
                continue
            # Nobody waits for what only idles, and nobody's work ends for it.
            must = bool(seat.leave or self._view.draining)
            if (must or self._may_rest(seat)) and self._gets_room(seat, None):
                self._needed.add(seat.uid)
                self._send_away(seat, why, at_once=True)

    def _idled_out(self, seat: SeatView) -> str:
        there = seat.state in (SeatState.ACTIVE, SeatState.DRAINING)
        if not there or self._now < _idles_at(seat, self._policy):
            return ""
        return f"nobody has used it for {seat.idle_limit:g} s"

    def ram_order(self) -> RamOrder:
        """See the function. After `run`."""
        asking = sorted(self.demand(), key=lambda seat: seat.uid in self._stuck)
        turns = {seat.uid: place for place, seat in enumerate(asking)}
        parks = {uid: -1 if whom is None else turns[whom] for uid, whom in self._parks.items()}
        return RamOrder(turns, parks, {seat.uid: self._behind(seat) for seat in asking})

    def refused(self) -> Mapping[PodUid, str]:
        """See `Decided`. After `run`."""
        return {uid: why for uid, why in self._stuck.items() if why}

    def _behind(self, seat: SeatView) -> int:
        place = self._goes_to.get(seat.uid, seat.gpus)
        there = [s for s in self._view.seats if s.state in OCCUPYING and s.gpus & place]
        if _fits(seat, there, self._view, place):
            return 0
        parked = SeatState.PARKING
        left = (s for s in there if s.state is not parked and s.uid not in self._parks)
        return sum(self._size(one) for one in left)

    def _size(self, seat: SeatView) -> int:
        return self._view.park_bytes.get(seat.uid, 0)

    def _lacks_room(self, seat: SeatView) -> bool:
        if seat.uid in self._parks:
            return seat.uid in self._without_room
        return self._size(seat) > max(0, self._room)

    def _may_rest(self, seat: SeatView) -> bool:
        return not seat.forfeit and not self._lacks_room(seat)

    def _gets_room(self, seat: SeatView, whom: PodUid | None) -> bool:
        """Keep RAM for its park, for whose sake; whether there is room. Who asks first has it:
        what comes later must not take it, though it is not enough yet."""
        if seat.state not in _TO_BE_PARKED or seat.forfeit:
            return True
        if seat.uid not in self._parks:
            if self._lacks_room(seat):
                self._without_room.add(seat.uid)
            self._parks[seat.uid] = whom
            self._take_room(self._size(seat))
        return seat.uid not in self._without_room

    def _keep_way_up(self, seat: SeatView) -> None:
        """Keep RAM for its own state, too: a later park might never leave that again."""
        if seat.state in _OFFLOADED and seat.uid in self._parked:
            self._take_room(self._parked[seat.uid].size)

    def _take_room(self, size: int) -> None:
        if size:
            self._room -= size
            self._judged.clear()

    def demand(self) -> list[SeatView]:
        """Who may be served now, whose turn it is first."""
        asking = [s for s in self._view.seats if wants(s) and self._now >= s.not_before]
        return sorted(asking, key=self._rank)

    def _rank(self, seat: SeatView) -> tuple[int, float, float, float, float, str]:
        turns = takes_turns(seat, self._view)
        asks = _claim(seat, self._view).due if turns else asks_since(seat)
        if self._now >= asks + self._policy.longest_wait(seat):
            return 0, 0, 0, 0, asks, seat.uid
        last = seat.uid in self._view.last
        if turns:
            return 2, last, 0, *_claim(seat, self._view).place, seat.uid
        # Who can't be in time any more comes after those who can.
        start = _start_by(seat, asks)
        late = seat.within is not None and self._now > start
        return 1, -seat.priority, last, late, start, seat.uid

    def _aged(self, seat: SeatView) -> bool:
        turns = takes_turns(seat, self._view)
        asks = _claim(seat, self._view).due if turns else asks_since(seat)
        return self._now >= asks + self._policy.longest_wait(seat)

    def _waits_its_turn(self, seat: SeatView) -> bool:
        """Whether it wants its GPUs only for its turn's sake, and has not been kept out of it."""
        return takes_turns(seat, self._view) and not self._aged(seat)

    def _serve(self, seat: SeatView) -> None:
        starts = seat.state is SeatState.WAITING
        held = (self._held, self._held_for_starts) if starts else (self._held,)
        place = self._open_place(seat, held)
        if place is None:
            return
        if place != seat.gpus:
            seat = seat.on(place)
            self._goes_to[seat.uid] = place
        if seat.state not in _ENTERS and self._waits_its_turn(seat):
            if not self._lodged(seat) and not self._comes_up(seat, ()):
                self._stuck.setdefault(seat.uid, self._crowded(seat, ()))
            if seat.uid not in self._stuck:
                # Nobody's GPUs stand empty until its state is in RAM.
                self._next_turns.append(seat)
            return
        if self._fits_beside(seat, seat.gpus, (self._occupying, *held)):
            if not self._comes_up(seat, ()):
                self._stuck[seat.uid] = self._crowded(seat, ())
                return
            self._occupying.add(seat)
            self._changed(seat)
            self._keep_way_up(seat)
            if seat.state in _ENTERS:
                self._act(*_entry(seat))
            return
        self._make_room(seat)

    def _open_place(self, seat: SeatView, held: Collection[_Seats]) -> frozenset[GpuUuid] | None:
        """Where it is to be, if nothing is held there for older demand that leaves it no room."""
        alike = seat.vram, seat.group, id(seat.places), len(held)
        stuck = self._shut.get(alike) if seat.places else None
        if stuck is None:
            self._found.clear()
            place = self._place(seat, held) if seat.places else seat.gpus
            unclear = not self._unclear.isdisjoint(place)
            if not unclear and self._fits_beside(seat, place, held):
                return place
            # What is held only grows.
            stuck = self._shut[alike] = unclear or not _fits(seat, (), self._view, place)
        if stuck:
            self._stuck[seat.uid] = ""
        return None

    def _fits_beside(
        self, seat: SeatView, gpus: frozenset[GpuUuid], beside: Collection[_Seats]
    ) -> bool:
        """Whether the seat could be active on these GPUs beside all of those."""
        most, vram = self._view.active_slots.get(seat.group, 1), seat.vram
        for gpu in gpus:
            free = self._free.get(gpu)
            if free is None:
                return False
            need, many, slots = free if vram is None else vram, 0, float(most)
            for seats in beside:
                load = seats.loads.get(gpu)
                if load is not None:
                    need += load.bytes + load.whole * free
                    many += len(load.seats)
                    slots = min(slots, load.slots)
            if need > free or many >= slots:
                return False
        return True

    def _place(self, seat: SeatView, held: Collection[_Seats]) -> frozenset[GpuUuid]:
        """Of the places where it may be, the one where that does the least harm."""
        held = [seats for seats in held if seats.loads]
        there = (self._occupying, *held)
        places = [p for p in seat.places if self._unclear.isdisjoint(p)]
        free = [p for p in places if self._fits_beside(seat, p, there)]
        if free:
            return self._best(seat, {p: [s for t in there for s in t.on_any(p)] for p in free})
        open_to_it = [p for p in places if self._fits_beside(seat, p, held)]
        if len(open_to_it) < 2:
            return (open_to_it or places or seat.places)[0]
        like, start = self._like(seat), latest_start(seat)
        least, found = (math.inf, math.inf), open_to_it[0]
        for place in open_to_it:
            harm = self._harm(seat, place, like, start)
            if harm < least:
                least, found = harm, place
            if least <= _NO_HARM:
                break
        if least[0] == 0:
            self._best_until(seat, start - sum([v.parks_in for v in self._found[found]]))
        return found

    def _best(
        self, seat: SeatView, free: Mapping[frozenset[GpuUuid], Collection[SeatView]]
    ) -> frozenset[GpuUuid]:
        """Of places with room, the one where it suits best beside those who are there."""
        start = latest_start(seat)
        matters = seat.within is not None and self._now <= start
        # Those who are on their way in come first, over the same bus.
        until = {
            place: start - sum([one.wakes_in for one in beside if one.state in _WAKES])
            for place, beside in free.items()
        }
        best = max(free, key=lambda p: _suits(free[p], not matters or self._now <= until[p]))
        self._best_until(seat, until[best])
        return best

    def _best_until(self, seat: SeatView, when: float) -> None:
        """After that another place may suit the seat better, unless it is too late already."""
        if seat.within is not None and self._now <= when:
            self.places_until = min(self.places_until, when)

    def _harm(
        self, seat: SeatView, place: frozenset[GpuUuid], like: _Like, start: float
    ) -> tuple[float, float]:
        """What making room there would do: it can't be now, or would be too late; and what it costs
        those who must leave."""
        judged = self._judged.get(place)
        if judged is None:
            judged = self._judged[place] = self._recalled(place)
        harm = judged.get(like)
        if harm is None:
            harm = judged[like] = self._judge(seat, place)
        victims, rank, cost, parks = harm
        self._found[place] = victims
        if not rank and seat.within is not None and start - parks < self._now <= start:
            rank = 1  # it would be in time but for these parks
        return rank, cost

    def _recalled(self, place: frozenset[GpuUuid]) -> Judged:
        if self._recall is None or not self._altered.isdisjoint(place):
            return {}
        return self._recall(place, tuple(self._occupying.on_any(place)), self._now)

    def _judge(self, seat: SeatView, place: frozenset[GpuUuid]) -> _Harm:
        victims = self._victims(seat, place)
        if not victims:
            return victims, 3, 0.0, 0.0
        able = all(v.state in _LEAVES or self._may_leave(v, seat) for v in victims)
        rank = 0 if able else 2
        if seat.turn is not None and not self._rests_beside(seat, victims):
            rank = 3  # its own state would have to leave RAM first, which its next turn brings back
        return victims, rank, _value(victims), sum([v.parks_in for v in victims])

    def _like(self, seat: SeatView) -> _Like:
        """For seats of which this is the same, others leave a place alike."""
        if seat.turn is not None:
            return (seat.uid,)
        # Busy ones may leave for it whose parks take no less than this.
        soon: float | None = None
        if seat.within is not None:
            start, parks = latest_start(seat), self._parks_in
            first = bisect_left(parks, True, key=lambda park: self._now >= start - park)
            soon = parks[first] if first < len(parks) else math.inf
        return seat.vram, seat.group, seat.priority, self._aged(seat), soon

    def _changed(self, seat: SeatView) -> None:
        """Others' places on its GPUs are judged again."""
        self._altered |= seat.gpus
        for place in [p for p in self._judged if not p.isdisjoint(seat.gpus)]:
            del self._judged[place]

    def _keep_spare(self) -> None:
        """Empty places whose seats are idle, so that whoever is called next waits for no park.
        Where RAM is short, GPU memory holds what has no room there."""
        share = self._policy.spare if self._may_be_called() else 0
        # Mostly all seats have the same: each is looked at once.
        several = {id(seat.places): seat.places for seat in self._view.seats} if share else {}
        every = {place for places in several.values() for place in places}
        want = len(every) // share if share else 0
        tiers, found = self._view.tiers, []
        parked = tiers.seats if tiers and want else ()
        called = (one for one in parked if one.tier is not Tier.RAM and one.calls >= _CALLED)
        below = sum(one.size for one in called)
        for place in every if want else ():
            stay = self._resting(place)
            if stay is not None:
                # One that is empty already comes before one whose seats nobody calls.
                found.append((_value(stay) if stay else -1.0, sorted(place), stay))
        for _, _, stay in sorted(found, key=lambda one: one[:2])[:want]:
            # Room in RAM is first for those below it; and half of a place serves nobody.
            if sum(map(self._size, stay)) + below > self._room:
                continue
            for seat in sorted(stay, key=_parks_in):
                if self._may_rest(seat) and self._gets_room(seat, None):
                    self._needed.add(seat.uid)
                    why = "its GPUs are kept for whoever is called next"
                    self._send_away(seat, why, at_once=True)

    def _may_be_called(self) -> bool:
        """Whether a spare place would serve anybody: one who isn't in GPU memory and is called now
        and then."""
        return self._view.absent or any(
            s.calls > 0 and s.places and s.state not in OCCUPYING for s in self._view.seats
        )

    def _resting(self, place: frozenset[GpuUuid]) -> list[SeatView] | None:
        """Who has yet to be parked so that the place is empty; None if somebody there may not be,
        as nobody asks for their GPUs yet."""
        found = []
        for seats in (self._occupying, self._held):
            for seat in seats.on_any(place):
                if seat.state is SeatState.PARKING:
                    continue
                used = seat.in_flight or seat.waiting or seat.turn is not None
                if used or seat.state not in _SERVES or seat.unparkable:
                    return None
                if self._now < seat.stays_until:
                    return None
                found.append(seat)
        return found

    def _make_room(self, seat: SeatView) -> None:
        if self._waits_its_turn(seat) and not _fits(seat, self._next_turns, self._view):
            return
        victims = self._lodged(seat)
        states = {victim.state for victim in victims}
        if self._waits_its_turn(seat) and not self._is_over(victims):
            if seat.uid not in self._stuck:
                self._next_turns.append(seat)
            return
        if not victims or SeatState.FAILED in states:
            self._stuck.setdefault(seat.uid, "")
            return
        if SeatState.STARTING in states:
            # A start has no known end: requests of others continue, but no further start may
            # come in between, so that this seat waits for one start at most.
            self._held_for_starts.add(seat)
            self._stuck[seat.uid] = ""
            return
        self._held.add(seat)
        self._changed(seat)
        # Who has no room in RAM yet continues serving.
        able = [victim for victim in victims if self._gets_room(victim, seat.uid)]
        self._keep_way_up(seat)
        self._needed.update(victim.uid for victim in able)
        settled = not states & {SeatState.WAKING, SeatState.WAITING, *TIER_OF}
        together = settled and all(
            self._may_leave(v, seat) for v in victims if v.state is SeatState.ACTIVE
        )
        for victim in able:
            self._evict(victim, seat, together=together)

    def _lodged(self, seat: SeatView) -> list[SeatView]:
        """Its victims in the order of their parks, if it can come up after these; else none, and it
        is told why."""
        found = self._found.get(seat.gpus)
        first = victims = self._victims(seat) if found is None else found
        if victims and not self._comes_up(seat, victims):
            there = self._occupying.on_any(seat.gpus)
            bars = frozenset(one.uid for one in there if not self._comes_up(seat, (one,)))
            victims = self._victims(seat, without=bars)
            if not victims or not self._comes_up(seat, victims):
                self._stuck[seat.uid] = self._crowded(seat, first)
                return []
        return sorted(victims, key=self._way_out)

    def _way_out(self, victim: SeatView) -> tuple[bool, int, float]:
        """Who may leave RAM again is parked before those who fill it for good; large ones first.
        Where RAM isn't counted, who leaves soonest, since who is called meanwhile waits for it."""
        one = self._parked.get(victim.uid)
        if one is None:
            return False, 0, victim.parks_in
        return one.deepest is Tier.RAM, -one.size, victim.parks_in

    def _comes_up(self, seat: SeatView, victims: Collection[SeatView]) -> bool:
        """Whether RAM takes these, and has room for the seat's own state after that."""
        tiers, room = self._view.tiers, self._view.park_room
        if tiers is None or room is None:
            return True
        own = self._parked.get(seat.uid)
        if seat.state not in TIER_OF or not any(one is own for one in tiers.seats):
            own = None  # the tiers, which are of the last decision, may have it awake still
        parks = self._parks_of(victims)
        need = sum(one.size for one in parks)
        if (own is None or own.tier is Tier.RAM) and need <= room:
            return True
        return lodges(replace(tiers, free_ram=room), parks, self._now, own.uid if own else None)

    def _rests_beside(self, seat: SeatView, victims: Collection[SeatView]) -> bool:
        """Whether RAM holds the seat's own state and those of its victims at the same time."""
        tiers, room = self._view.tiers, self._view.park_room
        own = self._parked.get(seat.uid)
        if tiers is None or room is None or own is None or seat.state not in TIER_OF:
            return True
        risen = replace(own, tier=Tier.RAM, to=None, not_before=math.inf)
        there = tuple(risen if one is own else one for one in tiers.seats)
        room -= 0 if Tier.RAM in (own.tier, own.to) else own.size
        parks = self._parks_of(victims)
        return lodges(replace(tiers, seats=there, free_ram=room), parks, self._now)

    def _parks_of(self, victims: Iterable[SeatView]) -> list[Parked]:
        """What RAM is to take once these are parked, in their order. One that wakes just now
        leaves the room that it will need again."""
        return [
            self._parked[v.uid]
            for v in sorted(victims, key=self._way_out)
            if v.state not in _IN_RAM and v.uid in self._parked and not v.forfeit
        ]

    def _crowded(self, seat: SeatView, victims: Collection[SeatView]) -> str:
        """Why RAM keeps it out, as a sentence."""
        can = "raise park_bytes or nvme_bytes, let seats leave RAM (kyb.ai/park-tier), or move one"
        names = ", ".join(sorted(victim.name for victim in victims))
        own = self._parked[seat.uid].size / _GIB if seat.uid in self._parked else 0.0
        if not victims:
            why = f"the host's memory has no room for its {own:.1f} GiB, and can't be given any"
        elif seat.state is SeatState.WAITING:
            why = f"seat {names} would have to be parked for it, which the host's memory can't take"
        else:
            why = f"seat {names} would be parked for it, and then the host's memory has no room for"
            why += f" its {own:.1f} GiB"
        return f"{why}; {can}"

    def _is_over(self, victims: Collection[SeatView]) -> bool:
        """Whether those who must leave for the next turn have left, or may leave now."""
        leaving = (SeatState.PARKING, SeatState.DRAINING)
        return bool(victims) and all(
            v.state in leaving or (v.state is SeatState.ACTIVE and self._turn_is_over(v))
            for v in victims
        )

    def _turn_is_over(self, victim: SeatView) -> bool:
        """Whether it must give way to those who take turns."""
        if self._now < victim.stays_until:
            return False
        if victim.turn is not None:
            return self._now >= _claim(victim, self._view).until
        idle = victim.idle_since
        rest = max(self._policy.idle_after, _claim(victim, self._view).rest)
        return idle is not None and self._now >= idle + rest

    def _victims(
        self,
        seat: SeatView,
        place: frozenset[GpuUuid] | None = None,
        without: Collection[PodUid] = (),
    ) -> list[SeatView]:
        """The fewest seats, in order of preference, without which this one fits; or none.
        `without`: those who are no choice."""
        gpus, beside = place or seat.gpus, (self._occupying, self._held)
        there = self._occupying.on_any(gpus)
        candidates = [s for s in there if s.uid not in without and self._yields(s, seat)]
        if len(candidates) > 1:
            candidates.sort(key=lambda candidate: self._preference(candidate, seat))
        crowd = _Crowd(seat, gpus, beside, self._free, self._view.active_slots)
        chosen: list[SeatView] = []
        for candidate in candidates:
            if crowd.fits():
                break
            chosen.append(candidate)
            crowd.leaves(candidate)
        else:
            if not crowd.fits():
                return []
        for candidate in chosen[-2::-1]:  # without the last it did not fit
            crowd.comes_back(candidate)
            if crowd.fits():
                chosen = [s for s in chosen if s is not candidate]
            else:
                crowd.leaves(candidate)
        return chosen

    def _yields(self, victim: SeatView, seat: SeatView) -> bool:
        """Whether it may be asked to leave for this one: work of a higher priority is not."""
        if victim.state not in _SERVES:
            return True
        if victim.unparkable:
            return False
        if not (victim.in_flight or victim.waiting):
            return True
        turns = takes_turns(seat, self._view)
        if turns and victim.turn is not None:
            return True  # requests make nobody's turn longer
        ranks_higher = turns or victim.priority > seat.priority
        return not ranks_higher or self._aged(seat)

    def _preference(self, seat: SeatView, whom: SeatView) -> tuple[int, int, float, float, str]:
        rank = _LEAVE_IN_TURN.get(seat.state, 4)
        if seat.state is SeatState.ACTIVE and self._lacks_room(seat):
            rank = 3
        elif seat.state is SeatState.ACTIVE:
            rank = 2 if self._may_leave(seat, whom) else 3
        merits = self._merits.get(seat.uid)
        if merits is None:
            busy, worth = int(seat.in_flight + seat.waiting > 0), _worth(seat) / (seat.vram or 1)
            merits = self._merits[seat.uid] = busy, worth, seat.active_since or 0.0, seat.uid
        return rank, *merits

    def _may_leave(self, seat: SeatView, whom: SeatView) -> bool:
        if self._waits_its_turn(whom):
            return self._turn_is_over(seat)
        # Asked for each place of each demander; within a decision the answer stays.
        if seat.uid not in self._able:
            self._able[seat.uid] = self._leaves(seat)
        able = self._able[seat.uid]
        if able is not None:
            return able
        if whom.within is None or self._aged(whom):
            return True
        # Requests end by themselves while this one can wait.
        return self._now >= latest_start(whom) - seat.parks_in

    def _leaves(self, seat: SeatView) -> bool | None:
        """Whether it may leave for who doesn't take turns; None: for who can't wait until its
        requests end."""
        since, idle = seat.active_since, seat.idle_since
        if self._now < seat.stays_until:
            return False
        resided = since is None or self._now >= since + self._policy.residency(seat)
        if seat.turn is not None:
            return resided  # without requests it isn't idle
        if seat.in_flight or seat.waiting:
            return None if resided else False
        return resided or (idle is not None and self._now >= idle + self._policy.idle_after)

    def _evict(self, victim: SeatView, seat: SeatView, *, together: bool) -> None:
        self._send_away(victim, f"seat {seat.name} needs its GPUs", at_once=together)

    def _send_away(self, victim: SeatView, why: str, *, at_once: bool) -> None:
        """The next step on its way out of GPU memory, if it is time for one."""
        if any(action.uid == victim.uid for action in self._actions):
            return
        if victim.state is SeatState.ACTIVE and at_once:
            self._act(ActionKind.DRAIN, victim, why)
        elif victim.state is SeatState.DRAINING and victim.drained:
            self._act(ActionKind.PARK, victim, f"{why}, and nothing is in flight")
        elif victim.state is SeatState.DRAINING and self._overdue(victim):
            self._act(
                ActionKind.REVOKE,
                victim,
                f"{why}, and requests were still in flight after {self._policy.drain_limit:g} s",
            )

    def _overdue(self, seat: SeatView) -> bool:
        since = seat.drain_since
        return since is not None and self._now >= since + self._policy.drain_limit

    def _act(self, kind: ActionKind, seat: SeatView, reason: str) -> None:
        where = seat.gpus if seat.places and kind in _ENTERING else _NOWHERE
        self._actions.append(Action(kind, seat.uid, reason, where))
