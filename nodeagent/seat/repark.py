"""Park again what came back to a GPU while its seat is parked.

The tree was thawed by somebody, or one of its processes was restored. The seat stays PARKED
throughout: its GPUs may long be another's, so there is no way back to running. What can't be
parked again is ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.errors import DeadlineError, DriverError, NotFoundError
from nodeagent.seat.steps import Broken

if TYPE_CHECKING:
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat
    from nodeagent.seat.steps import Steps

_POLL = 0.005


async def park_again(node: Node, steps: Steps, seat: Seat) -> None:
    """Lock, checkpoint and freeze what of it is on its GPUs, and see that it is gone from them.

    Raises Broken if that can't be done; the seat must then be ended.
    """
    settings, freezer = node.settings, node.world.freezer
    try:
        newcomers, held = await steps.holders(seat)
        earlier = (p for p in seat.tree.cuda if node.world.procs.alive(p.pid, p.start))
        known = seat.tree.held
        most = {gpu: max(size, known.get(gpu, 0)) for gpu, size in held.items()}
        seat.tree.uses(tuple(dict.fromkeys((*earlier, *newcomers))), most)
        await node.save(seat)
        freezer.thaw(seat.tree.handle)
        helper = await steps.helper(seat)
        pids = [process.pid for process in seat.tree.cuda]
        await helper.park(pids, settings.lock_timeout_s, settings.step_deadline_s)
        await freezer.freeze(seat.tree.handle, settings.freeze_deadline_s)
        await _see_it_gone(node, steps, seat)
    except (DriverError, DeadlineError, NotFoundError, OSError) as error:
        raise Broken(f"it used a GPU without its turn and could not be parked: {error}") from error
    node.tell(seat, "Normal", "ParkedAgain", "what of it used a GPU without its turn is parked")


async def _see_it_gone(node: Node, steps: Steps, seat: Seat) -> None:
    until = node.world.now() + node.settings.confirm_deadline_s
    while True:
        found, held = await steps.holders(seat)
        empty = held.keys() == set(seat.identity.gpus) and not any(held.values())
        if not found or empty:
            return
        if node.world.now() >= until:
            raise DeadlineError(
                f"NVML still shows it {node.settings.confirm_deadline_s:g} s after the checkpoint"
            )
        await asyncio.sleep(_POLL)
