"""The proxies' side of the loop: their streams, their leases, their demand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.types import SeatState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.types import PodUid
    from nodeagent.seat.leases import Demand, Outbox
    from nodeagent.seat.node import Node

SLACK = 0.001
"""Seconds: the event loop may fire early by its clock's resolution, before the time has come."""


class ProxySide:
    """What proxies tell, kept in the node's leases and seats; the loop has it decide by `kick`."""

    def __init__(self, node: Node, kick: Callable[[], None]) -> None:
        self.node = node
        self._kick = kick
        self._lease_timer: asyncio.TimerHandle | None = None
        self._given_back: set[tuple[str, PodUid]] = set()

    def proxy_joined(self, name: str, outbox: Outbox) -> None:
        """A proxy's stream begins."""
        self.node.leases.joined(name, outbox, self.node.leases_of_serving())
        self.node.save_proxies()
        self._kick()

    def proxy_left(self, name: str, outbox: Outbox) -> None:
        """A proxy's stream ended; its leases last until the deadline."""
        for uid in self.node.leases.left(name, outbox, self.node.world.now()):
            self.recount(uid)
        self._expire()

    def _expire(self) -> None:
        touched, due = self.node.leases.expire(self.node.world.now())
        for uid in touched:
            self.recount(uid)
        if touched:
            self.node.save_proxies()
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        if due is not None:
            loop = asyncio.get_running_loop()
            self._lease_timer = loop.call_at(due + SLACK, self._expire)
        self._kick()

    def watch_leases(self) -> None:
        """After a restart: end what earlier proxies held when its time has come."""
        self._expire()

    def proxy_demand(
        self, name: str, uid: PodUid, demand: Demand, idle: Iterable[tuple[PodUid, int]] = ()
    ) -> None:
        """A proxy's demand for a seat changed. `idle` are leases that it gives back unasked: that
        of a seat which must leave for this one needn't be asked for any more."""
        for given_back, generation in idle:
            if self.node.leases.returned(name, given_back, generation):
                self._given_back.add((name, given_back))
                self._kick()
        # Kept also for a seat that is not known yet: after a lost record it will be.
        answered = self.node.leases.report(name, uid, demand)
        if uid in self.node.seats:
            self.node.seats[uid].demand.answered(answered)
        self.recount(uid)

    def recount(self, uid: PodUid) -> None:
        """What all proxies report of the seat together has changed, or the seat is new."""
        seat = self.node.seats.get(uid)
        if seat is None:
            return
        total = self.node.leases.total(uid)
        now = self.node.world.now()
        seat.demand.counted(total.in_flight, total.waiting, total.since, now, total.trace)
        for listener in self.node.demand_listeners:
            listener.demand_changed(seat)
        self._kick()

    def grant_again(self) -> None:
        """What was given back and stays active, now that it is decided who leaves."""
        for name, uid in self._given_back:
            seat = self.node.seats.get(uid)
            if seat is not None and seat.state is SeatState.ACTIVE and not seat.ending.asked:
                self.node.leases.grant_again(name, uid, seat.history.lease)
        self._given_back.clear()

    def proxy_drained(self, name: str, uid: PodUid, generation: int) -> None:
        """A proxy has nothing in flight on this lease. Only the last one's changes what may be
        done: to decide for each takes as long as a message."""
        leases = self.node.leases
        self._given_back.discard((name, uid))  # it wants none, as one that is being stopped
        if leases.returned(name, uid, generation) and leases.drained(uid):
            self._kick()
