"""The operators' side of the loop: what others than proxies want of seats and of the node."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import OCCUPYING
from kybernate.types import SeatState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kybernate.types import PodUid, Tier
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)


class OperatorSide:
    """Wishes, kept in the node's seats; `kick` has the loop decide again."""

    def __init__(self, node: Node, kick: Callable[[], None]) -> None:
        self.node = node
        self.kick = kick

    def request_wake(self, uid: PodUid, why: str) -> bool:
        """Somebody other than a proxy wants the seat awake; whether there is such a seat.

        The call holds until the seat is awake, also over a restart of the agent.
        """
        seat = self.node.seats.get(uid)
        if seat is None:
            return False
        serving = seat.state is SeatState.ACTIVE and not seat.ending.asked
        if not serving and seat.demand.asked_since is None:
            seat.demand.ask(self.node.world.now())
            self._noted(seat, f"wake requested: {why}")
        return True

    def call_off(self, uid: PodUid) -> bool:
        """Take `request_wake` back; whether there is such a seat."""
        seat = self.node.seats.get(uid)
        if seat is None:
            return False
        if seat.demand.asked_since is not None:
            seat.demand.call_off()
            self._noted(seat, "no wake is requested any longer")
        return True

    def send_away(self, uid: PodUid, why: str, *, stays_away: bool = False) -> bool:
        """The seat must leave GPU memory though nobody needs its GPUs; whether there is such.

        Once it is parked it wakes on demand as ever, but not for a turn that nobody called it for;
        with `stays_away` only after `let_stay`.
        """
        seat = self.node.seats.get(uid)
        if seat is None:
            return False
        if stays_away or seat.state in OCCUPYING:
            seat.wishes.send_away(why, stays_away=stays_away)
            self._noted(seat, f"to be parked: {why}")
        return True

    def let_stay(self, uid: PodUid) -> bool:
        """Take `send_away` back; whether there is such a seat."""
        seat = self.node.seats.get(uid)
        if seat is None:
            return False
        if seat.wishes.leave:
            seat.wishes.let_stay()
            self._noted(seat, "may stay in GPU memory")
        return True

    async def unload(self, uid: PodUid) -> bool:
        """The seat's container is to end, and starts again only when a wake is requested; on the
        disk before whoever ends it does. Whether there is such a seat that has begun. Raises
        OSError if the disk refuses."""
        seat = self.node.seats.get(uid)
        if seat is None or seat.state is SeatState.WAITING:
            return False
        seat.ending.starts_on_demand()
        await self._noted(seat, "to be unloaded", synced=True)
        return True

    def ask_for_tier(self, uid: PodUid, tier: Tier | None) -> bool:
        """Where the seat's state should be while it is parked, until it is next woken; None takes
        that back. Whether there is such a seat."""
        seat = self.node.seats.get(uid)
        if seat is None:
            return False
        seat.wishes.ask_for_tier(tier)
        self._noted(seat, f"to be parked in {tier}" if tier else "may be parked in any tier")
        return True

    def drain_node(self, why: str) -> None:
        """Park all that can be parked; nothing starts or wakes here any more."""
        log.info("the node is drained: %s", why)
        self.node.set_draining(why)
        self.kick()

    def undrain_node(self) -> None:
        """Seats may start and wake here again, also those that an evacuation sent away."""
        log.info("the node is in use again")
        self.node.set_draining("")
        for seat in tuple(self.node.seats.values()):
            if seat.wishes.evacuated:
                self.let_stay(seat.uid)
                self.ask_for_tier(seat.uid, None)
        self.kick()

    def _noted(self, seat: Seat, what: str, *, synced: bool = False) -> Awaitable[None]:
        log.info("%s: %s", seat, what)
        written = self.node.save(seat, synced=synced)
        self.node.changed(seat)
        self.kick()
        return written
