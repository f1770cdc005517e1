"""What no policy could exceed, and what the pods' shares alone waste."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from bench.placement.fill import taken
from bench.placement.openb.trace import capacity
from kybernate.core.placement.model import FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kybernate.core.placement import Ask, Supply


def relaxed(nodes: Sequence[Supply], coming: Sequence[Ask]) -> float:
    """The most GPU that any choice among the pods could take, in percent of the GPUs.

    Relaxation: all nodes are one, pods are divisible, any may be left out, and each of GPU, CPU and
    memory is looked at alone (the least of three fractional knapsacks).
    """
    whole = capacity(nodes)
    cpu = _knapsack(coming, lambda ask: ask.cpu, sum(node.cpu for node in nodes))
    memory = _knapsack(coming, lambda ask: ask.memory, sum(node.memory for node in nodes))
    return 100 * min(whole, cpu, memory, sum(ask.total for ask in coming)) / whole


def pooled(nodes: Sequence[Supply], coming: Sequence[Ask]) -> float:
    """Where the same arrivals end on one node with all GPUs and no end of CPU and memory.

    In percent of the GPUs; shares go to the tightest GPU. What is missing to 100 is the price of
    the shares themselves: of each GPU with a pod of 810 thousandths, 190 are left that hardly any
    pod is small enough for. It is no bound: another order of the same choices could end higher.
    """
    steps = [(ask.share, 0, 0, ask.gpus) for ask in coming if ask.gpus]
    whole = capacity(nodes)
    return 100 * taken(steps, 0, 0, whole // FULL, []) / whole


def _knapsack(coming: Sequence[Ask], weight: Callable[[Ask], int], room: float) -> float:
    taken_up = 0.0
    by_value = sorted(coming, key=lambda ask: ask.total / weight(ask) if weight(ask) else inf)
    for ask in reversed(by_value):
        need = weight(ask)
        part = min(1.0, room / need) if need else 1.0
        taken_up += part * ask.total
        room -= part * need
    return taken_up
