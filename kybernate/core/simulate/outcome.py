"""What came of a simulated trace, in the figures that people compare. Pure."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import TYPE_CHECKING, Final

from kybernate.core.simulate.fifo import Fifo
from kybernate.core.simulate.ours import Ours, fixed
from kybernate.core.simulate.world import World
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kybernate.core.simulate.trace import Trace
    from kybernate.core.simulate.world import Costs, Policy

_TINY: Final = 1e-9

POLICIES: Mapping[str, Callable[[World], Policy]] = {
    "ours": Ours,
    "fixed": fixed,
    "fifo": Fifo,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`in_time`: the share of requests whose answer began within their limit. Waits in seconds from
    arrival to the start of the work. `worst_model` has the longest `worst_wait` at its 99th
    percentile. `fairness`: Jain's index of the models' shares in time, 1 if all are alike.
    `interrupted`: requests that were parked in flight. `restores`: how often a model came back from
    NVMe. `gpu_seconds`: for which the models of each tenant were active.
    """

    requests: int
    gpus: int
    in_time: float
    wait_p50: float
    wait_p99: float
    wait_max: float
    swaps_per_hour: float
    interrupted: int
    worst_model: str
    worst_wait: float
    fairness: float
    restores: int = 0
    gpu_seconds: Mapping[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        """As JSON has it."""
        return asdict(self)


def simulate(
    trace: Trace, gpus: int, costs: Costs, policy: Callable[[World], Policy] = Ours
) -> Outcome:
    """Play the trace on so many GPUs."""
    world = World(trace, gpus, costs)
    world.run(policy(world))
    return outcome_of(world)


def late_share(
    trace: Trace, gpus: int, costs: Costs, policy: Callable[[World], Policy], most: float = 1.0
) -> float:
    """The share of requests that don't begin in time; where it is above `most`, at least so much:
    the trace is then not played to its end."""
    world = World(trace, gpus, costs)
    world.run(policy(world), most * len(trace.at) + _TINY)
    return world.late / len(trace.at)


def gpus_needed(
    trace: Trace,
    costs: Costs,
    policy: Callable[[World], Policy],
    share: float = 0.99,
    least: int = 1,
) -> int | None:
    """The fewest GPUs, of `least` and more, with which this share of requests is in time; None if
    even one for each model is too few."""
    low, high, most = least, len(trace.sizes) + 1, 1 - share + _TINY
    middle = low  # Where there are too few, that is soon known.
    while low < high:
        if late_share(trace, middle, costs, policy, most) <= most:
            high = middle
        else:
            low = middle + 1
        middle = min((low + high) // 2, 2 * low)
    return high if high <= len(trace.sizes) else None


def outcome_of(world: World) -> Outcome:
    """The figures of a world that was run to its end."""
    waits = sorted(wait for those in world.waits for wait in those)
    models = [m for m, those in enumerate(world.waits) if those]
    good = {m: _share([w <= world.within[m] + _TINY for w in world.waits[m]]) for m in models}
    tails = {m: percentile(sorted(world.waits[m]), 0.99) for m in models}
    worst = max(tails, key=lambda m: tails[m])
    in_time = sum(good[m] * len(world.waits[m]) for m in models) / len(waits)
    squares = sum(share * share for share in good.values())
    hours = max(world.now - world.trace.at[0], 1.0) / 3600
    return Outcome(
        len(waits),
        world.gpus,
        in_time,
        percentile(waits, 0.5),
        percentile(waits, 0.99),
        waits[-1],
        world.swaps / hours,
        world.interrupted,
        world.trace.names[worst],
        tails[worst],
        sum(good.values()) ** 2 / (len(good) * squares) if squares else 0.0,
        world.ram.restores if world.ram else 0,
        _by_tenant(world),
    )


def _by_tenant(world: World) -> dict[str, float]:
    found: dict[str, float] = {}
    for m, tenant in enumerate(world.trace.tenants):
        if tenant:
            found[tenant] = found.get(tenant, 0.0) + world.gpu_seconds(m)
    return found


def _share(those: Sequence[bool]) -> float:
    return sum(those) / len(those)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest that at least this share of them doesn't exceed."""
    return ordered[max(0, -(-int(len(ordered) * share * 1e6) // 10**6) - 1)]
