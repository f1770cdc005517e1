"""TierPlacements: artifacts that are kept, and copied to where they are to lie.

What is pinned stands in the objects' statuses, by which agents and the registry go: without this
nothing that was pinned is dropped.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller.base.known import key_of
from controller.base.lasting import read_lasting, write_lasting
from controller.base.worker import Shift
from controller.restoring.artifacts import listed
from kybernate import keys
from kybernate.api.lenient import texts
from kybernate.api.placements.status import dump_placement_status, read_placement, reason_of
from kybernate.api.restoring.artifacts import labels_of
from kybernate.core.requests.placement import (
    PLACEMENT_MEANINGS,
    TERMINAL,
    Candidate,
    CopyState,
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
    from kybernate.core.requests.placement import Placement
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_SETTLE_S = 0.5
"""Seconds in which changes of a namespace's artifacts are taken together."""
_REGISTRY_S = 4.0


class Placements:
    """TierPlacements, and the labels of nodes. Fed by the watches' threads and by what is written;
    any thread may ask. `due` is told of what may have changed, and in how many seconds to look."""

    def __init__(self, due: Callable[[Key, float], None]) -> None:
        self._due = due
        self._lock = threading.Lock()
        self._known: dict[Key, Lasting[Placement]] = {}
        self._nodes: dict[str, dict[str, str]] = {}

    def on_placement(self, kind: str, item: Json) -> None:
        """Take in an event of the watch of TierPlacements."""
        key = key_of(item)
        with self._lock:
            self._known.pop(key, None)
            if kind != "DELETED" and "deletionTimestamp" not in item["metadata"]:
                self._known[key] = _read(item)
        self._due(key, 0.0)

    def on_artifact(self, _kind: str, item: Json) -> None:
        """Take in an event of the watch of Artifacts: what is wanted of them may have changed."""
        self._touch(str(item["metadata"]["namespace"]))

    def on_node(self, kind: str, item: Json) -> None:
        """Take in an event of the watch of nodes."""
        name, labels = str(item["metadata"]["name"]), dict(texts(item["metadata"].get("labels")))
        with self._lock:
            before = self._nodes.pop(name, None)
            if kind != "DELETED":
                self._nodes[name] = labels
            after = self._nodes.get(name)
        if before != after:
            self._touch()

    def wrote(self, item: Json) -> None:
        """What a write of ours was answered with."""
        key, found = key_of(item), _read(item)
        with self._lock:
            known = self._known.get(key)
            if known is not None and known.uid == found.uid:
                self._known[key] = found

    def get(self, key: Key) -> Lasting[Placement] | None:
        """The TierPlacement as it was last seen; None if it is gone."""
        return self._known.get(key)

    def labels(self) -> dict[str, dict[str, str]]:
        """Those of all nodes."""
        with self._lock:
            return dict(self._nodes)

    def wanted(self) -> frozenset[str]:
        """The operations that statuses name."""
        with self._lock:
            every = [one.says for one in self._known.values() if one.says is not None]
        return frozenset(copy.operation for one in every for copy in one.status.copies)

    def number(self, reason: PlacementReason) -> int:
        """How many have this reason."""
        with self._lock:
            return sum(reason_of(one.status) is reason for one in self._known.values())

    def copies(self, state: CopyState) -> int:
        """How many copies that are wanted are that far."""
        with self._lock:
            every = [one.says for one in self._known.values() if one.says is not None]
        return sum(copy.state is state for one in every for copy in one.status.copies)

    def _touch(self, namespace: str = "") -> None:
        with self._lock:
            names = [key for key in self._known if namespace in {"", key[0]}]
        for key in names:
            self._due(key, _SETTLE_S)


class PlacementWorker(Shift):
    """Has artifacts copied to where they are wanted. `registry`: None where there is none; `wall`
    gives seconds since 1970."""

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
    ) -> None:
        super().__init__(queue, fence)
        self._placements = placements
        self._artifacts = artifacts
        self._nodes = nodes
        self._registry = registry
        self._cluster = cluster
        self._agents = agents
        self._wall = wall

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
        found = write_lasting(self._cluster, known, told, self._fence)
        if found is None:
            return
        self._placements.wrote(found)
        if status.reason is not reason_of(known.status):
            namespace, name = key_of(found)
            log.info("placement %s/%s: %s: %s", namespace, name, status.reason, status.message)
            about = {
                "apiVersion": keys.API_VERSION,
                "kind": keys.TIER_PLACEMENT_KIND,
                "namespace": namespace,
                "name": name,
                "uid": known.uid,
            }
            bad = status.reason in {*TERMINAL, PlacementReason.COPY_FAILED}
            self._cluster.say(about, str(status.reason), status.message, warning=bad)


def _asked(registry: Registry, artifact: str) -> Mapping[str, Candidate]:
    """What isn't among the newest that are shown, by what the registry says."""
    try:
        return {artifact: Candidate(listed(registry.get(artifact, _REGISTRY_S)), None)}
    except NotFoundError:
        return {}


def _read(item: Json) -> Lasting[Placement]:
    return read_lasting(keys.TIER_PLACEMENTS_PATH, item, read_placement)


def slim_node(item: Json) -> Json:
    """What matters of a node."""
    meta = item["metadata"]
    names = ("name", "uid", "resourceVersion", "labels")
    return {"metadata": {name: meta[name] for name in names if name in meta}}
