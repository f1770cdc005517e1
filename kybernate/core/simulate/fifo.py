"""First come, first served, in simulation: what others are held against. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kybernate.core.simulate.world import Where

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.core.simulate.world import World


class Fifo:
    """The oldest request first; a model leaves only when another needs its place, the one that was
    unused longest first. Whoever finds no place is passed over until there is one."""

    def __init__(self, _world: World) -> None:
        pass

    def act(self, world: World) -> float:
        """See `world.Policy`."""
        taken: set[int] = set()
        those = [m for m in world.waiting if world.state[m] is Where.PARKED]
        for m in sorted(those, key=world.asks_since):
            spot = _spot(world, m, taken)
            if spot is None:
                continue
            gpu, leave = spot
            taken.add(gpu)
            for o in leave:
                world.park(o)
            if world.fits(m, world.on[gpu]):
                world.wake(m, gpu)
        return math.inf


def _spot(world: World, m: int, taken: set[int]) -> tuple[int, list[int]] | None:
    """Where the model gets its place, and who leaves for it."""
    found = []
    for gpu in range(world.gpus):
        if gpu in taken:
            continue
        if world.fits(m, world.on[gpu]):
            return gpu, []
        leave = _leave(world, m, gpu)
        if leave is not None:
            found.append((sum(world.used_at[o] for o in leave), gpu, leave))
    return min(found)[1:] if found else None


def _leave(world: World, m: int, gpu: int) -> list[int] | None:
    """Who has to leave the GPU so that the model fits; None if it would not."""
    idle = (o for o in world.on[gpu] if world.state[o] is Where.ACTIVE and world.idle(o))
    return fewest(world, m, gpu, sorted(idle, key=lambda o: world.used_at[o]))


def fewest(world: World, m: int, gpu: int, able: Iterable[int]) -> list[int] | None:
    """Of those `able` to leave the GPU, first to last, who has to so that the model fits; None if
    it would not."""
    stay = {o for o in world.on[gpu] if world.state[o] is not Where.PARKING}
    leave: list[int] = []
    for o in able:
        if world.fits(m, stay):
            break
        stay.discard(o)
        leave.append(o)
    if not world.fits(m, stay):
        return None
    for o in tuple(reversed(leave)):
        if world.fits(m, {*stay, o}):
            stay.add(o)
            leave.remove(o)
    return leave
