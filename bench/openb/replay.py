"""One replay: pods arrive one by one, never leave, and are tried once."""

from __future__ import annotations

from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from bench.openb.trace import arrivals, capacity
from kybernate.core.placement import Tenants, expect, policies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.core.placement import Ask, Supply


class Terms(NamedTuple):
    """`tune`: how much demand comes, in capacities; `moves`: percent of the pods that may move."""

    tune: float = 1.3
    moves: float = 0.0


class Replayed(NamedTuple):
    """How a replay ended. `allocation` in percent of the GPUs; the nodes as they are then."""

    allocation: float
    failed: list[Ask]
    nodes: list[Supply]
    moved: int
    arrived: int


def replay(
    nodes: Sequence[Supply], pods: Sequence[Ask], policy: str, seed: int, terms: Terms
) -> Replayed:
    """Replay a workload. The target is learned from the list, as the published evaluation does."""
    random = Random(seed)
    whole = capacity(nodes)
    coming = arrivals(pods, terms.tune * whole, random)
    ordered = list(nodes)
    random.shuffle(ordered)
    tenants = Tenants(ordered, policies(expect(pods, nodes))[policy])
    budget = int(terms.moves * len(coming) / 100)
    arrived = placed = moved = 0
    failed: list[Ask] = []
    late: list[float] = []
    for ask in coming:
        arrived += ask.total
        fits, moves = _place(tenants, ask, budget - moved)
        moved += moves
        if fits:
            placed += ask.total
        else:
            failed.append(ask)
        if round(100 * arrived / whole) == round(100 * terms.tune):
            late.append(100 * placed / whole)
    allocation = fmean(late or [100 * placed / whole])
    return Replayed(allocation, failed, tenants.fleet.nodes, moved, len(coming))


def _place(tenants: Tenants, ask: Ask, budget: int) -> tuple[bool, int]:
    """Whether the pod found a place, and how many others were moved for it."""
    choice = tenants.fleet.choose(ask)
    if choice is not None:
        tenants.take(choice, ask)
        return True, 0
    plan = tenants.make_room(ask, budget) if budget > 0 else None
    return plan is not None, len(plan.moves) if plan else 0
