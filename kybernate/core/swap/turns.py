"""Whose turn it is among seats that always want their GPUs: training, batch, notebooks. Pure.

`Book` keeps what each of them has had: `served`, the seconds in which it held GPUs that others
wanted too, divided by its share. Who was served least comes next, and who holds gives way once it
has been served more than that. A swap's measured seconds are a debt of the GPUs on which it took
place, paid off by the time that they are held; until it is paid nobody need give way. So all swaps
among these seats together, less the last, take no more than `TurnPolicy.swap_share` of the time.
Requests come before turns (`kybernate.core.swap.swap`); a swap for their sake is counted apart.

Seats that come last (`SwapView.last`) have their turns among themselves, on GPUs that none of the
others wants; what they miss meanwhile they don't get back.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from kybernate.core.seat.seats import OCCUPYING
from kybernate.core.swap.swap import barred, takes_turns, wants
from kybernate.core.swap.swapview import Claim, residency
from kybernate.dataclass import dataclass
from kybernate.types import SeatState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kybernate.core.swap.swapview import SeatView, SwapView
    from kybernate.types import GpuUuid, PodUid

_HOLDS = (SeatState.STARTING, SeatState.ACTIVE, SeatState.DRAINING)
"""The seat computes on its GPUs, or loads what it computes with."""
_MOVES = (SeatState.PARKING, SeatState.WAKING)
_AIM: Final = 0.8
"""Of `swap_share`: what was not seen of a swap, and the one that comes next, stay within it."""
_LONGEST: Final = 60.0
"""Seconds of a swap in which nothing moves: whoever is kept out longer is kept out by other things,
which nobody's turns are to pay for."""
_PAST: Final = 0.01
"""Seconds by which a turn continues after the next seat's has come, so that no rounding of the sums
hands it straight back."""


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """`swap_share`: the most that swaps among seats that take turns may take of their time, between
    0 and 1. `min_residency`: seconds that a woken seat stays, of which nothing else is said;
    `most_residency`: see `residency`. `shares`: of a namespace against others, 1 where it isn't
    named; a namespace's seats divide its share by their weights."""

    swap_share: float = 0.05
    min_residency: float = 1.0
    shares: Mapping[str, float] = field(default_factory=dict)
    most_residency: float = 30.0

    @property
    def price(self) -> float:
        """Seconds for which GPUs are held to pay off each second of a swap."""
        share = _AIM * self.swap_share
        return (1 - share) / share


@dataclass(frozen=True, slots=True)
class _Party:
    """What the book needs of a seat, alike as long as nothing changes for it."""

    uid: PodUid
    gpus: frozenset[GpuUuid]
    namespace: str
    weight: float
    yields: bool
    since: float | None
    state: SeatState
    turns: bool
    """It holds its GPUs, or wants them, for its turn's sake."""
    called: bool
    """It is wake-requested, and not in its turn."""
    last: bool
    """It comes after those that don't come last."""
    stays: float | None
    """Seconds that it is said to stay once it woke."""

    @property
    def holds(self) -> bool:
        return self.state in _HOLDS

    @property
    def waits(self) -> bool:
        return self.turns and self.state not in OCCUPYING and not self.called


class Book:
    """What seats that take turns have had and are owed. Times in seconds of one monotonic clock."""

    def __init__(self, policy: TurnPolicy, now: float) -> None:
        self._policy = policy
        self._at = now
        self._parties: tuple[_Party, ...] = ()
        self._served: dict[PodUid, float] = {}
        self._place: dict[PodUid, int] = {}
        self._due: dict[PodUid, float] = {}
        self._last_place = 0
        self._among: dict[PodUid, tuple[_Party, ...]] = {}
        self._debt: dict[GpuUuid, float] = {}
        self._gaps: dict[GpuUuid, tuple[float, bool]] = {}
        self._last_gap: dict[GpuUuid, float] = {}
        self._seen: SwapView | None = None
        self.claims: Mapping[PodUid, Claim] = {}
        """What everybody is owed, as of the last look."""
        self.held: dict[PodUid, float] = {}
        """Seconds that each seat that takes turns has held its GPUs."""
        self.had = 0.0
        """Seconds, of all GPUs, in which a seat that takes turns held them."""
        self.swapping = 0.0
        """Seconds, of all GPUs, that swaps among seats that take turns took."""
        self.serving = 0.0
        """Seconds, of all GPUs, that swaps for requests took from seats that take turns."""

    def set_shares(self, shares: Mapping[str, float], now: float) -> bool:
        """What namespaces get from now on; what they have had counts as it was counted. Whether
        that is something new."""
        if shares == self._policy.shares:
            return False
        self.count(now)
        self._policy = replace(self._policy, shares=dict(shares))
        self._judge(now)
        return True

    def look(self, view: SwapView, now: float) -> SwapView:
        """The view with everybody's claim as of now."""
        # A decision looks several times, and a request waits for it.
        seen = replace(view, claims={}) if view.claims else view
        if not self._served and all(seat.turn is None for seat in view.seats):
            # Nobody takes turns, nor has: there is nothing to count.
            self._seen, self._parties, self._gaps, self.claims = None, (), {}, {}
        elif seen != self._seen:
            self._seen, parties = seen, tuple(_party(seat, view) for seat in view.seats)
            if parties != self._parties:
                self.count(now)
                self._take_in(parties)
                self._settle()
                self._judge(now)
        return replace(seen, claims=self.claims) if self.claims else seen

    def count(self, now: float) -> None:
        """Count up to now; a clock that was set back counts for nothing."""
        passed, self._at = max(0.0, now - self._at), now
        for one in self._parties:
            if one.turns and one.holds:
                self.held[one.uid] = self.held.get(one.uid, 0.0) + passed
                if self._rivals(one):
                    self._served[one.uid] += passed / self._share(one)
        for gpu, there in _by_gpu(self._parties).items():
            self._count_gpu(gpu, there, passed)

    def swap_share(self) -> float:
        """The part that swaps among those who take turns took of their time, so far."""
        return self.swapping / (self.had + self.swapping) if self.swapping else 0.0

    # --- what passed --------------------------------------------------------------------------

    def _count_gpu(self, gpu: GpuUuid, there: list[_Party], passed: float) -> None:
        holders = [one for one in there if one.holds]
        if any(one.turns for one in holders):
            paid = passed / self._policy.price
            self._debt[gpu] = max(0.0, self._debt.get(gpu, 0.0) - paid)
            self.had += passed
        moves = any(one.state in _MOVES for one in there)
        if holders or not (moves or (gpu in self._gaps and self._continues(there))):
            return
        gap, asked = self._gaps.get(gpu, (0.0, False))
        passed = passed if moves else min(passed, max(0.0, _LONGEST - gap))
        asks = any(
            not one.turns or one.called for one in there if one.state is not SeatState.FAILED
        )
        self._gaps[gpu] = gap + passed, asked or asks

    def _continues(self, there: list[_Party]) -> bool:
        """Whether somebody is on its way out or in, or is about to be: a wide seat isn't while
        others hold one of its GPUs."""
        return any(
            one.state in _MOVES or (one.waits and not any(r.holds for r in self._rivals(one)))
            for one in there
        )

    def _settle(self) -> None:
        """A gap that is over was a swap: among those who take turns, or for a request's sake."""
        there = _by_gpu(self._parties)
        for gpu, (gap, asked) in tuple(self._gaps.items()):
            those = there.get(gpu, [])
            if self._continues(those) and not any(one.holds for one in those):
                continue
            del self._gaps[gpu]
            self._last_gap[gpu] = gap
            if not any(one.turns for one in those):
                continue
            if asked:
                self.serving += gap
            else:
                self.swapping += gap
                self._debt[gpu] = self._debt.get(gpu, 0.0) + gap

    # --- who is there -------------------------------------------------------------------------

    def _take_in(self, parties: tuple[_Party, ...]) -> None:
        before = {(one.uid, one.last) for one in self._parties if one.turns}
        self._parties, self._among = parties, {}
        there = {one.uid for one in parties}
        for kept in (self._served, self._place, self._due, self.held):
            for uid in kept.keys() - there:
                del kept[uid]
        for one in parties:
            if one.turns and (one.uid, one.last) not in before:
                self._join(one, {uid for uid, last in before if last is one.last})

    def _join(self, one: _Party, before: set[PodUid]) -> None:
        """Who comes has no claim to the past, and no debt beyond that of those who are there."""
        marks = [self._served[o.uid] for o in self._rivals(one) if o.uid in before]
        own = self._served.get(one.uid, min(marks, default=0.0))
        self._served[one.uid] = min(max(own, min(marks, default=own)), max(marks, default=own))
        self._goes_last(one)

    def _goes_last(self, one: _Party) -> None:
        self._last_place += 1
        self._place[one.uid] = self._last_place

    def _rivals(self, one: _Party) -> tuple[_Party, ...]:
        """Those who take turns with it."""
        if one.uid not in self._among:
            self._among[one.uid] = tuple(
                other
                for other in self._parties
                if other.turns and other.uid != one.uid and other.gpus & one.gpus
            )
        return self._among[one.uid]

    def _share(self, one: _Party) -> float:
        """What is due to it of its GPUs, against others: its part of its namespace's share."""
        alike = [o.weight for o in self._rivals(one) if o.namespace == one.namespace]
        share = self._policy.shares.get(one.namespace, 1.0)
        return share * one.weight / (one.weight + sum(alike))

    # --- what is owed -------------------------------------------------------------------------

    def _judge(self, now: float) -> None:
        mine = [one for one in self._parties if one.turns]
        for one in mine:
            if one.yields and one.holds:
                self._give_up(one)
        until = {one.uid: self._until(one, now) for one in mine if one.holds}
        self._due = {one.uid: self._due_of(one, until, now) for one in mine if one.waits}
        claims = {
            one.uid: Claim(
                (self._served[one.uid], self._place[one.uid]),
                until.get(one.uid, -math.inf),
                self._due.get(one.uid, math.inf),
            )
            for one in mine
        }
        # Who is quiet for less than a swap takes would be swapped in again before that pays.
        served = {
            one.uid: Claim(rest=max((self._last_gap.get(gpu, 0.0) for gpu in one.gpus), default=0))
            for one in self._parties
            if one.holds and not one.turns
        }
        self.claims = {**claims, **served}

    def _give_up(self, one: _Party) -> None:
        """Who gives up its turn does not come before those who wait now."""
        waiting = [self._served[other.uid] for other in self._rivals(one) if other.waits]
        if waiting:
            self._served[one.uid] = max(self._served[one.uid], min(waiting))
            self._goes_last(one)

    def _until(self, one: _Party, now: float) -> float:
        """Until when it need not give way to others who take turns."""
        if one.state is SeatState.STARTING:
            return math.inf
        debt = max((self._debt.get(gpu, 0.0) for gpu in one.gpus), default=0.0)
        paid = now + debt * self._policy.price if debt else -math.inf
        since = now if one.since is None else one.since
        stays = residency(one.stays, self._policy.min_residency, self._policy.most_residency)
        return max(since + stays, paid, self._level(one, now))

    def _level(self, one: _Party, now: float) -> float:
        """When it will have been served more than the least served of those who wait."""
        waiting = [other for other in self._rivals(one) if other.waits]
        if any(other.last < one.last for other in waiting) or not waiting or one.yields:
            return -math.inf
        alike = [self._served[other.uid] for other in waiting if other.last is one.last]
        lead = min(alike, default=math.inf) - self._served[one.uid]
        return now + lead * self._share(one) + _PAST

    def _order(self, one: _Party) -> tuple[bool, float, int]:
        return one.last, self._served[one.uid], self._place[one.uid]

    def _due_of(self, one: _Party, until: Mapping[PodUid, float], now: float) -> float:
        """Since when, or from when on, it is next on all of its GPUs and only requests, or where
        its state is, keep it out; for ever later while another comes first."""
        rivals = self._rivals(one)
        first = all(self._order(one) <= self._order(o) for o in rivals if o.waits)
        if not first:
            return math.inf
        before = self._due.get(one.uid, math.inf)
        since = now if before == math.inf else before
        return max([since, *(until[o.uid] for o in rivals if o.uid in until)])


def _party(seat: SeatView, view: SwapView) -> _Party:
    turn, called = seat.turn, seat.waiting > 0 or seat.asked_since is not None
    there = seat.state in _HOLDS or seat.state in _MOVES
    turns = turn is not None and (there or (takes_turns(seat, view) and not barred(view, seat)))
    return _Party(
        seat.uid,
        seat.gpus,
        turn.namespace if turn else "",
        turn.weight if turn else 1.0,
        bool(turn and turn.yields),
        seat.active_since,
        # A seat that rests does so alike for the book, wherever its state is and why.
        seat.state if there or seat.state is SeatState.FAILED else _resting(seat, view),
        turns,
        called and not turns and not there,
        seat.uid in view.last,
        seat.min_residency,
    )


def _resting(seat: SeatView, view: SwapView) -> SeatState:
    """Who couldn't have its GPUs if they were empty waits for none: a node may be drained long."""
    return SeatState.PARKED if wants(seat) and not barred(view, seat) else SeatState.GONE


def _by_gpu(parties: Iterable[_Party]) -> dict[GpuUuid, list[_Party]]:
    found: dict[GpuUuid, list[_Party]] = {}
    for one in parties:
        if one.state is not SeatState.GONE:
            for gpu in one.gpus:
                found.setdefault(gpu, []).append(one)
    return found
