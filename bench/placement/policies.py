"""The policies for bare GPUs: the product's where a seat and a GPU are the same to them, else what
their authors wrote.

Worths that are rounded to steps of 10 are so by their authors' definition: equals go to the first
node, and that packs (see docs/concepts/scheduling/scheduling.md).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.placement.fill import Fill
from kybernate.core.placement import DEFAULT, FULL, Policy, Weights
from kybernate.core.placement.fragments import Fragments
from kybernate.core.placement.policies import (
    affinity,
    fragmentation_gradient,
    hundredths,
    mean,
    topology,
)
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bench.placement.prospect import Prospect
    from kybernate.core.placement import Ask, Place, Supply


@dataclass(frozen=True, eq=False)
class BarePolicy(Policy):
    """With `tightest`, of equal places the GPU with the least left is first."""

    tightest: bool = True

    def order(self, node: Supply, ways: Iterable[Place]) -> Iterable[Place]:
        """The places in the order in which equals are preferred."""
        if not self.tightest:
            return iter(ways)
        return iter(sorted(ways, key=lambda place: [node.free[at] for at in place.gpus]))


def policies(prospect: Prospect, weights: Weights | None = None) -> Mapping[str, BarePolicy]:
    """The table, for the demand expected."""
    outlook = prospect.outlook
    least = partial(_least_left, prospect)
    table = (
        BarePolicy(DEFAULT, partial(_least_waste, Fill(prospect)), tightest=False),
        BarePolicy("fgd", partial(fragmentation_gradient, Fragments(outlook)), tightest=False),
        BarePolicy("first-fit", lambda _node, _ask, _place: 0),
        BarePolicy("best-fit", least),
        BarePolicy("worst-fit", partial(_most_left, prospect), tightest=False),
        BarePolicy("bin-pack", _bin_pack),
        BarePolicy("spread", _spread, tightest=False),
        BarePolicy("topology", topology),
        BarePolicy("affinity", partial(_affinity, prospect)),
        BarePolicy("weighted", partial(_weighted, prospect, weights or Weights())),
    )
    return {policy.name: policy for policy in table}


def _least_waste(fill: Fill, node: Supply, ask: Ask, place: Place) -> float:
    """The least GPU that no pod to come will use."""
    return FULL - (fill.use(node) - fill.use(node.less(ask, place)) - ask.total)


def _least_left(prospect: Prospect, node: Supply, ask: Ask, place: Place) -> float:
    """The least left over of a node's CPU and GPUs."""
    cpu = (node.cpu - ask.cpu) / prospect.cpu
    gpu = (sum(node.free) - ask.total) / (FULL * prospect.outlook.gpus)
    return hundredths(1 - (cpu + gpu) / 2)


def _most_left(prospect: Prospect, node: Supply, ask: Ask, place: Place) -> float:
    """The opposite."""
    return FULL - _least_left(prospect, node, ask, place)


def _bin_pack(node: Supply, ask: Ask, place: Place) -> float:
    """Nodes that are in use already, in the steps of the packing policy of Weng et al."""
    if not ask.gpus:
        return 0
    if min(node.free) == FULL:
        return 10 * max(33 - len(node.free), len(node.free))
    whole = sum(node.free[at] == FULL for at in place.gpus)
    if whole:
        return 10 * max(50 - whole, 33)
    return 10 * max(50, 100 - sum(node.free[at] for at in place.gpus) // 100)


def _spread(node: Supply, ask: Ask, place: Place) -> float:
    """GPUs and nodes with the most left."""
    return (mean(node.free) + mean([node.free[at] for at in place.gpus])) / 2


def _affinity(prospect: Prospect, node: Supply, ask: Ask, place: Place) -> float:
    """Like to like; a pod without a GPU is like any other."""
    return affinity(prospect.outlook, node, ask, place) if ask.gpus else 0


def _weighted(prospect: Prospect, weights: Weights, node: Supply, ask: Ask, place: Place) -> float:
    """A weighted mean of what is free there, GPU product, links, and how used the node is."""
    parts = (
        _spread(node, ask, place),
        FULL if ask.products else _least_left(prospect, node, ask, place),
        topology(node, ask, place),
        FULL - mean(node.free),
    )
    return weights.mean(parts)
