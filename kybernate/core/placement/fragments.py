"""Fragmentation of a node: the GPU that the pods expected could not use, after Weng et al. (FGD).

Of a node with R thousandths left in all, a pod of a kind can't use R if the node doesn't suit it,
and else what is left on GPUs that are too small for it. The measure is the mean over the target.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kybernate.core.placement.model import Supply
    from kybernate.core.placement.outlook import Outlook

    Shape = tuple[int, int]
    """Share and GPUs of a kind."""

MOST_KNOWN = 400_000
"""States of nodes that are kept, some 100 MB; then all are forgotten and computed again."""


class Fragments:
    """The measure for one outlook. What was computed is kept, per state of a node."""

    def __init__(self, outlook: Outlook) -> None:
        self._target = outlook.target
        self._curves: dict[str, list[tuple[int, int, list[int], list[float]]]] = {}
        self._known: dict[tuple[object, ...], float] = {}
        self._cpus = sorted({kind.ask.cpu for kind in outlook.target})

    def of(self, node: Supply) -> float:
        """Thousandths of a GPU that a pod as expected couldn't use, on average."""
        free = tuple(sorted(node.free))
        key = free, bisect_right(self._cpus, node.cpu), node.product
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = sum(free) - self._usable(node, free)
        return found

    def _usable(self, node: Supply, free: tuple[int, ...]) -> float:
        if node.product not in self._curves:
            self._curves[node.product] = self._curve(node.product)
        usable = 0.0
        for share, gpus, cpus, parts in self._curves[node.product]:
            fitting = [left for left in free if left >= share]
            if len(fitting) >= gpus:
                usable += parts[bisect_right(cpus, node.cpu)] * sum(fitting)
        return usable

    def _curve(self, product: str) -> list[tuple[int, int, list[int], list[float]]]:
        """Per share and number of GPUs: the CPUs asked for, and the part of all asking for less."""
        found: dict[Shape, list[tuple[int, float]]] = defaultdict(list)
        for ask, part in self._target:
            if ask.gpus and (not ask.products or product in ask.products):
                found[ask.share, ask.gpus].append((ask.cpu, part))
        curves = []
        for (share, gpus), kinds in found.items():
            parts = [0.0]
            for _, part in sorted(kinds):
                parts.append(parts[-1] + part)
            curves.append((share, gpus, sorted(cpu for cpu, _ in kinds), parts))
        return curves
