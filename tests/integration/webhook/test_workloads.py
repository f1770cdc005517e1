"""Pods that controllers make, on a real API server with the real controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.cluster.cluster import running
from tests.cluster.spec import ClusterSpec
from tests.integration.hooks import until
from tests.integration.webhook.conftest import pods_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

SPEC = ClusterSpec(
    name="kybctl", control_plane_only=True, subnet="10.94.0.0/16", services=frozenset({"webhook"})
)
SELECTED = {"app": "x"}


@pytest.fixture(scope="module")
def controllers() -> Iterator[Cluster]:
    """A control plane of its own, with the controller manager and a webhook."""
    with running(SPEC, print) as up:
        until(lambda: _has_account(up), "no controller made the account of pods")
        yield up


def _has_account(cluster: Cluster) -> bool:
    items = cluster.api().get("/api/v1/namespaces/default/serviceaccounts")["items"]
    return any(item["metadata"]["name"] == "default" for item in items)


def template(**notes: str) -> dict[str, Any]:
    """Two containers, of which the second asks for GPUs."""
    limits = {keys.VENDOR_RESOURCE: "2", "memory": "1Gi"}
    containers = [
        {"name": "helper", "image": "localhost/h", "resources": {"limits": {"cpu": "1"}}},
        {"name": "model", "image": "localhost/m", "args": ["s"], "resources": {"limits": limits}},
    ]
    return {
        "metadata": {
            "labels": {**SELECTED, keys.MANAGED_LABEL: "true"},
            "annotations": {keys.VRAM: "24Gi", **notes},
        },
        "spec": {"containers": containers},
    }


def deployment(**notes: str) -> tuple[str, dict[str, Any]]:
    spec = {"replicas": 2, "selector": {"matchLabels": SELECTED}, "template": template(**notes)}
    return "/apis/apps/v1/namespaces/default/deployments", {"spec": spec}


def stateful_set(**notes: str) -> tuple[str, dict[str, Any]]:
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    made = template(**notes)
    made["spec"]["containers"][1]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    spec = {"replicas": 1, "serviceName": "x", "selector": {"matchLabels": SELECTED}}
    spec |= {"template": made, "volumeClaimTemplates": [claim]}
    return "/apis/apps/v1/namespaces/default/statefulsets", {"spec": spec}


def job(**notes: str) -> tuple[str, dict[str, Any]]:
    made = template(**notes)
    made["spec"]["restartPolicy"] = "Never"
    return "/apis/batch/v1/namespaces/default/jobs", {"spec": {"template": made}}


def pods_of(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    """The pods whose controller is of this kind."""
    items: list[dict[str, Any]] = cluster.api().get(pods_path("default"))["items"]
    return [one for one in items if one["metadata"]["ownerReferences"][0]["kind"] == kind]


@pytest.mark.parametrize(
    ("made", "owner", "count"),
    [
        (deployment(), "ReplicaSet", 2),
        (stateful_set(), "StatefulSet", 1),
        (job(), "Job", 1),
    ],
    ids=["Deployment", "StatefulSet", "Job"],
)
def test_the_pods_of_a_workload_get_their_seats(
    controllers: Cluster, made: tuple[str, dict[str, Any]], owner: str, count: int
) -> None:
    api, (path, body) = controllers.api(), made
    api.post(path, {"metadata": {"name": f"x-{owner.lower()}"}, **body})
    until(lambda: len(pods_of(controllers, owner)) == count, f"no pods of the {owner}")
    for pod in pods_of(controllers, owner):
        helper, model = pod["spec"]["containers"]
        assert "command" not in helper
        assert model["command"] == [keys.KYB_INIT_PATH, "--image", "--"]
        assert model["resources"]["limits"] == {keys.seat_resource(2): "1", "memory": "49Gi"}
        assert pod["spec"]["schedulerName"] == keys.SCHEDULER_NAME
        assert pod["status"]["qosClass"] == "Burstable"


COPIES = {keys.RESTORE_FROM: "template/birch"}


@pytest.mark.parametrize(
    ("made", "owner"),
    [
        (deployment(**COPIES), "ReplicaSet"),
        (stateful_set(**COPIES), "StatefulSet"),
        (job(**COPIES), "Job"),
    ],
    ids=["Deployment", "StatefulSet", "Job"],
)
def test_who_makes_the_pods_of_a_template_is_not_asked_for_the_right_to_its_artifact(
    controllers: Cluster, made: tuple[str, dict[str, Any]], owner: str
) -> None:
    """Who wrote the template was."""
    api, (path, body) = controllers.api(), made
    api.post(path, {"metadata": {"name": f"copy-{owner.lower()}"}, **body})

    def copied() -> bool:
        notes = [one["metadata"].get("annotations", {}) for one in pods_of(controllers, owner)]
        return any(COPIES.items() <= one.items() for one in notes)

    until(copied, f"no pod of the {owner}")


@pytest.mark.parametrize(
    ("notes", "says"),
    [
        ({keys.VRAM: "24 GB"}, "is not a quantity of bytes"),
        ({keys.ASSIGNED_GROUP: "G0"}, "is written by the system; remove it"),
    ],
)
def test_a_mistake_in_a_template_is_told_in_an_event(
    controllers: Cluster, notes: dict[str, str], says: str
) -> None:
    api, (path, body) = controllers.api(), deployment(**notes)
    name = f"wrong-{len(says)}"
    api.post(path, {"metadata": {"name": name}, **body})

    def told() -> bool:
        events = api.get("/api/v1/namespaces/default/events")["items"]
        return any(
            event["reason"] == "FailedCreate"
            and event["involvedObject"]["name"].startswith(name)
            and says in event["message"]
            for event in events
        )

    until(told, "no event says what is wrong with the template")
