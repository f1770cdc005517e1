"""What seats lost on a node cost later pods.

Whoever has a seat takes turns on its GPUs, so that a seat breaks nothing for the seats beside it.
What runs out on a node is its seats, or the memory to keep them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kybernate.core.placement.model import Ask, Supply
    from kybernate.core.placement.outlook import Outlook


class Pool:
    """The use of nodes with seats under one outlook: what is left of both, as far as pods to come
    can have both."""

    def __init__(self, outlook: Outlook) -> None:
        self._kinds = outlook.kinds
        self._density: dict[str, float] = {}

    def use(self, node: Supply) -> float:
        """Thousandths of a GPU that pods to come will take; all if none are expected."""
        return self._use(sum(node.free), node.memory, self._of(node.product))

    def lost(self, node: Supply, ask: Ask) -> float:
        """What less of it there is once the pod has a seat there, beyond what the pod takes."""
        left, density = sum(node.free), self._of(node.product)
        after = self._use(left - ask.total, node.memory - ask.memory, density)
        return self._use(left, node.memory, density) - after - ask.total

    def _use(self, left: int, memory: int, density: float) -> float:
        return min(left, max(0, memory) / density) if density else left

    def _of(self, product: str) -> float:
        density = self._density.get(product)
        if density is None:
            density = self._density[product] = self._found(product)
        return density

    def _found(self, product: str) -> float:
        """Bytes per thousandth that pods to come fill there, on average."""
        kinds = [one for one in self._kinds if not one.ask.products or product in one.ask.products]
        gpu = sum(part * ask.total for ask, part in kinds)
        return sum(part * ask.memory for ask, part in kinds) / gpu if gpu else 0.0
