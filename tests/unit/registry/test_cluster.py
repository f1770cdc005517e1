"""What the registry has seen of pods, as a watch tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import RetryableError
from registry.cluster import Kubernetes
from tests.unit.k8s.script import Script, until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Served(Script):
    """An API server with pods; of namespaces it has none."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces = Script()
        self.namespaces.listing()
        self.namespaces.feed()

    def of_metadata(self) -> Script:
        return self.namespaces

    def close(self) -> None:
        """No connection is open."""


def item(uid: str, version: int, node: str = "", namespace: str = "ns", **notes: str) -> Any:
    stamped = {keys.ASSIGNED_GROUP: "G0", keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"} if node else {}
    meta = {"namespace": namespace, "name": f"pod-{uid}", "uid": uid, "resourceVersion": version}
    meta["annotations"] = {**stamped, **notes}
    return {"metadata": meta, "spec": {"nodeName": node, "containers": []}}


@pytest.fixture
def script() -> Served:
    return Served()


@pytest.fixture
def cluster(script: Served) -> Iterator[Kubernetes]:
    made = Kubernetes(script)  # type: ignore[arg-type]
    yield made
    script.feed()
    script.namespaces.feed()
    made.stop()


def placed(cluster: Kubernetes, node: str, namespace: str = "ns") -> set[str]:
    return {pod.uid for pod in cluster.placed(node, namespace)}


def test_pods_are_found_by_node_and_namespace_as_they_come_and_go(
    script: Served, cluster: Kubernetes
) -> None:
    with pytest.raises(RetryableError, match="isn't known yet"):
        cluster.placed("n1", "ns")
    by_a_kubelet = item("e", 5, "n1", **{"kubernetes.io/config.mirror": "x"})
    others = item("c", 3, "n2"), item("d", 4, "n1", "other"), by_a_kubelet
    script.listing(item("a", 1, "n1"), item("b", 2), *others)
    feed = script.feed()
    cluster.start()
    until(cluster._watches[1].synced.is_set)
    assert placed(cluster, "n1") == {"a"}
    assert (placed(cluster, "n2"), placed(cluster, "n1", "other")) == ({"c"}, {"d"})
    feed.send("MODIFIED", item("b", 11, "n1"))
    until(lambda: placed(cluster, "n1") == {"a", "b"})
    feed.send("MODIFIED", item("a", 12, "n1", **{keys.RESTORE_FROM: "pod/x"}))
    until(lambda: any(pod.wish for pod in cluster.placed("n1", "ns")))
    # Of one that vanished while nobody watched there is no more than the name.
    feed.send("DELETED", {"metadata": {"namespace": "ns", "name": "pod-a", "uid": "a"}})
    until(lambda: placed(cluster, "n1") == {"b"})
    feed.send("DELETED", item("b", 13, "n1"))
    until(lambda: placed(cluster, "n1") == set())
    assert placed(cluster, "n2") == {"c"}
