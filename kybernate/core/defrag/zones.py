"""How many seats are short where: a bound on what any solution costs, for all pods together.

The *zone* of a demand is the set of nodes that would do for it if they were empty. Pods whose zones
lie within one zone need as many seats there. For each that is lacking, a pod must leave the zone
for good, so at least the cheapest of those that can live elsewhere do. Memory, parties and
traffic are left out, which makes the bound lower, never wrong.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from kybernate.core.placement import Demand, candidates

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from kybernate.core.defrag.model import Cluster
    from kybernate.core.ledger.ledger import NodeView
    from kybernate.types import NodeName, PodUid


class Zones:
    """The zones of one cluster, as sets of bits: one for each node, in the order of the views."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._names = list(cluster.views)
        self._bit = {name: 1 << at for at, name in enumerate(self._names)}
        self._zones: dict[Demand, int] = {}
        self._free: dict[tuple[int, str], int] = {}
        self._movable: dict[tuple[int, str], list[tuple[float, PodUid]]] = {}

    def nodes(self, demand: Demand) -> Iterator[NodeName]:
        """The nodes of the demand's zone."""
        zone = self._zone(demand)
        return (name for name in self._names if zone & self._bit[name])

    def least(
        self,
        demands: Sequence[Demand],
        changed: Mapping[NodeName, NodeView],
        settled: frozenset[PodUid],
    ) -> float:
        """Seconds of moves that placing all these costs at least; infinite: seats don't suffice.

        `changed` are the nodes that are not as they were, `settled` the pods that move no more.
        """
        wanted = Counter((self._zone(demand), demand.resource) for demand in demands)
        return max((self._lacking(zone, wanted, changed, settled) for zone in wanted), default=0.0)

    def _lacking(
        self,
        where: tuple[int, str],
        wanted: Mapping[tuple[int, str], int],
        changed: Mapping[NodeName, NodeView],
        settled: frozenset[PodUid],
    ) -> float:
        zone, resource = where
        free = self._free_in(where)
        for name, view in changed.items():
            if zone & self._bit[name]:
                before = self._cluster.views[name]
                free += free_seats(view, resource) - free_seats(before, resource)
        needed = sum(
            count for (other, of), count in wanted.items() if of == resource and not other & ~zone
        )
        return self._cheapest(where, needed - free, settled) if needed > free else 0.0

    def _cheapest(self, where: tuple[int, str], lacking: int, settled: frozenset[PodUid]) -> float:
        total = 0.0
        for seconds, uid in self._movable_of(where):
            if not lacking:
                break
            if uid not in settled:
                total += seconds
                lacking -= 1
        return inf if lacking else total

    def _free_in(self, where: tuple[int, str]) -> int:
        if where not in self._free:
            zone, resource = where
            views = (self._cluster.views[n] for n in self._names if zone & self._bit[n])
            self._free[where] = sum(free_seats(view, resource) for view in views)
        return self._free[where]

    def _movable_of(self, where: tuple[int, str]) -> list[tuple[float, PodUid]]:
        """Who may leave the zone for good, cheapest first."""
        if where not in self._movable:
            zone, resource = where
            self._movable[where] = sorted(
                (one.seconds, uid)
                for uid, one in self._cluster.seated.items()
                if one.seconds is not None
                and one.claim.resource == resource
                and zone & self._bit.get(one.claim.node, 0)
                and self._zone(one.demand) & ~zone
            )
        return self._movable[where]

    def _zone(self, demand: Demand) -> int:
        key = Demand(
            demand.resource,
            demand.vram,
            demand.products,
            require_group=demand.require_group,
            topology=demand.topology,
        )
        if key not in self._zones:
            self._zones[key] = self._find(key)
        return self._zones[key]

    def _find(self, demand: Demand) -> int:
        known: dict[Hashable, bool] = {}
        zone = 0
        for name, view in self._cluster.views.items():
            kind: Hashable = name if view.layout is None else view.layout
            if kind not in known:
                known[kind] = bool(candidates(replace(view, claims=()), demand).groups)
            if known[kind]:
                zone |= self._bit[name]
        return zone


def free_seats(view: NodeView, resource: str) -> int:
    """How many seats of the resource nobody holds on the node."""
    return sum(
        max(0, group.seats - view.taken(group.name))
        for group in view.seats.groups
        if group.resource == resource
    )
