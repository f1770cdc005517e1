"""Workloads that are given the same GPUs, played for a day under the product's decision. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kybernate.core.simulate.ours import Ours
from kybernate.core.simulate.outcome import percentile
from kybernate.core.simulate.workloads import HOURS, day
from kybernate.core.simulate.world import World
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.core.simulate.workloads import Chance, Workload
    from kybernate.core.simulate.world import Costs

LATE: Final = 0.01
"""Of a workload's requests, so many may begin after its limit; of a place's, so many may be parked
in flight."""


@dataclass(frozen=True, slots=True)
class Place:
    """Workloads that are given the same GPUs. `waits` (s), ascending, for each of them from a
    request to its start. A workload that has a place to itself is never parked, and isn't played.
    """

    workloads: tuple[Workload, ...]
    waits: tuple[tuple[float, ...], ...] = ()
    swaps_per_hour: float = 0.0
    interrupted: int = 0

    @property
    def gpus(self) -> int:
        """How many GPUs it has."""
        return self.workloads[0].gpus

    @property
    def shared(self) -> bool:
        """Whether there is more than one workload."""
        return len(self.workloads) > 1

    def p99(self, number: int) -> float:
        """The wait (s) of that workload that 99 of 100 requests don't exceed."""
        return percentile(self.waits[number], 0.99) if self.waits and self.waits[number] else 0.0


@dataclass(frozen=True, slots=True)
class Late:
    """Why workloads can't have one place. `workload`: who would be late; `full`: the hour in which
    they would be busy for more than an hour; neither: too many requests would be parked in flight.
    """

    workload: Workload | None = None
    full: int | None = None


def together(
    workloads: tuple[Workload, ...], costs: Costs, chance: Callable[[str], Chance]
) -> Place | Late:
    """The place of these, all on the same GPUs, or why it can't be."""
    hours = [sum(one.busy(hour) for one in workloads) for hour in range(HOURS)]
    if max(hours) > 1:
        return Late(full=hours.index(max(hours)))
    world = World(day(workloads, chance), 1, costs)
    world.within = [one.p99 for one in workloads]
    watched = _Watched(world)
    try:
        world.run(watched)
        watched.check(world)
    except _LateError as late:
        return Late(None if late.model is None else workloads[late.model])
    waits = tuple(tuple(sorted(those)) for those in world.waits)
    return Place(workloads, waits, world.swaps / HOURS, world.interrupted)


class _LateError(Exception):
    def __init__(self, model: int | None) -> None:
        super().__init__(model)
        self.model = model


class _Watched:
    """The product's decision, until somebody can't be in time any more."""

    def __init__(self, world: World) -> None:
        self._ours = Ours(world)
        count = [0] * len(world.size)
        for m in world.trace.models:
            count[m] += 1
        self._may = [int(LATE * n) for n in count]
        self._seen = [0] * len(count)

    def act(self, world: World) -> float:
        """See `world.Policy`."""
        self.check(world)
        return self._ours.act(world)

    def check(self, world: World) -> None:
        """Raises _LateError naming the workload, None if too many requests were interrupted."""
        for m, waits in enumerate(world.waits):
            new, self._seen[m] = waits[self._seen[m] :], len(waits)
            self._may[m] -= sum([wait > world.within[m] + 1e-9 for wait in new])
            if self._may[m] < 0:
                raise _LateError(m)
        if world.interrupted > LATE * len(world.trace.at):
            raise _LateError(None)
