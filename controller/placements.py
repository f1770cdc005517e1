"""TierPlacements: artifacts that are kept, and copied to where they are to lie.

What is pinned stands in the objects' statuses, by which agents and the registry go: without this
nothing that was pinned is dropped.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller.base.lasting import Objects, Statuses
from controller.restoring.artifacts import listed
from kybernate import keys
from kybernate.api.lenient import texts
from kybernate.api.placements.status import dump_placement_status, read_placement
from kybernate.api.restoring.artifacts import labels_of
from kybernate.core.requests.placement import (
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
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from enum import StrEnum

    from controller.base.cluster import Cluster
    from controller.base.known import Nodes
    from controller.base.lasting import Lasting
    from controller.base.queue import Key, Queue
    from controller.checkpoints.agents import Agents
    from controller.restoring.artifacts import Artifacts
    from kybernate.adapters.registry.client import Registry
    from kybernate.core.requests.checkpoint import Operation, Problem
    from kybernate.core.requests.pins import Takes
    from kybernate.core.requests.placement import Copy, PlacementPlan
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

    def pinning(self) -> set[Key]:
        """Those whose statuses name artifacts."""
        says = (one.says for one in self.all() if one.says is not None)
        return {(one.namespace, one.name) for one in says if one.status.artifacts}

    def copies(self, state: CopyState) -> int:
        """How many copies that are wanted are that far."""
        return sum(copy.state is state for copy in self._copies())

    def _copies(self) -> Iterator[Copy]:
        for one in self.all():
            if one.says is not None:
                yield from one.says.status.copies


class Pins:
    """What each TierPlacement's pins take of NVMe alone, as it was last decided. `lock`: held from
    a look at what others pin until the decision is put here, so that no two take the same room."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._of: dict[Key, Takes] = {}

    def put(self, key: Key, takes: Takes) -> None:
        """What the one of this name takes from now on."""
        self._of[key] = takes

    def gone(self, key: Key) -> None:
        """There is none of this name any more."""
        self._of.pop(key, None)

    def others(self, key: Key) -> Takes:
        """What all but this one take."""
        every = (takes for other, takes in tuple(self._of.items()) if other != key)
        return {artifact: nodes for takes in every for artifact, nodes in takes.items()}

    def lacks(self, keys: Iterable[Key]) -> bool:
        """Whether one of these has not been decided yet, as after a start."""
        return any(key not in self._of for key in keys)


_ALARMING: frozenset[StrEnum] = frozenset(
    {
        *(PlacementReason.INVALID, PlacementReason.ENDED),
        *(PlacementReason.COPY_FAILED, PlacementReason.NO_ROOM),
    }
)
"""Reasons that people should see to."""


class PlacementWorker:
    """Has artifacts copied to where they are wanted. `registry`: None where there is none; `wall`
    gives seconds since 1970; `percent`: most of a node's NVMe that pins may take alone."""

    kind = "placement"

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
        percent: float = 50.0,
    ) -> None:
        self._queue = queue
        self._fence = fence
        self._wall = wall
        told = keys.TIER_PLACEMENT_KIND, _ALARMING
        self._statuses = Statuses(*told, placements, cluster, fence)
        self._percent = percent
        self._pins = Pins()
        self._placements = placements
        self._artifacts = artifacts
        self._nodes = nodes
        self._registry = registry
        self._agents = agents

    def look(self, key: Key) -> None:
        """Do what the TierPlacement of this name needs now. Raises KybernateError."""
        known = self._placements.get(key)
        if known is None or known.says is None:
            self._pins.gone(key)
        if known is None:
            return
        if known.says is None:
            self._write(known, PlacementStatus(PlacementReason.INVALID, known.wrong))
            return
        if self._registry is None:
            reason = PlacementReason.NO_REGISTRY
            self._write(known, PlacementStatus(reason, reason.told))
            return
        seen = self._observed(known.says, self._registry)
        seen, plan = self._decided(key, seen)
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

    def _decided(self, key: Key, seen: SeenPlacement) -> tuple[SeenPlacement, PlacementPlan]:
        with self._pins.lock:
            others, room = self._pins.others(key), self._room(key)
            for nodes in others.values():
                room.subtract({node: size for node, size in nodes.items() if node in room})
            seen = replace(seen, others=others.keys(), room=room)
            plan = decide(seen, self._wall())
            self._pins.put(key, plan.takes)
        return seen, plan

    def _room(self, key: Key) -> Counter[str]:
        """None is left before it is known what all others pin."""
        percent = 0.0 if self._pins.lacks(self._placements.pinning() - {key}) else self._percent
        every = self._nodes.nvme().items()
        return Counter({node: int(most * percent / 100) for node, most in every})

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
        self._statuses.put(known, told, status.reason, status.message)


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
