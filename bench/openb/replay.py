"""One replay: pods arrive one by one, never leave, and are tried once."""

from __future__ import annotations

from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from bench.openb.trace import arrivals, capacity
from kybernate.core.placement import Fleet, expect, policies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.core.placement import Ask, Supply


class Replayed(NamedTuple):
    """How a replay ended. `allocation` in percent of the GPUs; the nodes as they are then."""

    allocation: float
    failed: list[Ask]
    nodes: list[Supply]
    moved: int = 0


def replay(
    nodes: Sequence[Supply], pods: Sequence[Ask], policy: str, seed: int, tune: float
) -> Replayed:
    """Replay a workload. The target is learned from the list, as the published evaluation does."""
    random = Random(seed)
    whole = capacity(nodes)
    coming = arrivals(pods, tune * whole, random)
    ordered = list(nodes)
    random.shuffle(ordered)
    fleet = Fleet(ordered, policies(expect(pods, nodes))[policy])
    arrived = placed = 0
    failed: list[Ask] = []
    late: list[float] = []
    for ask in coming:
        choice = fleet.choose(ask)
        arrived += ask.total
        if choice is None:
            failed.append(ask)
        else:
            fleet.take(choice.node, ask, choice.place)
            placed += ask.total
        if round(100 * arrived / whole) == round(100 * tune):
            late.append(100 * placed / whole)
    return Replayed(fmean(late or [100 * placed / whole]), failed, fleet.nodes)
