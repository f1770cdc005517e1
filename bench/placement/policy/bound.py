"""A bound in hindsight: at least so many are late under any policy that interrupts nothing.

See "A bound in hindsight" in docs/how-to/plan/simulate-savings.md for the definition and the proof.
Time in GPU memory has a price, which changes from window to window. Each model is looked at alone:
it pays for its time, or for requests that are late. What all of them pay at least, less the price
of the GPUs' time, is no more than the number of late requests.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.core.simulate.trace import Trace
    from kybernate.core.simulate.world import Costs

WINDOW = 10.0
_LOOKS = 150
_PATIENCE = 5
_PARTS = 10
_TINY = 1e-9

_Spot = tuple[int, float]
"""A moment: the window in which it is, and the part of that window that has passed."""


def late(
    trace: Trace, gpus: int, costs: Costs, enough: float = math.inf, looks: int = _LOOKS
) -> float:
    """No schedule has fewer requests late. Prices are sought for so many `looks`, or until more
    than `enough` are known to be late."""
    most = 0.0
    for weights in sorted(_weights(trace.sizes, costs), key=lambda one: -one.count(0.0)):
        if most <= enough:
            most = max(most, _sought(trace, gpus, costs, weights, enough, looks))
    return most


class Prices:
    """What a GPU's time costs, in late requests, for each window from `start` on; before and after
    it is free."""

    def __init__(self, each: Sequence[float], start: float, window: float = WINDOW) -> None:
        self.each = [*each, 0.0]
        self.paid = [0.0, *accumulate(each)]
        self._start, self._window = start, window

    def times(self, weight: float) -> Prices:
        """For whoever takes this part of a GPU."""
        each = [weight * one for one in self.each[:-1]]
        return Prices(each, self._start, self._window)

    def spot(self, when: float) -> _Spot:
        """See `_Spot`."""
        passed = max(0.0, when - self._start) / self._window
        number = int(passed)
        many = len(self.each) - 1
        return (number, passed - number) if number < many else (many, 0.0)

    def until(self, spot: _Spot) -> float:
        """What all time before it costs."""
        return self.paid[spot[0]] + self.each[spot[0]] * spot[1]

    def bends(self, low: float, high: float) -> list[float]:
        """When windows begin between the two."""
        first = math.ceil((low - self._start) / self._window)
        last = math.floor((high - self._start) / self._window)
        return [self._start + n * self._window for n in range(first, last + 1)]


class Demand:
    """The requests for one model, in order: when they came and seconds of work. Each may wait for
    `within` seconds; the model's swaps take `wake` and `park`."""

    def __init__(
        self,
        requests: Sequence[tuple[float, float]],
        swaps: tuple[float, float],
        within: float,
        prices: Prices,
    ) -> None:
        wake, park = swaps
        self.at = [at for at, _ in requests]
        self.starts = [at + within - wake for at in self.at]
        """The latest start of a visit that serves each."""
        self.ends = [at + work + park for at, work in requests]
        """No visit that serves it ends sooner,"""
        self.takes = [wake + work + park for _, work in requests]
        """or is shorter."""
        self._near = within + max((work for _, work in requests), default=0.0)
        self._start_spots = [prices.spot(one) for one in self.starts]
        self._end_spots = [prices.spot(one) for one in self.ends]
        self._stays = [
            _stays(at - wake, start, takes, prices)
            for at, start, takes in zip(self.at, self.starts, self.takes, strict=True)
        ]
        self._first: list[int] = []
        """Of the least for each request, the first of the visit that serves it; -1: it is late."""

    def least(self, prices: Prices, fine: float = 1.0) -> float:
        """What the model pays at least, if each late request costs `fine`."""
        paid, each = prices.paid, prices.each
        start = [paid[k] + each[k] * part for k, part in self._start_spots]
        end = [paid[k] + each[k] * part for k, part in self._end_spots]
        alone = [
            min([paid[n] + each[n] * b - paid[k] - each[k] * a for k, a, n, b in stays])
            for stays in self._stays
        ]
        done, self._first = [0.0], []
        oldest, away, far = 0, math.inf, 0
        for last, now in enumerate(self.at):
            while now - self.at[oldest] > self._near:
                if done[oldest] - start[oldest] < away:
                    away, far = done[oldest] - start[oldest], oldest
                oldest += 1
            stay, until = alone[last], end[last]
            served, first = done[last] + max(stay, until - start[last]), last
            for one in range(last - 1, oldest - 1, -1):
                pays = done[one] + max(stay, alone[one], max(until, end[one]) - start[one])
                if pays < served:
                    served, first = pays, one
                # Whoever is between is served, or late.
                stay = min(max(stay, alone[one]), stay + fine)
                until = min(max(until, end[one]), until + fine)
            if away + until < served:
                served, first = away + until, far
            is_late = done[last] + fine <= served
            self._first.append(-1 if is_late else first)
            done.append(min(done[last] + fine, served))
        return done[-1]

    def visits(self, prices: Prices, fine: float = 1.0) -> list[tuple[float, float]]:
        """About when the model is in memory, where it pays least; after `least`."""
        found, last = [], len(self.at) - 1
        while last >= 0:
            first = self._first[last]
            if first >= 0:
                found.append(self._visit(first, last, prices, fine))
            last = first - 1 if first >= 0 else last - 1
        return found

    def _visit(self, first: int, last: int, prices: Prices, fine: float) -> tuple[float, float]:
        start, those = self.starts[first], range(first, last + 1)
        ends = sorted((max(self.ends[n], start + self.takes[n]) for n in those), reverse=True)
        until = min(
            (prices.until(prices.spot(end)) + skipped * fine, end)
            for skipped, end in enumerate(ends[:_PATIENCE])
        )[1]
        served = [n for n in those if max(self.ends[n], start + self.takes[n]) <= until]
        takes = max(self.takes[n] for n in served)
        soonest = max(self.ends[n] for n in served) - takes
        if soonest >= start:
            return start, until

        def cost(begin: float) -> float:
            return prices.until(prices.spot(begin + takes)) - prices.until(prices.spot(begin))

        begin = min(_moments(soonest, start, takes, prices), key=cost)
        return begin, begin + takes


def _moments(low: float, high: float, takes: float, prices: Prices) -> list[float]:
    """Between the two, the starts at one of which a stay of so many seconds costs least: its cost
    bends where a window begins."""
    bends = [end - takes for end in prices.bends(low + takes, high + takes)]
    return [low, high, *prices.bends(low, high), *bends]


def _stays(
    low: float, high: float, takes: float, prices: Prices
) -> list[tuple[int, float, int, float]]:
    moments = _moments(low, high, takes, prices)
    return [(*prices.spot(one), *prices.spot(one + takes)) for one in moments]


def _sought(
    trace: Trace, gpus: int, costs: Costs, weights: Sequence[float], enough: float, looks: int
) -> float:
    """The highest found by prices that rise where more is used than there is."""
    end = max(
        at + work + _within(trace.sizes[m], costs) + costs.fixed + trace.sizes[m] / costs.park
        for at, m, work in zip(trace.at, trace.models, trace.work, strict=True)
    )
    many = math.ceil((end - trace.at[0]) / WINDOW)
    prices = Prices([0.3] * many, trace.at[0])
    demands = _demands(trace, costs, weights, prices)
    best, pace, since = 0.0, 1.0, 0
    for _ in range(looks):
        each = prices.each[:many]
        found, used = -gpus * sum(each), [-float(gpus)] * (many + 1)
        for demand, weight in demands:
            own = prices.times(weight)
            found += demand.least(own)
            for start, until in demand.visits(own):
                _count(used, prices.spot(start), prices.spot(until), weight)
        since = 0 if found > best else since + 1
        best = max(best, found)
        if best > enough:
            break
        if since == _PATIENCE:
            pace, since = 0.7 * pace, 0
        aim = max(1.05 * min(enough, len(trace.at)), 1.1 * best + 1)
        uneven = sum(u * u for u, price in zip(used, each, strict=False) if u > 0 or price)
        step = pace * (aim - found) / (uneven or 1.0)
        raised = [max(0.0, price + step * u) for price, u in zip(each, used, strict=False)]
        prices = Prices(raised, trace.at[0])
    return best


def _demands(
    trace: Trace, costs: Costs, weights: Sequence[float], prices: Prices
) -> list[tuple[Demand, float]]:
    requests: list[list[tuple[float, float]]] = [[] for _ in trace.sizes]
    for at, model, work in zip(trace.at, trace.models, trace.work, strict=True):
        requests[model].append((at, work))
    found = []
    for those, size, weight in zip(requests, trace.sizes, weights, strict=True):
        if those and weight:
            swaps = costs.fixed + size / costs.wake, costs.fixed + size / costs.park
            found.append((Demand(those, swaps, _within(size, costs), prices), weight))
    return found


def _count(used: list[float], start: _Spot, until: _Spot, weight: float) -> None:
    """Add a visit to what is used of each window."""
    used[start[0]] -= weight * start[1]
    for number in range(start[0], until[0]):
        used[number] += weight
    used[until[0]] += weight * until[1]


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


def _within(size: float, costs: Costs) -> float:
    return costs.slack + costs.wakes * (costs.fixed + size / costs.wake)
