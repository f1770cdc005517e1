"""In which tier each parked seat's state should be: one pure decision over all of a node's seats.

RAM is handed out in the order of turns (`core.swap.swap.ram_order`): for each seat that wants to be
awake first what must be parked for it has its room, then its own state. Nobody whose turn comes
later fills what an earlier one waits for, so each gets its room in the end. Who has been quiet
longest leaves first, down to NVMe and from there to the object store. A seat that is wake-requested
comes up at once, while whoever has its GPUs continues computing. Nothing goes deeper than its pod
allows, nothing is moved back and forth within the minimum residency, and a copy is dropped only
where another one is verified. Bytes of what is on its way count in both tiers until it is there.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kybernate.types import PodUid

_GIB = 1 << 30
_FIRST, _LAST = float("-inf"), float("inf")
"""Turns of needs: before that of any wake-requested seat, and after."""
_NEXT = {Tier.RAM: Tier.NVME, Tier.NVME: Tier.OBJECT}
_LOOKED_AT = 12
"""So many of the largest are looked at for those that the next tier has just room for."""
_DEPTH = {Tier.RAM: 0, Tier.NVME: 1, Tier.OBJECT: 2}


class Step(StrEnum):
    """What to do with a seat's state."""

    DUMP = "dump"
    """RAM to NVMe: the processes are written down and ended."""
    RESTORE = "restore"
    """NVMe to RAM: the processes are recreated, frozen."""
    PACK = "pack"
    """A verified copy of what is on NVMe goes into the object store."""
    FETCH = "fetch"
    """A verified copy of what is in the object store comes back to NVMe."""
    DROP = "drop"
    """The copy on NVMe goes: another one is verified."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A parked seat. All times are of one monotonic clock, in seconds; sizes in bytes.

    `size` is what it takes in RAM, `saved` as an artifact, 0 while unknown. `tier` is where it
    rests, `to` where it is on its way to. `used`: when it was last in use; `calls`: how often per
    hour requests are expected for it. `moved_at`: when it last changed tiers. `turn`: its place
    among those that are wake-requested, 0 for the next, None if it isn't. `asked`: the tier that an
    operator wants it in. `deepest`: how deep its pod lets it go. `copies`: tiers that hold a
    verified artifact of it. Before `not_before` nothing is tried with it. `behind`: bytes that
    must be parked before it can wake, besides what is `Coming`. `idle`: seconds without use after
    which it leaves a tier, instead of the policy's; `timely`: the deepest tier to which it goes for
    want of use alone. `namespace`: whose it is. `prefetch`: calls per hour from which on it is to
    be in RAM ahead of need, instead of the policy's; 0: always. `stranded`: a GPU of it is lost, so
    nobody could say that the tree, once recreated, has no memory there.
    """

    uid: PodUid
    name: str
    size: int
    tier: Tier = Tier.RAM
    to: Tier | None = None
    saved: int = 0
    used: float = 0.0
    calls: float = 0.0
    moved_at: float | None = None
    turn: int | None = None
    asked: Tier | None = None
    deepest: Tier = Tier.OBJECT
    copies: frozenset[Tier] = frozenset()
    not_before: float = 0.0
    behind: int = 0
    idle: Mapping[Tier, float] = field(default_factory=dict)
    timely: Tier = Tier.OBJECT
    namespace: str = ""
    prefetch: float | None = None
    stranded: bool = False

    def idle_limit(self, policy: TierPolicy) -> float | None:
        """Seconds without use after which it goes one tier deeper; None: it stays."""
        below = _NEXT.get(self.tier)
        if below is None or deeper(below, self.timely):
            return None
        return self.idle.get(self.tier, policy.idle.get(self.tier))

    def is_likely(self, policy: TierPolicy) -> bool:
        """Whether it is to be in RAM ahead of need, as long as that has more room than it needs."""
        return self.calls >= (policy.prefetch_calls if self.prefetch is None else self.prefetch)

    def cost(self, tier: Tier) -> int:
        """Bytes that it takes in this tier."""
        return self.size if tier is Tier.RAM else self.saved or self.size


@dataclass(frozen=True, slots=True)
class Coming:
    """A seat in GPU memory that is to be parked as soon as RAM has room for its `size` bytes;
    `turn`: that of the seat which waits for it, -1 before all of them."""

    uid: PodUid
    name: str
    size: int
    turn: int = -1


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """Seconds. `min_residency`: a state that was moved stays as long. `idle`: after so long in a
    tier without use it goes one deeper; a tier that isn't named keeps it until room is needed.
    `half_life`: after so long a use counts half. `prefetch_calls`: how many calls per hour must be
    expected for a state to be brought into RAM before a request for it."""

    min_residency: float = 5.0
    idle: Mapping[Tier, float] = field(default_factory=dict)
    half_life: float = 600.0
    prefetch_calls: float = math.inf


@dataclass(frozen=True, slots=True)
class TierView:
    """A node. `limits`: bytes that each tier may hold; one that isn't named isn't there.

    `free_ram`: bytes that the host has left for parked seats besides, None if nobody knows.
    `parking`: seats on their way out of GPU memory, whose bytes `limits` leave out already.
    `awake`: those in GPU memory, as they are once parked; only `lodges` looks at them. `quotas`:
    bytes of RAM that a namespace's parked seats may take; one that isn't named may take all.
    """

    seats: tuple[Parked, ...]
    limits: Mapping[Tier, int]
    coming: tuple[Coming, ...] = ()
    free_ram: int | None = None
    parking: tuple[Parked, ...] = ()
    awake: tuple[Parked, ...] = ()
    quotas: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RamOrder:
    """Who gets the host's memory next. `turns`: the place of each seat that asks for its turn, 0
    for the next; `parks`: the place at which each seat that is to be parked needs room in RAM: that
    of the seat which waits for it, -1 if it must leave in any case. `behind`: bytes that others
    must park before a seat can wake, where that isn't decided yet."""

    turns: Mapping[PodUid, int]
    parks: Mapping[PodUid, int]
    behind: Mapping[PodUid, int]

    def given_to(self, view: TierView, asking: Collection[PodUid]) -> TierView:
        """The node with everybody's turn. `asking`: the seats that want theirs, of which those that
        have none here come last. The node may have gone on since: who was to be parked and isn't
        in GPU memory any more needs no room for that."""
        awake = {one.uid: one for one in view.awake}
        coming = [
            Coming(uid, awake[uid].name, awake[uid].size, turn)
            for uid, turn in self.parks.items()
            if uid in awake
        ]
        last = len(self.turns)

        def with_turn(one: Parked) -> Parked:
            turn = self.turns.get(one.uid, last) if one.uid in asking else None
            behind = self.behind.get(one.uid, 0)
            same = (turn, behind) == (one.turn, one.behind)
            return one if same else replace(one, turn=turn, behind=behind)

        return replace(
            view,
            seats=tuple(map(with_turn, view.seats)),
            coming=tuple(coming),
            parking=tuple(map(with_turn, view.parking)),
        )


@dataclass(frozen=True, slots=True)
class TierAction:
    """One thing to do, and why, as a sentence for people."""

    step: Step
    uid: PodUid
    reason: str


def decide(view: TierView, policy: TierPolicy, now: float) -> tuple[TierAction, ...]:
    """What to begin now, at most one step for a seat."""
    return _Decision(view, policy, now).run()


def lodges(
    view: TierView, parks: Iterable[Parked], now: float, riser: PodUid | None = None
) -> bool:
    """Whether RAM takes these seats, one after the other, and has room for the riser's state after
    that: now, or once others have left that may leave, when they have come and rested. The riser
    may have to leave RAM itself meanwhile."""
    return _Decision(view, TierPolicy(min_residency=0.0), now).lodges(parks, riser)


def next_check(view: TierView, policy: TierPolicy, now: float) -> float | None:
    """The next time at which `decide` may answer differently without an event, or None."""
    times = [time for seat in view.seats for time in _turning_points(seat, policy)]
    return min((time for time in times if time > now), default=None)


def at_rest(view: TierView, policy: TierPolicy, now: float, asking: Collection[PodUid]) -> bool:
    """Whether `decide` begins nothing, whoever's turn it is: RAM has room for all that are awake,
    and everybody may stay where they are. `asking`: who may ask for its turn and isn't in RAM.
    False where that isn't clear at once: whoever has no answer here decides (ADR 248)."""
    if any(seat.namespace in view.quotas for seat in view.seats):
        return False
    room = view.limits.get(Tier.RAM, 0) - used(view.seats, Tier.RAM)
    room = room if view.free_ram is None else min(room, view.free_ram)
    if room < sum([one.size for one in view.awake]):
        return False
    return all(_stays(seat, policy, now, asking) for seat in view.seats)


def _stays(seat: Parked, policy: TierPolicy, now: float, asking: Collection[PodUid]) -> bool:
    if seat.to is not None:
        return True
    if seat.tier is not Tier.RAM and (seat.uid in asking or seat.is_likely(policy)):
        return False
    if _is_left(seat):
        return False
    limit = seat.idle_limit(policy)
    idle = limit is not None and now >= _idle_since(seat) + limit
    return seat.asked in (None, seat.tier) and not idle


def heat(seat: Parked, policy: TierPolicy, now: float) -> float:
    """How often it is likely to be needed, for each byte of its tier that it takes; the coldest
    leaves first. So as few calls as may be find a state below, whatever its size."""
    likely = seat.calls + math.exp2(-max(0.0, now - seat.used) / policy.half_life)
    return likely / max(1, seat.cost(seat.tier))


def used(seats: Iterable[Parked], tier: Tier) -> int:
    """Bytes of the tier that are taken, or will be by what is on its way."""
    return sum(seat.cost(tier) for seat in seats if _takes(seat, tier))


def deeper(tier: Tier, other: Tier) -> bool:
    """Whether the first tier is below the other."""
    return _DEPTH[tier] > _DEPTH[other]


def _takes(seat: Parked, tier: Tier) -> bool:
    return tier in (seat.tier, seat.to) or tier in seat.copies


def _turning_points(seat: Parked, policy: TierPolicy) -> Iterable[float]:
    yield seat.not_before
    if seat.moved_at is not None:
        yield seat.moved_at + policy.min_residency
    limit = seat.idle_limit(policy)
    if limit is not None:
        yield _idle_since(seat) + limit


def _idle_since(seat: Parked) -> float:
    return max(seat.used, seat.moved_at if seat.moved_at is not None else seat.used)


_LEADS = {
    Step.DUMP: Tier.NVME,
    Step.RESTORE: Tier.RAM,
    Step.PACK: Tier.OBJECT,
    Step.FETCH: Tier.NVME,
    Step.DROP: Tier.OBJECT,
}


class _Decision:
    """One run of `decide`. `_room` is what each tier has left, with what was decided so far;
    `_soon` also counts what is on its way out of it."""

    def __init__(self, view: TierView, policy: TierPolicy, now: float) -> None:
        self._view = view
        self._policy = policy
        self._now = now
        self._actions: list[TierAction] = []
        self._begun: set[PodUid] = {seat.uid for seat in view.seats if seat.to is not None}
        self._room = {tier: limit - used(view.seats, tier) for tier, limit in view.limits.items()}
        if view.free_ram is not None and Tier.RAM in self._room:
            self._room[Tier.RAM] = min(self._room[Tier.RAM], view.free_ram)
        self._soon = dict(self._room)
        for seat in view.seats:
            if seat.to is not None and deeper(seat.to, seat.tier):
                self._frees(seat)

    def run(self) -> tuple[TierAction, ...]:
        self._hand_out()
        self._obey()
        self._keep_to_quotas()
        self._let_sink()
        self._prefetch()
        self._clear_away()
        return tuple(self._actions)

    def lodges(self, parks: Iterable[Parked], riser: PodUid | None) -> bool:
        first = (replace(s, turn=0 if s.uid == riser else None) for s in self._all())
        self._stand(map(_arrive, first))
        for one in parks:
            if not self._will_have(Tier.RAM, one.size, _FIRST):
                return False
            self._take(Tier.RAM, one.size)
            self._stand((*self._view.seats, replace(one, tier=Tier.RAM)))
        return riser is None or self._rises(riser)

    def _rises(self, riser: PodUid) -> bool:
        (seat,) = (one for one in self._view.seats if one.uid == riser)
        while seat.tier is not Tier.RAM:
            above = Tier.NVME if seat.tier is Tier.OBJECT else Tier.RAM
            need = _needs(seat, above)
            if seat.stranded or not self._will_have(above, need, _FIRST, seat):
                return False
            self._take(above, need)
            seat = replace(seat, tier=above)
        return True

    def _will_have(self, tier: Tier, need: int, turn: float, whose: Parked | None = None) -> bool:
        """Have room in the tier, step after step, each of which makes room for the next."""
        while not self._clear(tier, need, turn, "", whose):
            if not self._actions:
                return False
            self._come_to_rest()
        self._come_to_rest()
        return True

    def _come_to_rest(self) -> None:
        """As it is once all that was decided is done."""
        goes = {action.uid: _LEADS[action.step] for action in self._actions}
        self._stand(_arrive(replace(s, to=goes.get(s.uid, s.to))) for s in self._view.seats)

    def _stand(self, seats: Iterable[Parked]) -> None:
        """These are all, and nothing is on its way."""
        self._view = replace(self._view, seats=tuple(seats), parking=())
        self._actions, self._begun, self._room = [], set(), dict(self._soon)

    def _all(self) -> tuple[Parked, ...]:
        return *self._view.seats, *self._view.parking

    # --- what is needed -------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Whose turn it is first has its room first; what must be parked for a seat before the
        seat itself."""
        called = [seat for seat in self._view.seats if seat.turn is not None]
        needs: list[Coming | Parked] = [*self._view.coming, *called]
        for one in sorted(needs, key=_place):
            if isinstance(one, Coming):
                self._make_way(one)
            else:
                self._rise(one, "a wake is requested", one.turn or 0)

    def _make_way(self, one: Coming) -> None:
        """Room in RAM for a seat that is to leave GPU memory. Until it has, the seat that waits
        for its GPUs doesn't get on, so even that may have to leave RAM for a while."""
        why = f"{one.name} is to be parked and RAM has no room for its {_gib(one.size)}"
        if self._clear(Tier.RAM, one.size, one.turn, why) or self._will_clear(
            Tier.RAM, one.size, one.turn
        ):
            self._take(Tier.RAM, one.size)

    def _obey(self) -> None:
        """Where an operator wants it; a call comes first."""
        for seat in self._resting():
            if seat.asked is None or seat.turn is not None or seat.asked is seat.tier:
                continue
            if deeper(seat.asked, seat.tier):
                self._sink(seat, f"an operator asked for tier {seat.asked}", _LAST)
            else:
                self._rise(seat, f"an operator asked for tier {seat.asked}", _LAST)

    def _keep_to_quotas(self) -> None:
        """What a namespace's seats take of RAM beyond its quota leaves, the coldest first; no
        seat that is wake-requested, or about to take its turn. A quota refuses no park: others
        would wait for GPUs that somebody without a right to RAM holds."""
        # A cluster has Shares of many namespaces that have no seat here.
        here = {seat.namespace for seat in self._view.seats} & self._view.quotas.keys()
        for namespace in sorted(here):
            beyond = self._taken_by(namespace) - self._view.quotas[namespace]
            for seat in self._coldest(self._resting()):
                mine = seat.namespace == namespace and seat.tier is Tier.RAM
                if beyond > 0 and mine and self._movable(seat, _LAST):
                    why = f"namespace {namespace} has {_gib(beyond)} of RAM beyond its quota"
                    beyond -= seat.size if self._sink(seat, why, _LAST) else 0

    def _taken_by(self, namespace: str) -> int:
        """Bytes of RAM that a namespace's parked seats take, with those that come, without those
        that leave."""
        goes = {action.uid: _LEADS[action.step] for action in self._actions}
        here = [s for s in self._view.seats if goes.get(s.uid, s.to or s.tier) is Tier.RAM]
        return sum(s.size for s in (*here, *self._view.parking) if s.namespace == namespace)

    def _let_sink(self) -> None:
        """What nobody has used for long goes deeper."""
        for seat in self._coldest(self._resting()):
            limit = seat.idle_limit(self._policy)
            idle = self._now - _idle_since(seat)
            # What comes up ahead of need would come up again.
            stays = seat.tier is Tier.RAM and seat.is_likely(self._policy)
            if limit is not None and idle >= limit and not stays and self._movable(seat, _LAST):
                self._sink(seat, f"nobody has used it for {idle:.0f} s", _LAST)

    def _prefetch(self) -> None:
        """What is likely to be requested comes up while there is more room than it needs."""
        likely = [
            seat
            for seat in self._resting()
            if seat.is_likely(self._policy) and seat.asked is None and self._rested(seat)
        ]
        for seat in sorted(likely, key=lambda one: (-one.calls, one.uid)):
            most = self._view.quotas.get(seat.namespace, math.inf)
            if self._taken_by(seat.namespace) + seat.size > most:
                continue
            if deeper(seat.tier, Tier.RAM) and self._room.get(Tier.RAM, 0) >= 2 * seat.size:
                why = f"ahead of need: {seat.calls:.1f} calls per hour are expected"
                self._rise(seat, why, _LAST)

    def _clear_away(self) -> None:
        """What is left on NVMe of a seat that is in the object store goes: it could not be dropped
        before."""
        for seat in self._resting():
            if _is_left(seat) and seat.turn is None and self._now >= seat.not_before:
                why = "it is left on NVMe; its copy in the object store is verified"
                self._begin(Step.DROP, seat, why)

    # --- one seat -------------------------------------------------------------------------------

    def _rise(self, seat: Parked, why: str, turn: float) -> None:
        waits = seat.stranded or self._now < seat.not_before
        if seat.uid in self._begun or seat.tier is Tier.RAM or waits:
            return
        if seat.tier is Tier.OBJECT:
            self._fetch(seat, why, turn)
            return
        if Tier.RAM not in self._room:
            return
        # Those who have its GPUs must be parked before it can use them: what it fills must not
        # keep them from it.
        need = seat.size + seat.behind
        words = f"{seat.name} needs {_gib(need)} of RAM: {why}"
        if not self._clear(Tier.RAM, need, turn, words, seat):
            if self._will_clear(Tier.RAM, need, turn, seat):
                self._take(Tier.RAM, need)
            return
        if self._room[Tier.RAM] >= need:
            self._begin(Step.RESTORE, seat, why)
            self._take(Tier.RAM, seat.size)
        else:
            # What leaves for it must not be followed by those whose turn comes later.
            self._take(Tier.RAM, need)

    def _fetch(self, seat: Parked, why: str, turn: float) -> None:
        need = seat.cost(Tier.NVME)
        if Tier.NVME in seat.copies:
            self._begin(Step.FETCH, seat, why)  # what it takes there counts already
        elif self._clear(Tier.NVME, need, turn, why, seat):
            if self._room[Tier.NVME] >= need:
                self._begin(Step.FETCH, seat, why)
            self._take(Tier.NVME, need)
        elif self._will_clear(Tier.NVME, need, turn, seat):
            self._take(Tier.NVME, need)

    def _sink(self, seat: Parked, why: str, turn: float) -> bool:
        """One tier deeper, for the need of this turn; whether that is under way or done."""
        if seat.uid in self._begun or self._now < seat.not_before:
            return False
        below = Tier.NVME if seat.tier is Tier.RAM else Tier.OBJECT
        if seat.tier is Tier.OBJECT or below not in self._room or deeper(below, seat.deepest):
            return False
        if seat.tier is Tier.NVME and below in seat.copies:
            self._begin(Step.DROP, seat, f"{why}; its copy in the object store is verified")
            self._frees(seat)
            self._room[Tier.NVME] += seat.cost(Tier.NVME)
            return True
        need = _needs(seat, below)
        if not self._clear(below, need, turn, why, seat) or self._room[below] < need:
            return False
        self._begin(Step.DUMP if below is Tier.NVME else Step.PACK, seat, why)
        self._take(below, need)
        self._frees(seat)
        return True

    def _clear(
        self, tier: Tier, need: int, turn: float, why: str, whose: Parked | None = None
    ) -> bool:
        """Have `need` bytes free in the tier, now or soon. Nothing is moved in vain."""
        if need <= self._soon.get(tier, 0):
            return True
        for seat in self._those_to_go(tier, need - self._soon.get(tier, 0), turn, whose):
            self._sink(seat, why, turn)
        return need <= self._soon.get(tier, 0)

    def _those_to_go(
        self, tier: Tier, lacking: int, turn: float, whose: Parked | None
    ) -> list[Parked]:
        """Who leaves the tier so that no more bytes are lacking, in the order of candidates where
        the next tier has room for them, else whoever it has room for; empty if nobody."""
        candidates = self._candidates(tier, turn, whose)
        room = free = self._room_for_them(tier, turn, whose)
        short, chosen = lacking, []
        for seat in candidates:
            need = _needs(seat, _NEXT[tier])
            if short > 0 and need <= free:
                chosen.append(seat)
                free, short = free - need, short - seat.cost(tier)
        if short <= 0:
            return self._fewest(chosen, -short, tier)
        largest = sorted(candidates, key=lambda seat: (-seat.cost(tier), seat.uid))
        return _some(largest[:_LOOKED_AT], lacking, room, tier) or []

    def _room_for_them(self, tier: Tier, turn: float, whose: Parked | None) -> float:
        """Bytes that may leave the tier: for the next one, and for what leaves that in turn."""
        if tier is Tier.NVME:
            return math.inf  # where there is a copy, or if not, is for each of them to say
        below = self._candidates(Tier.NVME, turn, whose)
        room = self._soon.get(Tier.NVME, 0)
        if below and Tier.OBJECT in self._room:
            room += sum(seat.cost(Tier.NVME) for seat in below)
        return room

    def _will_clear(self, tier: Tier, need: int, turn: float, whose: Parked | None = None) -> bool:
        """Whether the tier has so much room once those have rested that moved lately, or that are
        on their way. It is kept until then: else others could come meanwhile, and need rest in
        their turn, for ever."""
        now = self._view, self._policy, self._actions, self._begun, self._room, self._soon
        self._view = replace(self._view, seats=self._all())
        self._policy = replace(self._policy, min_residency=0.0)
        self._soon = dict(self._soon)
        self._come_to_rest()
        try:
            return self._will_have(tier, need, turn, whose)
        finally:
            self._view, self._policy, self._actions, self._begun, self._room, self._soon = now

    def _fewest(self, chosen: list[Parked], spare: int, tier: Tier) -> list[Parked]:
        """Without those that a later one made unnecessary; the warmest of them stay first."""
        kept = list(chosen)
        for seat in reversed(chosen[:-1]):
            if seat.cost(tier) <= spare:
                spare -= seat.cost(tier)
                kept.remove(seat)
        return kept

    def _candidates(self, tier: Tier, turn: float, whose: Parked | None) -> list[Parked]:
        """Who may leave the tier for the need of this turn: nobody whose own comes before."""
        below = _NEXT.get(tier)
        found = [
            seat
            for seat in self._resting()
            if (whose is None or seat.uid != whose.uid)
            and seat.tier is tier
            and self._movable(seat, turn)
        ]
        able = (s for s in found if below in self._room and not deeper(below, s.deepest))
        uncalled_first = _FIRST
        return sorted(
            self._coldest(able),
            key=lambda seat: uncalled_first if seat.turn is None else -seat.turn,
        )

    def _movable(self, seat: Parked, turn: float) -> bool:
        kept = seat.asked is not None and not deeper(seat.asked, seat.tier)
        earlier = seat.turn is not None and seat.turn < turn
        return not kept and not earlier and self._now >= seat.not_before and self._rested(seat)

    def _rested(self, seat: Parked) -> bool:
        return seat.moved_at is None or self._now >= seat.moved_at + self._policy.min_residency

    def _resting(self) -> list[Parked]:
        return [seat for seat in self._view.seats if seat.uid not in self._begun]

    def _coldest(self, seats: Iterable[Parked]) -> list[Parked]:
        return sorted(seats, key=lambda seat: (heat(seat, self._policy, self._now), seat.uid))

    def _take(self, tier: Tier, size: int) -> None:
        self._room[tier] -= size
        self._soon[tier] -= size

    def _frees(self, seat: Parked) -> None:
        if seat.tier in self._soon:
            self._soon[seat.tier] += seat.cost(seat.tier)

    def _begin(self, step: Step, seat: Parked, why: str) -> None:
        self._begun.add(seat.uid)
        self._actions.append(TierAction(step, seat.uid, why))


def _some(seats: list[Parked], lacking: int, room: float, tier: Tier) -> list[Parked] | None:
    """Some of these, for which the next tier has room and which leave so many bytes."""
    if lacking <= 0:
        return []
    if sum(seat.cost(tier) for seat in seats) < lacking:
        return None
    first, rest = seats[0], seats[1:]
    need = _needs(first, _NEXT[tier])
    others = _some(rest, lacking - first.cost(tier), room - need, tier) if need <= room else None
    return _some(rest, lacking, room, tier) if others is None else [first, *others]


def _needs(seat: Parked, tier: Tier) -> int:
    """Bytes that it takes there besides a copy of before, in whose place it comes."""
    return 0 if tier in seat.copies else seat.cost(tier)


def _is_left(seat: Parked) -> bool:
    """Whether it is in the object store, and not all of it has left NVMe."""
    return seat.tier is Tier.OBJECT and Tier.NVME in seat.copies


def _arrive(seat: Parked) -> Parked:
    """As it is once it is where it goes to."""
    if seat.to is None:
        # What failed is tried again; who is kept from moving for good says so.
        never = math.isinf(seat.not_before)
        return replace(seat, moved_at=None, not_before=seat.not_before if never else 0.0)
    staying = frozenset(tier for tier in seat.copies if not deeper(seat.to, tier))
    copies = staying | ({seat.to} - {Tier.RAM})
    return replace(seat, tier=seat.to, to=None, copies=copies, moved_at=None, not_before=0.0)


def _place(one: Coming | Parked) -> tuple[int, bool]:
    """Those that come for one seat have their room in the order in which they are named."""
    return one.turn or 0, isinstance(one, Parked)


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
