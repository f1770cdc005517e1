"""Where GPUNodes say that states are: of seats that are parked below RAM, and all that are saved.
Pure, but that `States` keeps what it is told."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil, log
from typing import TYPE_CHECKING, Any

from kybernate.api.restores import read_source
from kybernate.core.tiers import Artifact, SavedState
from kybernate.errors import ConfigError
from kybernate.types import ArtifactId, PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kybernate.core.placement import Demand
    from kybernate.types import NodeName

    Json = dict[str, Any]

_BELOW = (Tier.NVME, Tier.OBJECT)
_MOST = 1 << 62


def read_rests(seats: Iterable[Json]) -> Iterator[tuple[PodUid, Artifact]]:
    """The state of each seat that is parked below RAM. A seat of which nothing can be read counts
    as one in RAM."""
    for seat in seats:
        tier, size = seat.get("tier"), seat.get("savedBytes")
        if tier in _BELOW and type(size) is int and 0 < size <= _MOST:
            yield PodUid(str(seat.get("uid"))), _state(Tier(tier), size)


def read_saved(rows: Iterable[Json]) -> Iterator[SavedState]:
    """The saved states that a node tells of; what can't be read is left out."""
    for row in rows:
        tier, size = row.get("tier"), row.get("bytes")
        if tier in _BELOW and type(size) is int and 0 < size <= _MOST:
            artifact, uid = ArtifactId(str(row.get("artifact"))), PodUid(str(row.get("uid")))
            yield SavedState(artifact, uid, Tier(tier), size)


class States:
    """The saved states of the cluster, by artifact and by pod. One owner."""

    def __init__(self) -> None:
        self._on_node: dict[NodeName, tuple[SavedState, ...]] = {}
        self._holders: dict[str, dict[NodeName, None]] = {}

    def take(self, node: NodeName, saved: tuple[SavedState, ...]) -> None:
        """This is what the node tells of now."""
        before = self._on_node.get(node, ())
        if before == saved:
            return
        for key in {key for one in before for key in (one.artifact, one.uid)}:
            self._holders[key].pop(node)
            if not self._holders[key]:
                del self._holders[key]
        self._on_node.pop(node, None)
        if saved:
            self._on_node[node] = saved
        for one in saved:
            for key in (one.artifact, one.uid):
                self._holders.setdefault(key, {})[node] = None

    def expect(self, demand: Demand, source: str) -> Demand:
        """The demand with the copies that are known of the state that an annotation names."""
        states = self.of(source) if source and self._on_node else ()
        return replace(demand, states=states) if states else demand

    def on_nodes(self, source: str) -> dict[NodeName, tuple[Artifact, ...]]:
        """The same of those copies that lie on a node's own disks, by node."""
        found: dict[NodeName, tuple[Artifact, ...]] = {}
        for one in self.of(source):
            if one.node is not None:
                found[one.node] = (*found.get(one.node, ()), replace(one, node=None))
        return found

    def of(self, source: str) -> tuple[Artifact, ...]:
        """The copies that are known of the state, of a pod those of its newest."""
        try:
            wish = read_source(source)
        except ConfigError:
            return ()
        found = [
            (one, node)
            for node in self._holders.get(wish.artifact or wish.uid, ())
            for one in self._on_node[node]
            if wish.artifact in ("", one.artifact) and wish.uid in ("", one.uid)
        ]
        newest = max((one.artifact.rpartition("@")[2] for one, _ in found), default="")
        return tuple(
            sorted(
                {
                    _state(one.tier, one.size, None if one.tier is Tier.OBJECT else node)
                    for one, node in found
                    if one.artifact.rpartition("@")[2] == newest
                },
                key=lambda one: (one.tier, one.size, str(one.node)),
            )
        )


@lru_cache(maxsize=4096)
def _state(tier: Tier, size: int, node: NodeName | None = None) -> Artifact:
    """Rounded up to steps of a fifth, and kept: states of one model are nearly alike, and nodes
    that differ by as little are to look the same."""
    return Artifact(tier, ceil(1.2 ** ceil(log(size, 1.2))), node)
