"""SnapshotTemplates: whom the API server lets write them, and from the pod to the artifact."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import ConflictError, NotFoundError, RefusedError
from tests.integration.controller.conftest import (
    LIMIT_S,
    NAMESPACE,
    NODE,
    PODS,
    REQUESTS,
    pod,
    request,
)
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.integration.controller.conftest import Controller
    from tests.kit.servers.agentdoor import Door

    Json = dict[str, Any]

pytestmark = pytest.mark.integration

TEMPLATES = f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/snapshottemplates"
DIGEST = "x@sha256:1"


def template(**spec: Any) -> Json:
    made = pod("", {keys.seat_resource(1): "1", "memory": "1Gi"})
    container = made["spec"]["containers"][0]
    container |= {"args": ["serve"], "ports": [{"containerPort": 8000}]}
    body = {"metadata": {"annotations": {keys.VRAM: "1Gi"}}, "spec": made["spec"]}
    kind = {"apiVersion": keys.API_VERSION, "kind": keys.SNAPSHOT_TEMPLATE_KIND}
    spec = {"template": body, "warmUp": [{"post": "/run", "body": {"a": [1]}}], **spec}
    return {**kind, "metadata": {"name": "t"}, "spec": spec}


@pytest.fixture
def api(control_plane: Cluster, namespace: str, door: Door) -> Iterator[Api]:
    """The administrator; n1 has GPUs, and the template `t` is gone afterwards."""
    found = control_plane.api()
    gpus = [{"index": 0, "uuid": "GPU-0", "product": "H100", "memoryBytes": 1, "healthy": True}]
    tell(control_plane, {"gpus": gpus, "driver": {"version": "580.1"}})
    yield found
    with contextlib.suppress(NotFoundError):
        found.delete(f"{TEMPLATES}/t")


@pytest.fixture
def emptied(api: Api) -> Iterator[None]:
    """What was made of the template is gone afterwards: nobody collects garbage here."""
    yield
    api.delete(f"{TEMPLATES}/t")
    for one in of(api, PODS):
        api.delete(f"{PODS}/{one['metadata']['name']}", {"gracePeriodSeconds": 0})
    for one in of(api, REQUESTS):
        api.delete(f"{REQUESTS}/{one['metadata']['name']}")


def tell(cluster: Cluster, status: Json) -> None:
    path = f"{keys.GPU_NODES_PATH}/{NODE}/status"
    cluster.api("agent").patch(path, {"status": {"observedGeneration": 1, **status}})


def of(api: Api, path: str) -> list[Json]:
    """What was made of the template."""
    return [
        one
        for one in api.get(path)["items"]
        if any(
            owner["kind"] == keys.SNAPSHOT_TEMPLATE_KIND
            for owner in one["metadata"].get("ownerReferences", ())
        )
    ]


def status(api: Api) -> Json:
    found: Json = api.get(f"{TEMPLATES}/t").get("status") or {}
    return found


def state(api: Api) -> tuple[str, str]:
    found = status(api).get("conditions") or [{"status": "", "reason": ""}]
    return found[0]["status"], found[0]["reason"]


def running(cluster: Cluster, door: Door, one: Json) -> None:
    """As its kubelet has it, once the pod is warmed up."""
    name, meta = one["metadata"]["name"], one["metadata"]
    notes = {keys.ASSIGNED_GROUP: "G0", keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
    target = {"kind": "Node", "name": NODE}
    bound = {"metadata": {"name": name, "annotations": notes}, "target": target}
    cluster.api("extender").post(f"{PODS}/{name}/binding", bound)
    door.seats.add(meta["uid"])
    runs = {
        "name": "c",
        "imageID": DIGEST,
        "image": "x",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    told = {
        "phase": "Running",
        "containerStatuses": [runs],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    cluster.api().patch(f"{PODS}/{name}/status", {"status": told})


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"warmUp": [{"get": "/a", "post": "/b"}]}, "write get or post"),
        ({"warmUp": [{"get": "/a", "body": {}}]}, "only post has a body"),
        ({"warmUp": [{"get": "a"}]}, "should match"),
        ({"warmUp": [{"get": "/a"}] * 17}, "at most 16 items"),
        ({"port": 70000}, "less than or equal to 65535"),
        ({"deadlineSeconds": 1}, "greater than or equal to 60"),
        ({"template": {}}, "spec.template.spec: Required"),
    ],
)
def test_what_can_not_be_is_refused_in_words(api: Api, spec: Json, text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        api.post(TEMPLATES, template(**spec))


def test_nobody_has_a_pod_made_or_kept_that_they_may_not_make_or_enter(
    api: Api, users: Callable[[str, list[Json]], Api]
) -> None:
    writes = {
        "apiGroups": ["kyb.ai"],
        "resources": ["snapshottemplates", "snapshottemplates/status"],
        "verbs": ["create", "patch"],
    }
    makes = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    enters = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
    with pytest.raises(RefusedError, match="right to create pods in namespace requests"):
        users("templates-mallory", [writes, enters]).post(TEMPLATES, template())
    with pytest.raises(RefusedError, match="right to create pods/exec in namespace requests"):
        users("templates-eve", [writes, makes]).post(TEMPLATES, template())
    bob = users("templates-bob", [writes, makes, enters])
    bob.post(TEMPLATES, template())
    forged = {"artifact": {"name": "other/a@1", "request": "r"}}
    with pytest.raises(RefusedError, match="nobody but Kybernate's controller writes the status"):
        bob.patch(f"{TEMPLATES}/t/status", {"status": forged})


def test_the_controllers_account_makes_and_deletes_pods_of_templates_alone(
    api: Api, control_plane: Cluster, webhook: object
) -> None:
    machine = control_plane.api("controller")
    with pytest.raises(RefusedError, match="only make and delete pods of a SnapshotTemplate"):
        machine.post(PODS, pod("own"))
    api.post(PODS, pod("theirs"))
    with pytest.raises(RefusedError, match="only make and delete pods of a SnapshotTemplate"):
        machine.delete(f"{PODS}/theirs")
    api.delete(f"{PODS}/theirs", {"gracePeriodSeconds": 0})
    owner = {
        "apiVersion": keys.API_VERSION,
        "kind": keys.SNAPSHOT_TEMPLATE_KIND,
        "name": "t",
        "uid": "u",
        "controller": True,
    }
    made = pod("own")
    made["metadata"]["ownerReferences"] = [owner]
    with contextlib.suppress(ConflictError):
        account = {"metadata": {"name": "default"}}
        api.post("/api/v1/namespaces/kube-system/serviceaccounts", account)
    with pytest.raises(RefusedError, match="no pods in kyb-system and kube-system"):
        machine.post("/api/v1/namespaces/kube-system/pods", made)
    with pytest.raises(RefusedError, match="may not ask for mode Snapshot"):
        machine.post(REQUESTS, request("once"))


@pytest.mark.usefixtures("emptied")
def test_a_pod_becomes_an_artifact_though_the_controller_is_killed_at_each_step(
    api: Api, control_plane: Cluster, controller: Controller, door: Door
) -> None:
    door.takes = 0.5
    api.post(TEMPLATES, template())
    until(lambda: len(of(api, PODS)) == 1, f"no pod is made: {status(api)}", LIMIT_S)
    controller.kill()
    (made,) = of(api, PODS)
    assert made["metadata"]["labels"][keys.MANAGED_LABEL] == "true"
    assert [one["name"] for one in made["spec"]["containers"]] == ["c", "kyb-warm-up"]
    controller.start()
    running(control_plane, door, made)
    until(lambda: len(of(api, REQUESTS)) == 1, "nothing is to be kept", LIMIT_S)
    controller.kill()
    controller.start()
    until(lambda: len(door.begun) == 1, "nothing is kept", LIMIT_S)
    controller.kill()
    controller.start()
    until(lambda: state(api) == ("True", "Ready"), f"still {status(api)}", LIMIT_S)
    (asked,) = of(api, REQUESTS)
    assert asked["spec"]["mode"] == "Snapshot"
    artifact = status(api)["artifact"]
    assert artifact["name"] == asked["status"]["artifact"]["name"]
    assert artifact["madeOn"] | {"spec": ""} == {
        "spec": "",
        "image": DIGEST,
        "product": "H100",
        "driver": "580.1",
    }
    until(lambda: leaving(api), "its pod stays", LIMIT_S)
    assert [one[1:] for one in door.begun] == [("save", made["metadata"]["uid"], "object")]
    # Another driver: the next one is made, and the first one stays until it is there.
    tell(control_plane, {"driver": {"version": "590.1"}})
    until(lambda: status(api)["builds"] == 2, "it is not made again", LIMIT_S)
    assert state(api)[0] == "True"
    assert status(api)["artifact"] == artifact


def leaving(api: Api) -> bool:
    """Whether all its pods are gone, or are deleted: no kubelet lets go of them here."""
    return all("deletionTimestamp" in one["metadata"] for one in of(api, PODS))
