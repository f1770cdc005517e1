"""The gates of seats below RAM: TCP is held back, and what arrives is heard of."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import TIER_OF
from kybernate.errors import NotFoundError
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.lib.retry import retry
from kybernate.types import SeatState
from nodeagent import metrics
from nodeagent.seat.steps import Broken, Reverted

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.types import PodUid
    from nodeagent.seat.below import Below
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

OFFLOADED = TIER_OF.keys() - {SeatState.PARKED}
"""States of parked seats whose trees don't simply stand frozen in RAM: TCP is held back."""

GATE_DEADLINE = 5.0
_LOOK_DEADLINE = 10.0
_LOOK_AGAIN = 0.001


class Gates:
    """Shuts and opens them. `call_for` is told of what arrives at a shut gate."""

    def __init__(self, node: Node, life: Lifecycle, call_for: Callable[[Seat, str], None]) -> None:
        self._node = node
        self._world = node.world
        self._life = life
        self._call_for = call_for
        self._gates: KeyedLocks[PodUid, asyncio.Lock] = KeyedLocks(asyncio.Lock)

    @property
    def below(self) -> Below:
        """What it takes to leave RAM. Raises Broken."""
        below = self._world.below
        if below is None:
            raise Broken("this agent can't park or wake below RAM: it has no CRIU")
        return below

    async def shut(self, seat: Seat, port: int = 0) -> None:
        """Hold TCP back and hear of it, also at this port, where nobody listens yet.

        Raises NotFoundError, OSError, DeadlineError, RefusedError on the node's own network.
        """
        uid = seat.uid
        if seat.tree.init is None:
            raise NotFoundError("its container has ended")

        def heard(what: str) -> None:
            mine = self._node.seats.get(uid)
            if mine is not None:
                metrics.ARRIVALS.inc()
                self._call_for(mine, what)

        async with self._gates[uid]:
            await self.below.gatekeeper.shut(seat.tree.init.pid, heard, GATE_DEADLINE, port)

    async def see_looked(self, seat: Seat) -> None:
        """Nothing waits at its sockets that nobody has heard of: a request that has just come,
        dumped with its socket, would wake nobody. Raises Reverted."""
        until = self._world.now() + _LOOK_DEADLINE
        while seat.contact.unlooked:
            if self._world.now() >= until:
                raise Reverted("it is not known whether something waits at its sockets")
            await asyncio.sleep(_LOOK_AGAIN)

    async def open(self, seat: Seat) -> None:
        """Let TCP pass, however often it takes: nobody reaches the seat before."""
        await self._open(seat, lambda: True)

    async def reopen(self, seat: Seat) -> None:
        """TCP may be held back from its pod though nothing is below RAM: since another
        container's end, or for want of an agent."""
        await self._open(seat, lambda: seat.state not in OFFLOADED)

    async def _open(self, seat: Seat, still: Callable[[], bool]) -> None:
        async def opened() -> None:
            async with self._gates[seat.uid]:
                if (init := seat.tree.init) is not None and still():
                    dropped = await self.below.gatekeeper.open(init.pid, GATE_DEADLINE)
                    metrics.HELD_PACKETS.inc(dropped)

        def say(error: Exception) -> None:
            self._life.complain(seat, "GateStuck", f"TCP is still held back: {error}")

        await retry(opened, say)
