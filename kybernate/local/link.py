"""The way between who admits requests and who decides about seats, where both are one process.

In a cluster it is a gRPC stream; what is told is the same (`nodeagent.api.streams`,
`proxy.agents`). What one side tells the other comes in the next round of the event loop, in its
order, so that neither is called from within its own decision.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import TIER_OF
from kybernate.types import NodeName, SeatState, Tier
from nodeagent.operations.wire import expected_wake, measured_wake
from nodeagent.seat.leases import Demand
from proxy.actions import SeatInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.types import PodUid
    from nodeagent.api.demand import ProxySide
    from nodeagent.seat.record import Seat
    from proxy.actions import Action
    from proxy.desk import Desk

NODE = NodeName("box")
_PROXY = "front"


class Link:
    """Implements `proxy.desk.Link`, and `Outbox` and `Observer` of the agent."""

    def __init__(self, proxies: ProxySide, desk: Desk) -> None:
        """Join them; on the running event loop."""
        self._agent, self._desk = proxies, desk
        self._starting: set[PodUid] = set()
        self._failed: set[PodUid] = set()
        desk.links[NODE] = self
        desk.apply(desk.admission.connected(NODE))
        desk.admission.takes_back(NODE, yes=True)
        for seat in proxies.node.seats.values():
            self.seat_changed(seat)
        proxies.node.observe(self)
        proxies.proxy_joined(_PROXY, self)

    # --- to the desk ----------------------------------------------------------------------------

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        if seat.state is SeatState.STARTING:
            self._starting.add(seat.uid)
        elif seat.state is SeatState.ACTIVE:
            self._starting.discard(seat.uid)
            self._failed.discard(seat.uid)
        asyncio.get_running_loop().call_soon(self._desk.seat, seat_info(seat))

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._starting.discard(seat.uid)
        self._failed.discard(seat.uid)
        asyncio.get_running_loop().call_soon(self._desk.seat_gone, seat.uid)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """See `node.Observer`: people read it in the log."""

    def ended(self, uid: PodUid, why: str) -> None:
        """The seat's command ended. If that was before it served, twice on end, those who wait for
        it are told why: a third start would not be another."""
        if uid not in self._starting:
            return
        self._starting.discard(uid)
        if uid not in self._failed:
            self._failed.add(uid)
            return
        self._failed.discard(uid)
        self._tell(lambda desk: desk.admission.refuse(uid, why, desk.now))

    def grant(self, uid: PodUid, generation: int) -> None:
        """See `leases.Outbox`."""
        self._tell(lambda desk: desk.admission.grant(uid, generation, desk.now))

    def drain(self, uid: PodUid, generation: int) -> None:
        """See `leases.Outbox`."""
        self._tell(lambda desk: desk.admission.drain(NODE, uid, generation, desk.now))

    def revoke(self, uid: PodUid, generation: int) -> None:
        """See `leases.Outbox`."""
        self._tell(lambda desk: desk.admission.revoke(uid, generation, desk.now))

    def _tell(self, what: Callable[[Desk], list[Action]]) -> None:
        asyncio.get_running_loop().call_soon(lambda: self._desk.apply(what(self._desk)))

    # --- to the agent ---------------------------------------------------------------------------

    def report(self, uid: PodUid, *, urgent: bool) -> None:
        """See `proxy.desk.Link`."""
        asyncio.get_running_loop().call_soon(self._demand, uid)

    def drained(self, uid: PodUid, generation: int) -> None:
        """See `proxy.desk.Link`."""
        asyncio.get_running_loop().call_soon(self._drained, uid, generation)

    def _demand(self, uid: PodUid) -> None:
        found = self._desk.admission.demand(uid, self._desk.now)
        if found is not None:
            since = self._agent.node.world.now() - found.oldest_wait
            demand = Demand(found.in_flight, found.waiting, since, found.requests, found.trace)
            idle = self._desk.admission.given_back(NODE)
            self._agent.proxy_demand(_PROXY, uid, demand, idle)

    def _drained(self, uid: PodUid, generation: int) -> None:
        if self._desk.admission.is_drained(uid, generation):
            self._agent.proxy_drained(_PROXY, uid, generation)


def seat_info(seat: Seat) -> SeatInfo:
    """A seat as the proxy's decisions need it. Its model's name is its route: a box has no
    namespaces."""
    tier = TIER_OF.get(seat.state)
    held = sum(seat.tree.held.values())
    return SeatInfo(
        uid=seat.uid,
        node=NODE,
        name=seat.identity.name,
        group=seat.identity.group,
        pod=seat.identity.pod.name,
        model=seat.identity.model,
        state=seat.state,
        address=seat.contact.address,
        reason=seat.why,
        wakes=seat.history.wakes,
        last_wake_ms=seat.history.last_wake_ms,
        tier=tier.value if tier else "",
        size=held if tier in (None, Tier.RAM) else seat.saved.size,
        wake=expected_wake(seat),
        measured=measured_wake(seat) is not None,
        weight=seat.wishes.turn_weight,
    )
