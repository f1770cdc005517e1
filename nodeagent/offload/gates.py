"""The gates of offloaded seats: TCP is held back, and what arrives is heard of."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import TIER_OF
from kybernate.errors import KybernateError
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.lib.retry import retry
from kybernate.types import SeatState
from nodeagent import metrics
from nodeagent.offload.ground import init_of
from nodeagent.seat.steps import Reverted

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.types import PodUid
    from nodeagent.offload.ground import Ground
    from nodeagent.seat.record import Seat

OFFLOADED = TIER_OF.keys() - {SeatState.PARKED}
"""States of parked seats whose trees don't simply stand frozen in RAM: TCP is held back."""

_GATE_DEADLINE = 5.0
_LOOK_DEADLINE = 10.0
_LOOK_AGAIN = 0.001


class Gates:
    """Shuts and opens them. `request_wake` is told of what arrives at a shut gate."""

    def __init__(self, ground: Ground, request_wake: Callable[[Seat, str], None]) -> None:
        self._ground = ground
        self._request_wake = request_wake
        self._gates: KeyedLocks[PodUid, asyncio.Lock] = KeyedLocks(asyncio.Lock)

    async def shut(self, seat: Seat, port: int = 0) -> None:
        """Hold TCP back and hear of it, also at this port, where nobody listens yet.

        Raises NotFoundError, OSError, DeadlineError, RefusedError on the node's own network.
        """
        uid, init = seat.uid, init_of(seat)

        def heard(what: str) -> None:
            mine = self._ground.node.seats.get(uid)
            if mine is not None:
                metrics.ARRIVALS.inc()
                self._request_wake(mine, what)

        async with self._gates[uid]:
            await self._ground.offloading.gatekeeper.shut(init, heard, _GATE_DEADLINE, port)

    async def see_looked(self, seat: Seat) -> None:
        """Nothing waits at its sockets that nobody has heard of: a request that has just come,
        dumped with its socket, would wake nobody. Raises Reverted."""
        until = self._ground.world.now() + _LOOK_DEADLINE
        while seat.contact.unlooked:
            if self._ground.world.now() >= until:
                raise Reverted("it is not known whether something waits at its sockets")
            await asyncio.sleep(_LOOK_AGAIN)

    async def open(self, seat: Seat) -> None:
        """Let TCP pass, however often it takes: nobody reaches the seat before."""
        await self._open(seat, lambda: True)

    async def reopen(self, seat: Seat) -> None:
        """TCP may be held back from its pod though nothing is offloaded: since another
        container's end, or for want of an agent."""
        await self._open(seat, lambda: seat.state not in OFFLOADED)

    async def _open(self, seat: Seat, still: Callable[[], bool]) -> None:
        async def opened() -> None:
            async with self._gates[seat.uid]:
                if (init := seat.tree.init) is not None and still():
                    gatekeeper = self._ground.offloading.gatekeeper
                    dropped = await gatekeeper.open(init.pid, _GATE_DEADLINE)
                    metrics.HELD_PACKETS.inc(dropped)

        def say(error: Exception) -> None:
            self._ground.node.complain(seat, "GateStuck", f"TCP is still held back: {error}")

        await retry(opened, say)

    async def hang_up(self, init: int) -> None:
        """Nobody needs to hear any more of who calls a container that has ended."""
        if self._ground.world.offloading is not None:
            with contextlib.suppress(OSError, KybernateError):
                await self._ground.offloading.gatekeeper.open(init, _GATE_DEADLINE)
