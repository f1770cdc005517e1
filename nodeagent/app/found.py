"""Trees that run without a record of their start: asked where they are, then taken over."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import SeatEvent
from kybernate.core.swap.swap import fits
from kybernate.errors import (
    DeadlineError,
    DriverError,
    KybernateError,
    NotFoundError,
    RestoreError,
)
from kybernate.lib.retry import retry
from kybernate.ports import DumpState, ProcessState
from nodeagent.seat.steps import Broken, Reverted

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.offload.offload import Offload
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Inventory, Node
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat
    from nodeagent.seat.steps import Steps

log = logging.getLogger(__name__)

_INVENTORY_POLL = 0.25
_PARK_TRIES = 3
_DEADLINE = 30.0


class Found:
    """Adopts seats that are `unverified`."""

    def __init__(
        self, node: Node, steps: Steps, life: Lifecycle, offload: Offload, kick: Callable[[], None]
    ) -> None:
        self._node = node
        self._steps = steps
        self._life = life
        self._offload = offload
        self._kick = kick

    async def accept_running(self, seat: Seat) -> None:
        """A tree runs that no record knows. Until it is known where it is, it is unverified.

        One that holds no device memory is kept parked. Another is taken over if it fits beside the
        seats that are in GPU memory; if it doesn't, it is parked, and killed if it can't be.
        """
        await self._heal(seat)
        self._node.world.freezer.thaw(seat.tree.handle)
        await self._inventory()
        for _ in range(_PARK_TRIES):
            states = await self._found_states(seat)
            checkpointed = states == {ProcessState.CHECKPOINTED}
            await self.locate(seat)
            room = not checkpointed and await self._has_room(seat, states)
            if room and fits(self._node.swap_view(), seat.uid):
                await self._runs_on(seat)
                return
            try:
                await (self._steps.settle(seat) if checkpointed else self._steps.park(seat))
            except Reverted as error:
                log.info("%s: found running where it has no room: %s", seat, error)
                continue
            self._node.transition(
                seat, SeatEvent.FOUND_PARKED, "found without a record; parked in RAM"
            )
            self._kick()
            if seat.ending.asked:
                self._life.let_go(seat)
            return
        raise Broken("found running without a record where it has no room, and it can't be parked")

    async def _inventory(self) -> Inventory:
        while self._node.inventory is None:  # noqa: ASYNC110 - it is no event here
            await asyncio.sleep(_INVENTORY_POLL)
        return self._node.inventory

    async def locate(self, seat: Seat) -> None:
        """Where a tree is that may be on several GPUs, if its record may be lost; it may have been
        on one that is lost now, too. Raises Broken for one that is: it would be taken to hold none.
        Also for one that is parked: the driver doesn't say from which GPU its memory came."""
        inventory = await self._inventory()
        if not seat.identity.anywhere or len(inventory.gpus) <= 1:
            return
        try:
            states, gpus = await self._steps.states(seat), await self._steps.find_gpus(seat)
        except (DriverError, DeadlineError) as error:
            raise Broken(f"it is not known on which GPU it is: {error}") from error
        if ProcessState.CHECKPOINTED in states:
            raise Broken("it is parked, and no record says on which GPU it was")
        lost = [gpu.uuid for gpu in inventory.gpus if not gpu.healthy]
        if lost and not gpus and states - {ProcessState.NO_CUDA}:
            raise Broken(f"it runs on none of the GPUs that are healthy; lost: {', '.join(lost)}")
        if len(gpus) > 1:
            raise Broken(f"it may be on one GPU, and is on {' and '.join(sorted(gpus))}")
        if gpus:
            seat.is_on(tuple(gpus))

    async def _found_states(self, seat: Seat) -> frozenset[ProcessState]:
        try:
            seat.tree.uses(await self._steps.find_cuda(seat))
            states = await self._steps.states(seat)
        except (DriverError, DeadlineError) as error:
            raise Broken(f"found running without a record, and the driver says: {error}") from error
        if ProcessState.FAILED in states:
            raise Broken("found running without a record, and some of its processes are failed")
        return states

    async def _has_room(self, seat: Seat, states: frozenset[ProcessState]) -> bool:
        """Whether what of it is checkpointed can be restored; what runs has its memory."""
        if ProcessState.CHECKPOINTED not in states:
            return True
        try:
            return await self._steps.lack_of_room(seat) is None
        except (DriverError, DeadlineError):
            return False

    async def _runs_on(self, seat: Seat) -> None:
        self._node.transition(
            seat, SeatEvent.FOUND_RUNNING, "found running, without a record of its start"
        )
        await self._steps.finish_wake(seat)
        await self._life.await_started(seat)

    async def _heal(self, seat: Seat) -> None:
        """No record knows what runs here: an agent may have died while it dumped it."""
        offloading, init = self._node.world.offloading, seat.tree.init
        if offloading is None or init is None:
            return
        try:
            if offloading.dumper.state(init.pid) is not DumpState.RUNNING:
                await offloading.dumper.keep(init.pid, seat.tree.handle, _DEADLINE)
        except KybernateError as error:
            raise Broken(f"found in the middle of a dump, without a record: {error}") from error
        await self._see_memory_in(offloading, seat, init.pid)
        await self._offload.gates.open(seat)

    async def _see_memory_in(self, offloading: Offloading, seat: Seat, init: int) -> None:
        """What it waits for comes in, if it was being restored lazily: from an artifact of this
        node, or from what was fetched, of which only the tree knows. Until that is in, no record
        may say that the seat is found: the next agent would drop what it reads."""

        def say(error: Exception) -> None:
            why = f"what its memory may come from is not known: {error}; trying again"
            self._node.complain(seat, "MemoryUnknown", why)

        seat.saved.pages(await retry(lambda: offloading.vault.lent(seat.uid), say))
        if seat.saved.paging:
            self._offload.lazies.begin(seat)
            return
        came_in = partial(offloading.dumper.pages_done, init, _DEADLINE)
        try:
            await retry(came_in, say, but=(NotFoundError, RestoreError))
        except (NotFoundError, RestoreError) as error:
            raise Broken(f"found without a record, and its memory never comes: {error}") from error
        self._life.aside(self._offload.lazies.abandon(seat))
