"""A cluster of one node in memory, for tests of the extender's parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from extender.bind.binder import Binder
from extender.state.snapshot import Snapshot
from kybernate.core.placement import Table
from kybernate.errors import ConflictError, NotFoundError
from tests.unit.extender.objects import RESERVED_S, gpu_node, pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.types import PodRef


class FakeCluster:
    """The API server as `extender.bind.cluster.Cluster` sees it.

    `before` and `after` hold errors to raise in the next bind, before or after it takes effect;
    `unreadable` holds those of the next read.
    """

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.bindings = 0
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.unreadable: list[Exception] = []

    def add(self, item: dict[str, Any]) -> dict[str, Any]:
        self.pods[item["metadata"]["namespace"], item["metadata"]["name"]] = item
        return item

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        if self.unreadable:
            raise self.unreadable.pop()
        if (namespace, name) not in self.pods:
            raise NotFoundError(f'pods "{name}" not found')
        return self.pods[namespace, name]

    def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        self.bindings += 1
        if self.before:
            raise self.before.pop()
        found = self.pod(pod.namespace, pod.name)
        if found["metadata"]["uid"] != pod.uid:
            raise ConflictError("Precondition failed: UID in precondition")
        if found["spec"].get("nodeName"):
            raise ConflictError("already assigned to node")
        found["spec"]["nodeName"] = node
        found["metadata"]["annotations"].update(annotations)
        if self.after:
            raise self.after.pop()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def snapshot(clock: Clock) -> Snapshot:
    snapshot = Snapshot(clock, table=Table("best-fit"))
    snapshot.node_event("ADDED", gpu_node("n1"))
    return snapshot


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def binder(snapshot: Snapshot, cluster: FakeCluster) -> Binder:
    return Binder(snapshot, cluster, lambda: "2026-01-02T03:04:05Z", RESERVED_S)


@pytest.fixture
def seen(snapshot: Snapshot, cluster: FakeCluster) -> dict[str, Any]:
    """A pending pod that the watch and the API server know."""
    item = cluster.add(pod("p1"))
    snapshot.pod_event("ADDED", item)
    return item
