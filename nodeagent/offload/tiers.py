"""Keeps each parked seat's state in the tier where it should be (`kybernate.core.tiers.tiering`).

Looks after every swap decision, and when time alone may change the answer. Without CRIU there is
one tier, RAM, and nothing to decide.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kybernate.core.seat.seats import OCCUPYING, TIER_OF
from kybernate.core.swap.swap import ram_order, wants
from kybernate.core.tiers.tiering import (
    Parked,
    Step,
    TierPolicy,
    TierView,
    at_rest,
    decide,
    lodges,
    next_check,
    used,
)
from kybernate.types import SeatState, Tier
from nodeagent import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kybernate.core.swap.swapview import SwapPolicy, SwapView
    from kybernate.core.tiers.tiering import TierAction
    from kybernate.types import PodUid
    from nodeagent.offload.offload import Offload
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_SLACK = 0.001
_NEVER = float("inf")
_NAMED: Final[Mapping[str, Tier]] = {tier.value: tier for tier in Tier}
_NO_LIMITS: Final[Mapping[Tier, float]] = {}


class Tiers:
    """The tier manager of a node."""

    def __init__(
        self, node: Node, offload: Offload, swap: SwapPolicy, kick: Callable[[], None]
    ) -> None:
        self._node = node
        self._swap = swap
        self._offload = offload
        self._kick = kick
        self._timer: asyncio.TimerHandle | None = None
        self._weights: dict[PodUid, tuple[float, int]] = {}
        settings = node.settings
        sinks = {Tier.RAM: settings.ram_idle_s, Tier.NVME: settings.nvme_idle_s}
        self.policy = TierPolicy(
            min_residency=settings.tier_residency_s,
            idle={tier: limit for tier, limit in sinks.items() if limit},
            prefetch_calls=settings.prefetch_calls or math.inf,
        )

    def look(self, swaps: SwapView | None = None) -> None:
        """Begin what is to be done now. `swaps`: what was decided on, where nothing was done."""
        if self._node.world.offloading is None:
            _, held = self._node.in_tier(Tier.RAM)
            metrics.TIER_BYTES.labels(Tier.RAM.value).set(held)
            return
        now = self._node.world.now()
        if self._drop_transfers():
            swaps = None
        known = swaps and swaps.tiers
        view = replace(known or self.standing(), free_ram=self._node.free_ram)
        if not at_rest(view, self.policy, now, self._may_ask(view)):
            for action in decide(self._in_turn(view, swaps, now), self.policy, now):
                self._carry_out(action)
        self._look_again(next_check(view, self.policy, now))
        self._show(view)
        gone = self._weights.keys() - self._node.seats.keys()
        for uid in gone:
            del self._weights[uid]

    def makes_room(self, seat: Seat, size: int) -> bool:
        """Whether other seats' states can leave RAM so that so many bytes of this one fit."""
        if self._node.world.offloading is None:
            return False
        one = Parked(seat.uid, str(seat), size)
        view = replace(self.standing(), free_ram=self._node.free_ram)
        return lodges(view, (one,), self._node.world.now())

    def stand(self) -> None:
        """Have the swap decision see how the tiers stand now: not at all where all states are in
        RAM, which has room for all that are awake, since then it hasn't anything to weigh."""
        self._node.standing = self.standing() if self._weighs() else None

    def _weighs(self) -> bool:
        node, awake = self._node, 0
        for seat in node.seats.values():
            if seat.state in OCCUPYING:
                awake += node.park_size(seat)
            elif seat.state in TIER_OF and seat.state is not SeatState.PARKED:
                return True
        return node.park_room is not None and awake > node.park_room

    # --- what there is --------------------------------------------------------------------------

    def _may_ask(self, view: TierView) -> Collection[PodUid]:
        """At least those that ask for their turn and aren't in RAM."""
        below = (self._node.seats[one.uid] for one in view.seats if one.tier is not Tier.RAM)
        return [seat.uid for seat in below if seat.demand.called or seat.turn is not None]

    def _in_turn(self, view: TierView, swaps: SwapView | None, now: float) -> TierView:
        """The node with everybody's turn, and with dumps that were refused and are tried again."""
        if swaps is None:
            self.stand()
            swaps = self._node.swap_view()
        ram = ram_order(swaps, self._swap, now)
        asking = {one.uid for one in swaps.seats if wants(one)}
        view = replace(
            view,
            seats=tuple(map(self._as_deep_as_asked, view.seats)),
            parking=tuple(map(self._as_deep_as_asked, view.parking)),
        )
        return ram.given_to(view, asking)

    def standing(self) -> TierView:
        """Where everything is, and may go, whatever the turns."""
        node, seats = self._node, self._node.seats.values()
        parking = tuple(self._parked(s) for s in seats if s.state is SeatState.PARKING)
        awake = (s for s in seats if s.state in OCCUPYING and s.state is not SeatState.PARKING)
        # What is being parked takes its room in RAM already.
        budget = node.park_budget - sum(one.size for one in parking)
        limits = {t: max(0, limit - self._others(t)) for t, limit in node.tiers().items()}
        return TierView(
            tuple(self._parked(seat) for seat in seats if seat.state in TIER_OF),
            {**limits, Tier.RAM: max(0, budget)},
            parking=parking,
            awake=tuple(self._parked(seat) for seat in awake),
            quotas=node.ram_quotas,
        )

    def _others(self, tier: Tier) -> int:
        """Bytes of it that no parked seat has, and that none of them can make room of."""
        return self._offload.others_in(tier)

    def _as_deep_as_asked(self, one: Parked) -> Parked:
        asked = _NAMED[self._node.seats[one.uid].wishes.park_tier]
        return one if asked is one.deepest else replace(one, deepest=asked)

    def _parked(self, seat: Seat) -> Parked:
        node, wishes, saved, state = self._node, seat.wishes, seat.saved, seat.state
        to, work = seat.bound_for, seat.tasks.work
        busy = (
            # What brings it to RAM will be over when it is asked to leave.
            (work is not None and to is not Tier.RAM and not work.done())
            or seat.ending.asked
            or seat.unverified
            # Who continues with its state elsewhere would run beside it.
            or self._offload.departures.sleeps(seat.uid)
            or wishes.to_save
            or bool(saved.paging)
        )
        # Nothing is to be brought, so a drop that has failed keeps it from nothing.
        at_once = seat.comes_back and state is SeatState.PARKED_OBJECT and Tier.NVME in saved.copies
        # By place, as every decision makes one of each seat.
        return Parked(
            seat.uid,
            str(seat),
            node.park_size(seat),
            TIER_OF.get(state, Tier.RAM),
            to,
            saved.size or self._weight(seat),
            seat.history.used_at,
            node.calls_per_hour(seat),
            saved.moved_at,
            None,
            _NAMED[wishes.tier_asked] if wishes.tier_asked else None,
            # Nobody counts on a dump that was refused; when it is tried again, it may be.
            Tier.RAM if self._undumpable_until(seat) else _NAMED[wishes.park_tier],
            saved.there,
            _NEVER if busy else 0.0 if at_once else seat.backoff.move_not_before,
            0,
            _idle_limits(wishes.idle),
            self._timely(seat),
            seat.identity.pod.namespace,
            wishes.prefetch,
            not node.has_gpus(seat),
        )

    def _undumpable_until(self, seat: Seat) -> float:
        """Until when its tree stays in RAM since a dump was refused; 0.0 if it may leave."""
        if not seat.saved.undumpable:
            return 0.0
        until = seat.backoff.move_not_before
        return until if self._node.world.now() < until else 0.0

    def _timely(self, seat: Seat) -> Tier:
        """The deepest tier from which it wakes within what its pod calls ready."""
        if seat.wishes.ready_within is None:
            return Tier.OBJECT
        timely = [tier for tier in Tier if self._node.wakes_in_time(seat, tier)]
        return timely[-1] if timely else Tier.RAM

    def _weight(self, seat: Seat) -> int:
        """About how many bytes its dump takes, 0 if nobody can tell; a frozen tree keeps them."""
        offloading = self._node.world.offloading
        if offloading is None or seat.state is not SeatState.PARKED:
            return 0
        since, weight = self._weights.get(seat.uid, (None, 0))
        if since != seat.history.since:
            weight = offloading.weigh(seat)
            self._weights[seat.uid] = seat.history.since, weight
        return max(weight, self._node.park_size(seat)) if weight else 0

    # --- what is done ---------------------------------------------------------------------------

    def _drop_transfers(self) -> bool:
        """A copy on its way down must not keep a seat from waking; whether there was any."""
        dropped = False
        for seat in self._node.seats.values():
            if (
                seat.comes_back
                and seat.saved.sinks_to is Tier.OBJECT
                and seat.tasks.work is not None
            ):
                seat.tasks.work.cancel()
                # Else one that was cancelled before it began would keep it from waking for good.
                seat.saved.sank()
                dropped = True
        return dropped

    def _carry_out(self, action: TierAction) -> None:
        seat, offload = self._node.seats[action.uid], self._offload
        begin = {
            Step.DUMP: offload.dumps.begin,
            Step.RESTORE: offload.restores.begin,
            Step.PACK: offload.transfers.begin_pack,
            Step.FETCH: offload.transfers.begin_fetch,
            Step.DROP: offload.transfers.begin_drop,
        }[action.step]
        try:
            begin(seat, action.reason)
        except Exception:
            log.exception("%s of seat %s failed unexpectedly", action.step, seat)

    def _look_again(self, when: float | None) -> None:
        retries = filter(None, map(self._undumpable_until, self._node.seats.values()))
        when = min([*retries, *([] if when is None else [when])], default=None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when is not None and when != _NEVER:
            self._timer = asyncio.get_running_loop().call_at(when + _SLACK, self._kick)

    def _show(self, view: TierView) -> None:
        for tier in view.limits:
            metrics.TIER_BYTES.labels(tier.value).set(used(view.seats, tier))


def _idle_limits(said: Mapping[str, float]) -> Mapping[Tier, float]:
    return {tier: said[tier.value] for tier in Tier if tier.value in said} if said else _NO_LIMITS
