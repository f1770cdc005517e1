"""Where artifacts are, as GPUNodes tell of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.api.nodeseats import state_of
from kybernate.api.restores import read_source
from kybernate.errors import ConfigError
from kybernate.types import Tier

if TYPE_CHECKING:
    from kybernate.core.placement import Demand
    from kybernate.core.tiers.tiers import Artifact, StoredArtifact
    from kybernate.types import NodeName


class States:
    """The artifacts of the cluster, by artifact and by pod. One owner."""

    def __init__(self) -> None:
        self._on_node: dict[NodeName, tuple[StoredArtifact, ...]] = {}
        self._holders: dict[str, dict[NodeName, None]] = {}

    def take(self, node: NodeName, saved: tuple[StoredArtifact, ...]) -> None:
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

    def in_store(self, source: str) -> bool:
        """Whether a copy of the state is known to be in the object store."""
        return any(one.tier is Tier.OBJECT for one in self.of(source))

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
                    state_of(one.tier, one.size, None if one.tier is Tier.OBJECT else node)
                    for one, node in found
                    if one.artifact.rpartition("@")[2] == newest
                },
                key=lambda one: (one.tier, one.size, str(one.node)),
            )
        )
