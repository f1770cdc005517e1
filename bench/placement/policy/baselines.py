"""Other people's swap policies by their published rules, all with our swap instead of their reload.

That favours them: llama-swap and Ollama end a model and load it again, which takes longer than to
park and to wake it. So what differs between the policies is whom they swap, where and when.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bench.placement.policy.queued import Queued
from kybernate.core.simulate.fifo import Fifo
from kybernate.core.simulate.world import Where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.core.simulate.world import Policy, World


class LlamaSwap(Queued):
    """llama-swap's: one queue, first come, first served, requests for a loaded model go ahead."""

    head_only = True


class Ttl(Queued):
    """Least recently used, and who is unused for `keep` seconds leaves by itself: Ollama's
    `keep_alive`, by its default of five minutes."""

    keep = 300.0

    def act(self, world: World) -> float:
        """See `world.Policy`."""
        for m, state in enumerate(world.state):
            if state is Where.ACTIVE and world.idle(m) and self._ends(world, m) <= world.now:
                world.park(m)
        return super().act(world)

    def again(self, world: World) -> float:
        """See `Queued.again`."""
        there = (m for m, state in enumerate(world.state) if state is Where.ACTIVE)
        return min((self._ends(world, m) for m in there if world.idle(m)), default=math.inf)

    def _ends(self, world: World, m: int) -> float:
        return world.used_at[m] + self.keep


class Gdsf(Queued):
    """Greedy-dual size frequency (Cherkasova 1998): the age of the cache when the model was last
    called, and its calls times what a wake costs for each GB."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._age = 0.0
        self._worth: dict[int, tuple[int, float]] = {}

    def worth(self, world: World, m: int) -> float:
        """See `Queued.worth`."""
        calls = world.calls[m]
        if m not in self._worth or self._worth[m][0] != calls:
            cost = world.wakes_in[m] / world.size[m]
            self._worth[m] = (calls, self._age + calls * cost)
        return self._worth[m][1]

    def act(self, world: World) -> float:
        """See `world.Policy`."""
        there = [m for m, state in enumerate(world.state) if state is Where.ACTIVE]
        worths = {m: self.worth(world, m) for m in there}
        again = super().act(world)
        gone = [worths[m] for m in there if world.state[m] is Where.PARKING]
        self._age = max([self._age, *gone])
        return again


class ServerlessLlm(Queued):
    """ServerlessLLM's (OSDI 2024): a model goes where its start-up is estimated to be soonest."""

    def cost(self, world: World, leave: list[int], gpu: int, m: int) -> float:
        """See `Queued.cost`."""
        leaving = [o for o in world.on[gpu] if world.state[o] is Where.PARKING]
        return sum(world.parks_in[o] for o in (*leave, *leaving)) + world.wakes_in[m]


class Edf(Queued):
    """Earliest deadline first with an estimate of the wait, as QLM's (SoCC 2024): who can't be in
    time any more comes last, and a model with requests in flight is interrupted for one whose
    deadline comes before."""

    def order(self, world: World) -> list[int]:
        """See `Queued.order`."""
        those = [m for m in world.waiting if world.state[m] is Where.PARKED]
        start = {m: world.asks_since(m) + world.within[m] - world.wakes_in[m] for m in those}
        return sorted(those, key=lambda m: (start[m] < world.now, start[m]))

    def leaves(self, world: World, m: int, whom: int) -> bool:
        """See `Queued.leaves`."""
        if world.idle(m):
            return True
        started = world.now >= world.active_since[m] + 1.0
        start = world.asks_since(whom) + world.within[whom] - world.wakes_in[whom]
        soon = world.now <= start <= world.now + world.parks_in[m] + 0.5
        return started and not world.queue[m] and soon

    def worth(self, world: World, m: int) -> float:
        """See `Queued.worth`."""
        return world.used_at[m] + 1e9 * world.running[m]

    def again(self, world: World) -> float:
        """See `Queued.again`."""
        return world.now + 0.25 if world.waiting else math.inf


class RoundRobin(Queued):
    """Turns of equal length among all who have work, as RollMux' groups have them: a turn ends when
    the model is idle, or after `quantum` seconds while others wait."""

    quantum = 10.0

    def leaves(self, world: World, m: int, _for: int) -> bool:
        """See `Queued.leaves`."""
        return world.idle(m) or world.now >= world.active_since[m] + self.quantum

    def worth(self, world: World, m: int) -> float:
        """See `Queued.worth`."""
        return world.active_since[m]

    def again(self, world: World) -> float:
        """See `Queued.again`."""
        return world.now + 0.5 if world.waiting else math.inf


class Prewarm(Queued):
    """Forecasts by frequency: as `Queued`, but the least called leave first, and free room is
    filled with those that are called most (WarmServe's idea)."""

    def worth(self, world: World, m: int) -> float:
        """See `Queued.worth`."""
        return float(world.calls[m])

    def act(self, world: World) -> float:
        """See `world.Policy`."""
        again = super().act(world)
        if any(world.state[m] is Where.PARKED for m in world.waiting):
            return again
        parked = [m for m, state in enumerate(world.state) if state is Where.PARKED]
        for m in sorted(parked, key=lambda m: -world.calls[m]):
            for gpu in range(world.gpus):
                if world.calls[m] and world.fits(m, world.on[gpu]):
                    world.wake(m, gpu)
                    break
        return again


BASELINES: Mapping[str, Callable[[World], Policy]] = {
    "llama-swap": LlamaSwap,
    "lru": Fifo,
    "ttl (ollama)": Ttl,
    "gdsf": Gdsf,
    "serverlessllm": ServerlessLlm,
    "edf (qlm)": Edf,
    "round-robin": RoundRobin,
    "prewarm": Prewarm,
}
