"""Keeps each parked seat's state in the tier where it should be (`kybernate.core.tiers.tiering`).

Looks after every swap decision, and when time alone may change the answer. Without CRIU there is
one tier, RAM, and nothing to decide.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import OCCUPYING, TIER_OF
from kybernate.core.swap.swap import ram_order, wants
from kybernate.core.tiers.tiering import (
    Parked,
    Step,
    TierPolicy,
    TierView,
    decide,
    lodges,
    next_check,
    used,
)
from kybernate.types import SeatState, Tier
from nodeagent import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.core.swap.swapview import SwapPolicy
    from kybernate.core.tiers.tiering import TierAction
    from kybernate.types import PodUid
    from nodeagent.offload.offload import Offload
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_GOES = {
    SeatState.PARKING: Tier.RAM,
    SeatState.DUMPING: Tier.NVME,
    SeatState.RESTORING: Tier.RAM,
}
_SLACK = 0.001
_NEVER = float("inf")


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

    def look(self, *, stood: bool = False) -> None:
        """Begin what is to be done now. `stood`: nothing has been done since `stand`."""
        if self._node.world.offloading is None:
            _, held = self._node.in_tier(Tier.RAM)
            metrics.TIER_BYTES.labels(Tier.RAM.value).set(held)
            return
        now = self._node.world.now()
        if self._drop_transfers() or not stood:
            self.stand()
        view = self._view(now)
        for action in decide(view, self.policy, now):
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
        view = replace(self._standing(), free_ram=self._node.free_ram)
        return lodges(view, (one,), self._node.world.now())

    def stand(self) -> None:
        """Have the swap decision see where parked seats' states are now."""
        self._node.standing = self._standing()

    # --- what there is --------------------------------------------------------------------------

    def _view(self, now: float) -> TierView:
        """All that there is, with everybody's turn."""
        node, view = self._node, self._node.standing or self._standing()
        ram = ram_order(node.swap_view(), self._swap, now)
        asking = {uid for uid, seat in node.seats.items() if wants(seat.view(drained=False))}
        view = replace(
            view,
            seats=tuple(map(self._as_deep_as_asked, view.seats)),
            free_ram=node.free_ram,
            parking=tuple(map(self._as_deep_as_asked, view.parking)),
        )
        return ram.given_to(view, asking)

    def _standing(self) -> TierView:
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
        """Bytes of it that no seat has, and that none of them can make room of."""
        return self._offload.others_in(tier)

    def _as_deep_as_asked(self, one: Parked) -> Parked:
        """A dump that was refused is tried again."""
        return replace(one, deepest=Tier(self._node.seats[one.uid].wishes.park_tier))

    def _parked(self, seat: Seat) -> Parked:
        tier, to = TIER_OF.get(seat.state, Tier.RAM), _GOES.get(seat.state, seat.saved.sinks_to)
        work = seat.tasks.work
        # What brings it to RAM will be over when it is asked to leave.
        working = work is not None and not work.done() and to is not Tier.RAM
        busy = seat.ending.asked or seat.unverified or working
        # Who continues with its state elsewhere would run beside it.
        busy = busy or self._offload.departures.sleeps(seat.uid)
        busy = busy or seat.wishes.to_save or bool(seat.saved.paging)
        return Parked(
            seat.uid,
            str(seat),
            self._node.park_size(seat),
            tier,
            to,
            seat.saved.size or self._weight(seat),
            seat.history.used_at,
            self._node.calls_per_hour(seat),
            seat.saved.moved_at,
            None,
            Tier(seat.wishes.tier_asked) if seat.wishes.tier_asked else None,
            # Nobody counts on a dump that was refused; when it is tried again, it may be.
            Tier.RAM if self._undumpable_until(seat) else Tier(seat.wishes.park_tier),
            seat.saved.copies,
            _NEVER if busy else seat.backoff.move_not_before,
            0,
            {tier: seat.wishes.idle[tier.value] for tier in Tier if tier.value in seat.wishes.idle},
            self._timely(seat),
            seat.identity.pod.namespace,
            seat.wishes.prefetch,
            not self._node.has_gpus(seat),
        )

    def _undumpable_until(self, seat: Seat) -> float:
        """Until when its tree stays in RAM since a dump was refused; 0.0 if it may leave."""
        until = seat.backoff.move_not_before
        return until if seat.saved.undumpable and self._node.world.now() < until else 0.0

    def _timely(self, seat: Seat) -> Tier:
        """The deepest tier from which it wakes within what its pod calls ready."""
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
