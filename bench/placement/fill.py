"""How far a node would fill up: the expected future use of what it has left.

Pods as expected come to the node one by one, and each that it suits stays. What they take in the
end, on average over some such futures, is the *use* of what is left. Placing a pod somewhere costs
the use lost there less what the pod itself takes: GPU that nobody will use any more, whether for
want of CPU or memory, or since the rest is too small, or since a block of whole GPUs is broken.

An untouched node is worth more than that: the scheduler can send a pod to it that wants all of its
GPUs, and then nothing is lost. The chance of it is such pods' part of the demand, per part of the
supply that untouched nodes which suit them are.

In a future, pods are drawn by their demand for GPU: each thousandth that is asked for counts alike.
The same futures serve all nodes at all times: two states differ in their use only if they differ.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import accumulate
from typing import TYPE_CHECKING

from kybernate.core.placement.model import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.placement.prospect import Prospect
    from kybernate.core.placement.model import Ask, Supply
    from kybernate.core.placement.outlook import Outlook

    Step = tuple[int, int, int, int]
    """Share, CPU, memory and GPUs of a pod to come."""

FUTURES = 16
"""Futures to average over. More of them decide better, at a cost that grows alike."""

LENGTH = 120
"""Pods in a future: several times what fills a node, since many of them won't fit."""

MOST_KNOWN = 400_000
"""States of nodes that are kept, some 100 MB; then all are forgotten and computed anew."""


class Fill:
    """The use of nodes under one prospect. What was computed is kept, per state of a node."""

    def __init__(self, prospect: Prospect, futures: int = FUTURES, length: int = LENGTH) -> None:
        self._futures = list(_draw(prospect.outlook, futures, length))
        self._shares = sorted({kind.ask.share for kind in prospect.outlook.kinds if kind.ask.gpus})
        self._blocks = prospect.blocks
        self._for: dict[tuple[str, int], list[list[Step]]] = {}
        self._known: dict[tuple[object, ...], float] = {}

    def use(self, node: Supply) -> float:
        """Thousandths of a GPU, of those that are left, that pods to come will take.

        All of them if nothing is known of pods to come.
        """
        free = tuple(sorted(node.free))
        key = free, node.cpu, node.memory, node.product
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = self._simulate(node, free)
        return found

    def _simulate(self, node: Supply, free: tuple[int, ...]) -> float:
        if not self._futures:
            return float(sum(free))
        if not free or not free[-1]:
            return 0.0
        whole = free.count(FULL)
        parts = [left for left in free if 0 < left < FULL]
        futures = self._steps(node.product, bisect_right(self._shares, free[-1]))
        total = sum(taken(pods, node.cpu, node.memory, whole, parts.copy()) for pods in futures)
        use = total / len(self._futures)
        return use + self._chance(node) * (sum(free) - use) if whole == len(free) else use

    def _chance(self, node: Supply) -> float:
        """Of an untouched node: how likely it goes to a pod that wants all its GPUs, 0 to 1."""
        size = len(node.free)
        return min(1.0, sum(p for ask, p in self._blocks if ask.gpus == size and node.suits(ask)))

    def _steps(self, product: str, shares: int) -> list[list[Step]]:
        """The futures, without pods that can't run on the product or ask for a larger share."""
        found = self._for.get((product, shares))
        if found is None:
            most = self._shares[shares - 1] if shares else 0
            found = [
                [
                    (ask.share, ask.cpu, ask.memory, ask.gpus)
                    for ask in pods
                    if ask.share <= most and (not ask.products or product in ask.products)
                ]
                for pods in self._futures
            ]
            self._for[product, shares] = found
        return found


def taken(pods: list[Step], cpu: int, memory: int, whole: int, parts: list[int]) -> int:
    """Thousandths that the pods take of a node, those that fit, in this order.

    `whole` GPUs are free, and `parts` are left of shared ones, the smallest first (changed here).
    """
    total = 0
    top = FULL if whole else parts[-1]
    for share, need, host, gpus in pods:
        if share > top or need > cpu or host > memory:
            continue
        if share == FULL:
            if gpus > whole:
                continue
            whole -= gpus
        else:
            at = bisect_left(parts, share)
            if at < len(parts):
                left = parts.pop(at) - share
            else:
                whole -= 1
                left = FULL - share
            if left:
                insort(parts, left)
        cpu -= need
        memory -= host
        total += share * gpus
        if not whole:
            if not parts:
                break
            top = parts[-1]
    return total


def _draw(outlook: Outlook, futures: int, length: int) -> Iterator[list[Ask]]:
    asks = [kind.ask for kind in outlook.kinds if kind.ask.gpus]
    bounds = list(accumulate(kind.part * kind.ask.total for kind in outlook.kinds if kind.ask.gpus))
    if not asks:
        return
    numbers = _numbers()
    for _ in range(futures):
        picks = (bisect_right(bounds, next(numbers) * bounds[-1]) for _ in range(length))
        yield [asks[min(at, len(asks) - 1)] for at in picks]


def _numbers() -> Iterator[float]:
    """The same numbers in [0, 1) every time: splitmix64 (Steele et al., OOPSLA 2014)."""
    mask, state = (1 << 64) - 1, 0
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        yield ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)
