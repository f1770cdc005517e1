"""A bound in hindsight: the load above which no policy that interrupts nothing is in time.

See "A bound in hindsight" in docs/how-to/plan/simulate-savings.md for the definition and the proof.
Each model is looked at alone; what all of them need at least is held against the GPUs' time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kybernate.core.simulate.trace import Trace
    from kybernate.core.simulate.world import Costs

_STEPS = 12
_GOLDEN = (math.sqrt(5) - 1) / 2
_PARTS = 10
_TINY = 1e-9


def load(trace: Trace, gpus: int, costs: Costs, share: float = 0.99) -> float:
    """The part of the GPUs' time that this share in time takes at least: above 1 nobody can."""
    requests = zip(trace.at, trace.models, trace.work, strict=True)
    after = [_within(size, costs) + costs.fixed + size / costs.park for size in trace.sizes]
    end = max(at + after[model] + work for at, model, work in requests)
    late = (1 - share) * len(trace.at)
    most = max(_most(trace, costs, weights, late) for weights in _weights(trace.sizes, costs))
    return most / (gpus * (end - trace.at[0]))


def seconds(
    at: Sequence[float], work: Sequence[float], swap: float, within: float, price: float
) -> float:
    """No schedule has one model in memory for less, in seconds, if each request that is late costs
    `price` besides."""
    done: list[float] = [0.0]
    """The least for the requests before each."""
    near = within + max(work, default=0.0)
    oldest, away = 0, math.inf
    """From `oldest` on they came at most `near` before the one looked at. Of those before it, as a
    visit's first: the least before it, less when the visit had to serve."""
    for last, (now, takes) in enumerate(zip(at, work, strict=True)):
        while now - at[oldest] > near:
            away = min(away, done[oldest] - at[oldest] - within)
            oldest += 1
        batch = tail = takes
        served = done[last] + takes
        for first in range(last - 1, oldest - 1, -1):
            took, ago = work[first], now - at[first]
            if ago <= within:
                served = min(served, done[first] + max(batch, took))
                batch = min(max(batch, took), batch + price)
            else:
                served = min(served, done[first] + max(ago - within + tail, took))
            tail = min(max(tail, took - ago), tail + price)
        served = min(served, away + now + tail)
        done.append(min(done[last] + price, swap + served))
    return done[-1]


def _most(trace: Trace, costs: Costs, weights: Sequence[float], late: float) -> float:
    """For any price so much is needed at least: the highest of many prices' is taken."""
    models: list[tuple[list[float], list[float]]] = [([], []) for _ in trace.sizes]
    for at, model, work in zip(trace.at, trace.models, trace.work, strict=True):
        models[model][0].append(at)
        models[model][1].append(work)

    def needed(price: float) -> float:
        total = -price * late
        for (at, work), size, weight in zip(models, trace.sizes, weights, strict=True):
            if weight:
                swap, within = _swap(size, costs), _within(size, costs)
                total += weight * seconds(at, work, swap, within, price / weight)
        return total

    return _highest(needed, 2 * max(_swap(size, costs) for size in trace.sizes) + max(trace.work))


def _highest(of: Callable[[float], float], high: float) -> float:
    """The highest value found between 0 and `high`, by golden sections."""
    low = 0.0
    one, other = high - _GOLDEN * high, _GOLDEN * high
    at_one, at_other = of(one), of(other)
    best = max(at_one, at_other)
    for _ in range(_STEPS):
        if at_one < at_other:
            low, one, at_one = one, other, at_other
            other = low + _GOLDEN * (high - low)
            at_other = of(other)
        else:
            high, other, at_other = other, one, at_one
            one = high - _GOLDEN * (high - low)
            at_one = of(one)
        best = max(best, at_one, at_other)
    return best


def _weights(sizes: Sequence[float], costs: Costs) -> list[list[float]]:
    """Parts of a GPU for each model so that those that fit together have 1 at most (Fekete and
    Schepers, 2001)."""
    need = [min(1.0, size * (1 + costs.room) / costs.gpu_gb) for size in sizes]
    found = [need, *([_rounded(one, parts) for one in need] for parts in range(1, _PARTS))]
    return [one for one in found if not any(_below(one, other) for other in found)]


def _rounded(need: float, parts: int) -> float:
    counted = need * (parts + 1)
    whole = abs(counted - round(counted)) < _TINY
    return need if whole else math.floor(counted) / parts


def _below(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _swap(size: float, costs: Costs) -> float:
    return 2 * costs.fixed + size / costs.wake + size / costs.park


def _within(size: float, costs: Costs) -> float:
    return costs.slack + costs.wakes * (costs.fixed + size / costs.wake)
