"""What others' swap policies have in common: an order of demand, and one of those who leave."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kybernate.core.simulate.fifo import fewest
from kybernate.core.simulate.world import Where

if TYPE_CHECKING:
    from kybernate.core.simulate.world import World


class Queued:
    """First come, first served, with the least recently used to leave; its methods are what other
    policies change. `head_only`: nobody is served before the oldest that finds no place."""

    head_only = False

    def __init__(self, _world: World) -> None:
        pass

    def act(self, world: World) -> float:
        """See `world.Policy`."""
        taken: set[int] = set()
        for m in self.order(world):
            spot = self.spot(world, m, taken)
            if spot is None:
                if self.head_only:
                    break
                continue
            gpu, leave = spot
            taken.add(gpu)
            for o in leave:
                world.park(o)
            if world.fits(m, world.on[gpu]):
                world.wake(m, gpu)
        return self.again(world)

    def again(self, _world: World) -> float:
        """When to look again without an event."""
        return math.inf

    def order(self, world: World) -> list[int]:
        """Who is served, first to last."""
        those = [m for m in world.waiting if world.state[m] is Where.PARKED]
        return sorted(those, key=world.asks_since)

    def worth(self, world: World, m: int) -> float:
        """The smaller, the sooner it leaves."""
        return world.used_at[m]

    def leaves(self, world: World, m: int, _for: int) -> bool:
        """Whether a model may be parked now."""
        return world.idle(m)

    def cost(self, world: World, leave: list[int], _gpu: int, _m: int) -> float:
        """Of the places that can be made, the cheapest is taken."""
        return sum(self.worth(world, o) for o in leave)

    def spot(self, world: World, m: int, taken: set[int]) -> tuple[int, list[int]] | None:
        """Where the model gets its place, and who leaves for it."""
        found = []
        for gpu in range(world.gpus):
            if gpu in taken:
                continue
            if world.fits(m, world.on[gpu]):
                return gpu, []
            leave = self._leave(world, m, gpu)
            if leave is not None:
                found.append((self.cost(world, leave, gpu, m), gpu, leave))
        return min(found)[1:] if found else None

    def _leave(self, world: World, m: int, gpu: int) -> list[int] | None:
        active = (o for o in world.on[gpu] if world.state[o] is Where.ACTIVE)
        able = (o for o in active if self.leaves(world, o, m))
        return fewest(world, m, gpu, sorted(able, key=lambda o: self.worth(world, o)))
