"""TierPlacements: artifacts that are kept, and copied to where they are to lie.

What is pinned stands in the objects' statuses, by which agents and the registry go: without this
nothing that was pinned is dropped.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller.base.lasting import Objects, ObjectWorker
from controller.restoring.artifacts import listed
from kybernate import keys
from kybernate.api.lenient import texts
from kybernate.api.placements.status import dump_placement_status, read_placement
from kybernate.api.restoring.artifacts import labels_of
from kybernate.core.requests.placement import (
    PLACEMENT_MEANINGS,
    TERMINAL,
    Candidate,
    CopyState,
    Placement,
    PlacementReason,
    PlacementStatus,
    SeenPlacement,
    decide,
)
from kybernate.errors import KybernateError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from controller.base.cluster import Cluster
    from controller.base.known import Nodes
    from controller.base.lasting import Lasting
    from controller.base.queue import Key, Queue
    from controller.checkpoints.agents import Agents
    from controller.restoring.artifacts import Artifacts
    from kybernate.adapters.registry.client import Registry
    from kybernate.core.requests.checkpoint import Operation, Problem
    from kybernate.core.requests.placement import Copy
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

_REGISTRY_S = 4.0


class Placements(Objects[Placement]):
    """TierPlacements, and the labels of nodes."""

    settle_s = 0.5

    def __init__(self, due: Callable[[Key, float], None]) -> None:
        super().__init__(keys.TIER_PLACEMENTS_PATH, read_placement, due)
        self._nodes: dict[str, Mapping[str, str]] = {}

    def on_artifact(self, _kind: str, item: Json) -> None:
        """Take in an event of the watch of Artifacts: what is wanted of them may have changed."""
        self.touch(str(item["metadata"]["namespace"]))

    def on_node(self, kind: str, item: Json) -> None:
        """Take in an event of the watch of nodes."""
        name, labels = str(item["metadata"]["name"]), texts(item["metadata"].get("labels"))
        before = self._nodes.pop(name, None)
        after = None if kind == "DELETED" else labels
        if after is not None:
            self._nodes[name] = after
        if before != after:
            self.touch()

    def labels(self) -> dict[str, Mapping[str, str]]:
        """Those of all nodes."""
        return dict(self._nodes)

    def wanted(self) -> frozenset[str]:
        """The operations that statuses name."""
        return frozenset(copy.operation for copy in self._copies())

    def copies(self, state: CopyState) -> int:
        """How many copies that are wanted are that far."""
        return sum(copy.state is state for copy in self._copies())

    def _copies(self) -> Iterator[Copy]:
        for one in self.all():
            if one.says is not None:
                yield from one.says.status.copies


class PlacementWorker(ObjectWorker[Placement]):
    """Has artifacts copied to where they are wanted. `registry`: None where there is none; `wall`
    gives seconds since 1970."""

    kind, named = "placement", keys.TIER_PLACEMENT_KIND
    alarming = frozenset({*TERMINAL, PlacementReason.COPY_FAILED})

    def __init__(  # noqa: PLR0913, PLR0917 - each of them is another part
        self,
        queue: Queue,
        placements: Placements,
        artifacts: Artifacts,
        nodes: Nodes,
        registry: Callable[[], Registry] | None,
        cluster: Cluster,
        agents: Agents,
        fence: Fence,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(queue, placements, cluster, fence, wall)
        self._placements = placements
        self._artifacts = artifacts
        self._nodes = nodes
        self._registry = registry
        self._agents = agents

    def look(self, key: Key) -> None:
        """Do what the TierPlacement of this name needs now. Raises KybernateError."""
        known = self._placements.get(key)
        if known is None:
            return
        if known.says is None:
            self._write(known, PlacementStatus(PlacementReason.INVALID, known.wrong))
            return
        if self._registry is None:
            reason = PlacementReason.NO_REGISTRY
            self._write(known, PlacementStatus(reason, PLACEMENT_MEANINGS[reason]))
            return
        seen = self._observed(known.says, self._registry)
        plan = decide(seen, self._wall())
        for copy in plan.cancel:
            self._fence.check()
            # What its node can't be told now is found by the sweep of operations.
            with suppress(KybernateError):
                self._agents.cancel(copy.node, copy.operation)
        answers = dict(seen.operations)
        for copy in plan.begin:
            self._fence.check()
            answers[copy.operation] = self._agents.place(copy, f"TierPlacement {key[0]}/{key[1]}")
        if plan.begin:
            # What agents refuse is told, and tried again later.
            plan = decide(replace(seen, operations=answers), self._wall())
        self._write(known, plan.status)
        if plan.again < math.inf:
            self._queue.add(key, plan.again)

    def _observed(self, placement: Placement, registry: Callable[[], Registry]) -> SeenPlacement:
        """Raises KybernateError where what it pins can't be asked for: then nothing changes."""
        shown = {
            one.artifact: Candidate(one, labels_of(one))
            for (namespace, _), one in self._artifacts.all().items()
            if one is not None and namespace == placement.namespace
        }
        for artifact in placement.status.artifacts:
            if artifact not in shown:
                shown |= _asked(registry(), artifact)
        labels, names = self._placements.labels(), self._nodes.names()
        return SeenPlacement(
            placement,
            tuple(shown.values()),
            {name: labels[name] for name in names if name in labels},
            dict(self._operations(placement)),
        )

    def _operations(self, placement: Placement) -> Iterator[tuple[str, Operation | Problem | None]]:
        for copy in placement.status.copies:
            if copy.operation:
                yield copy.operation, self._agents.find(copy.node, copy.operation)

    def _write(self, known: Lasting[Placement], status: PlacementStatus) -> None:
        told = dump_placement_status(status, known.status, known.generation, self._wall())
        self.put(known, told, status.reason, status.message)


def _asked(registry: Registry, artifact: str) -> Mapping[str, Candidate]:
    """What isn't among the newest that are shown, by what the registry says."""
    try:
        return {artifact: Candidate(listed(registry.get(artifact, _REGISTRY_S)), None)}
    except NotFoundError:
        return {}


def slim_node(item: Json) -> Json:
    """What matters of a node."""
    meta = item["metadata"]
    names = ("name", "uid", "resourceVersion", "labels")
    return {"metadata": {name: meta[name] for name in names if name in meta}}
