from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import ConflictError, NotFoundError, RefusedError, RetryableError
from tests.integration.hooks import Webhook, until
from tests.integration.webhook.conftest import STATUS, create, pods_path, seat_pod

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

HOOKS = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
SECRET = f"/api/v1/namespaces/{keys.NAMESPACE}/secrets/kyb-webhook-tls"
VRAM = {keys.VRAM: "24Gi"}


def bundles(cluster: Cluster) -> set[str]:
    found = [cluster.api().get(f"{HOOKS}/{kind}/kyb-webhook") for kind in KINDS]
    return {hook["clientConfig"].get("caBundle", "") for one in found for hook in one["webhooks"]}


@pytest.mark.usefixtures("webhook")
def test_a_pod_becomes_a_pod_with_a_seat(control_plane: Cluster, namespace: str) -> None:
    made = create(control_plane.api(), namespace, seat_pod("becomes", annotations=VRAM))
    spec = made["spec"]
    first = spec["containers"][0]
    assert first["resources"] == {
        "limits": {"kyb.ai/gpu-2x-seat": "1", "memory": "49Gi"},
        "requests": {"kyb.ai/gpu-2x-seat": "1", "memory": "49Gi"},
    }
    assert first["command"] == ["/kyb/kyb-init", "--image", "--"]
    assert first["args"] == ["serve"]
    assert spec["schedulerName"] == "kybernate-scheduler"
    assert spec["readinessGates"] == [{"conditionType": "kyb.ai/wakeable"}]
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    assert not any("hostPath" in volume for volume in spec["volumes"])


@pytest.mark.usefixtures("webhook")
def test_a_copy_of_an_admitted_pod_is_admitted_unchanged(
    control_plane: Cluster, namespace: str
) -> None:
    api = control_plane.api()
    made = create(api, namespace, seat_pod("original", annotations=VRAM))
    copy = {
        "metadata": {
            "name": "copy",
            "labels": made["metadata"]["labels"],
            "annotations": made["metadata"]["annotations"],
        },
        "spec": made["spec"],
    }
    again = create(api, namespace, copy)
    for pod in (made, again):
        # Each pod gets a volume of its own for the account's token.
        for volume in pod["spec"]["volumes"]:
            if volume["name"].startswith("kube-api-access"):
                volume["name"] = "token"
        for mount in pod["spec"]["containers"][0]["volumeMounts"]:
            if mount["name"].startswith("kube-api-access"):
                mount["name"] = "token"
    assert again["spec"] == made["spec"]
    assert again["metadata"]["annotations"] == made["metadata"]["annotations"]


@pytest.mark.usefixtures("webhook")
def test_a_dry_run_and_a_generated_name_are_fine(control_plane: Cluster, namespace: str) -> None:
    api = control_plane.api()
    made = create(api, namespace, seat_pod("dry", annotations=VRAM), dryRun="All")
    assert made["spec"]["schedulerName"] == "kybernate-scheduler"
    with pytest.raises(NotFoundError):
        api.get(pods_path(namespace, "dry"))
    generated = seat_pod("x", annotations=VRAM)
    generated["metadata"]["generateName"] = f"{generated['metadata'].pop('name')}-"
    assert create(api, namespace, generated)["metadata"]["name"].startswith("x-")


def versions(cluster: Cluster) -> set[tuple[str, str]]:
    """Of all that the webhook could write, and of what creations write."""
    api, found = cluster.api(), set[tuple[str, str]]()
    for path in (*(f"{HOOKS}/{kind}" for kind in KINDS), keys.GPU_NODES_PATH):
        found |= {(path, item["metadata"]["resourceVersion"]) for item in api.get(path)["items"]}
    for path in ("secrets", "configmaps", "events", "pods"):
        items = api.get(f"/api/v1/{path}")["items"]
        found |= {(path, item["metadata"]["resourceVersion"]) for item in items}
    return found


@pytest.mark.usefixtures("webhook")
def test_a_dry_run_leaves_nothing_behind(control_plane: Cluster, namespace: str) -> None:
    before = versions(control_plane)
    for number in range(5):
        pod = seat_pod(f"dry{number}", annotations={**VRAM, keys.GANG: "g", keys.GANG_SIZE: "2"})
        create(control_plane.api(), namespace, pod, dryRun="All")
    wrong = seat_pod("dry", annotations={keys.VRAM: "much"})
    with pytest.raises(RefusedError):
        create(control_plane.api(), namespace, wrong, dryRun="All")
    assert versions(control_plane) == before


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize(
    ("resources", "before", "after"),
    [
        ({}, "BestEffort", "Burstable"),
        ({"requests": {"memory": "1Gi"}}, "Burstable", "Burstable"),
        ({"limits": {"memory": "2Gi"}, "requests": {"cpu": "1"}}, "Burstable", "Burstable"),
        ({"limits": {"memory": "2Gi", "cpu": "1"}}, "Guaranteed", "Guaranteed"),
    ],
)
def test_the_quality_of_service_stays_but_for_best_effort(
    control_plane: Cluster, namespace: str, resources: dict[str, Any], before: str, after: str
) -> None:
    pod = seat_pod("class", labels={})
    container = pod["spec"]["containers"][0]
    container["resources"] = resources
    container["livenessProbe"] = {"tcpSocket": {"port": 80}}
    plain = create(control_plane.api(), namespace, pod, dryRun="All")
    assert plain["status"]["qosClass"] == before
    pod["metadata"] |= {
        "labels": {keys.MANAGED_LABEL: "true"},
        "annotations": {**VRAM, keys.GPUS_ANNOTATION: "1"},
    }
    made = create(control_plane.api(), namespace, pod, dryRun="All")
    assert made["spec"]["initContainers"][0]["name"] == keys.SIDECAR
    assert made["status"]["qosClass"] == after


@pytest.mark.usefixtures("webhook")
def test_only_the_asking_container_of_several_is_changed(
    control_plane: Cluster, namespace: str
) -> None:
    pod = seat_pod("several", annotations=VRAM)
    probe = {"httpGet": {"path": "/", "port": 80}}
    helper = {"name": "helper", "image": "localhost/h", "command": ["h"], "livenessProbe": probe}
    native = {**helper, "name": "native", "restartPolicy": "Always"}
    pod["spec"]["containers"] = [helper, *pod["spec"]["containers"], {**helper, "name": "last"}]
    pod["spec"]["initContainers"] = [{"name": "prepare", "image": "localhost/p"}, native]
    pod["spec"]["containers"][1]["livenessProbe"] = probe
    spec = create(control_plane.api(), namespace, pod, dryRun="All")["spec"]
    first, seat, last = spec["containers"]
    for untouched in (first, last):
        assert untouched["command"] == ["h"]
        assert untouched["livenessProbe"]["httpGet"]["port"] == 80
        assert untouched["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert seat["command"][0] == keys.KYB_INIT_PATH
    assert seat["livenessProbe"]["httpGet"]["port"] == keys.SIDECAR_FIRST_PORT
    names = [container["name"] for container in spec["initContainers"]]
    assert names == ["prepare", "native", keys.SIDECAR]


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hostPID": True}, "spec.hostPID"),
        ({"shareProcessNamespace": True}, "spec.shareProcessNamespace"),
        ({"nodeName": "n1"}, "spec.nodeName"),
    ],
)
def test_refusals_reach_the_user(
    control_plane: Cluster, namespace: str, change: dict[str, Any], says: str
) -> None:
    pod = seat_pod("wrong", annotations=VRAM)
    pod["spec"].update(change)
    with pytest.raises(RefusedError, match=says):
        create(control_plane.api(), namespace, pod)


@pytest.mark.usefixtures("webhook")
def test_a_seat_without_a_label_concerns_us_too(control_plane: Cluster, namespace: str) -> None:
    pod = seat_pod("seat", annotations=VRAM, labels={})
    pod["spec"]["containers"][0]["resources"] = {"limits": {"kyb.ai/gpu-1x-seat": "1"}}
    made = create(control_plane.api(), namespace, pod)
    assert made["spec"]["schedulerName"] == "kybernate-scheduler"
    pod = seat_pod("init", annotations=VRAM, labels={})
    pod["spec"]["initContainers"] = [{**pod["spec"]["containers"][0], "name": "i"}]
    pod["spec"]["initContainers"][0]["resources"] = {"limits": {"kyb.ai/gpu-1x-seat": "1"}}
    with pytest.raises(RefusedError, match="Init container i"):
        create(control_plane.api(), namespace, pod)
    pod = seat_pod("note", annotations={keys.GPUS_ANNOTATION: "1"}, labels={})
    with pytest.raises(RefusedError, match="add the label"):
        create(control_plane.api(), namespace, pod)


@pytest.mark.usefixtures("webhook", "gpu_node")
def test_known_gpus_say_how_much_memory_and_which_groups(
    control_plane: Cluster, namespace: str
) -> None:
    api = control_plane.api()

    def admitted() -> bool:
        try:
            made = create(api, namespace, seat_pod("sized"), dryRun="All")
        except RefusedError:
            return False
        return bool(made["spec"]["containers"][0]["resources"]["limits"]["memory"] == "161Gi")

    until(admitted, "the webhook did not see the GPUNode")
    with pytest.raises(RefusedError, match="there are: G01"):
        create(api, namespace, seat_pod("g", annotations={**VRAM, keys.REQUIRE_GROUP: "G7"}))


@pytest.mark.usefixtures("webhook")
def test_without_known_gpus_the_annotation_is_asked_for(
    control_plane: Cluster, namespace: str
) -> None:
    with pytest.raises(RefusedError, match=keys.VRAM):
        create(
            control_plane.api(), namespace, seat_pod("unknown", annotations={keys.GPU_PRODUCT: "?"})
        )


@pytest.mark.usefixtures("webhook")
def test_the_ca_is_in_the_secret_and_in_both_configurations(control_plane: Cluster) -> None:
    kept = control_plane.api().get(SECRET)["data"]
    assert bundles(control_plane) == {kept["ca.crt"]}
    assert set(kept) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}


@pytest.mark.usefixtures("webhook")
def test_a_bundle_that_someone_changed_is_put_back(control_plane: Cluster, namespace: str) -> None:
    right = bundles(control_plane)
    wrong = base64.b64encode(b"").decode()
    step = {"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": wrong}
    for kind in KINDS:
        control_plane.api().patch(f"{HOOKS}/{kind}/kyb-webhook", [step], kind="json")
    until(lambda: bundles(control_plane) == right, "the bundle was not put back")
    until(lambda: _works(control_plane, namespace), "the API server does not trust us again")


def _works(cluster: Cluster, namespace: str) -> bool:
    try:
        create(cluster.api(), namespace, seat_pod("works", annotations=VRAM), dryRun="All")
    except RetryableError:
        return False
    return True


def test_closed_without_us_and_the_same_ca_afterwards(
    control_plane: Cluster, namespace: str, webhook: Webhook, tmp_path: Path
) -> None:
    api = control_plane.api()
    before = bundles(control_plane)
    assert webhook.stop() == 0
    with pytest.raises(RetryableError, match="failed calling webhook"):
        create(api, namespace, seat_pod("closed", annotations=VRAM))
    plain = seat_pod("plain", labels={})
    assert create(api, namespace, plain)["spec"]["schedulerName"] == "default-scheduler"
    # Another one, which keeps its certificates in a folder, has a CA of its own.
    folder = Webhook(control_plane, tmp_path, tmp_path / "certs")
    folder.start()
    assert bundles(control_plane) != before
    until(lambda: _works(control_plane, namespace), "certificates in a folder don't work")
    assert folder.stop() == 0
    webhook.start()
    assert bundles(control_plane) == before
    until(lambda: _works(control_plane, namespace), "the CA of the Secret doesn't work again")


def test_a_worker_that_dies_is_replaced(
    control_plane: Cluster, namespace: str, webhook: Webhook
) -> None:
    webhook.kill_worker()
    create(control_plane.api(), namespace, seat_pod("after", annotations=VRAM), dryRun="All")


def test_reviews_are_counted(control_plane: Cluster, namespace: str, webhook: Webhook) -> None:
    create(control_plane.api(), namespace, seat_pod("count", annotations=VRAM), dryRun="All")
    assert 'kyb_webhook_reviews_total{outcome="allowed",verb="mutate"}' in webhook.metrics()


def test_gpu_node_status_is_checked(control_plane: Cluster, gpu_node: str) -> None:
    api, path = control_plane.api("agent"), f"{keys.GPU_NODES_PATH}/{gpu_node}/status"
    found = control_plane.api().get(f"{keys.GPU_NODES_PATH}/{gpu_node}")
    assert found["status"]["gpus"] == STATUS["gpus"]
    seat = {"uid": "u", "name": "G0-seat-1", "group": "G0", "namespace": "d", "pod": "p"}
    for wrong in (
        {"groups": [{**STATUS["groups"][0], "resource": "kyb.ai/gpu-2x-seat"}]},
        {"links": [{"a": "GPU-0", "b": "GPU-0", "kind": "nvlink"}]},
        {"seats": [{**seat, "state": "asleep"}]},
        {"agent": {"address": "nowhere"}},
    ):
        with pytest.raises(RefusedError):
            api.patch(path, {"status": wrong})
    api.patch(path, {"status": {"seats": [{**seat, "state": "parked", "lastWakeMs": 1.5}]}})


@pytest.fixture
def restricted(control_plane: Cluster) -> str:
    """A namespace that lets in only what Pod Security `restricted` allows."""
    api, name = control_plane.api(), "strict"
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    with contextlib.suppress(ConflictError):
        api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": label}})
        api.post(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
    return name


@pytest.mark.usefixtures("webhook")
def test_what_we_add_passes_the_strictest_pod_security(
    control_plane: Cluster, restricted: str
) -> None:
    api = control_plane.api()
    pod = seat_pod("strict", annotations={**VRAM, keys.COOPERATE: "vllm"})
    container = pod["spec"]["containers"][0]
    container["ports"] = [{"name": "web", "containerPort": 8000}]
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        container[name] = {"httpGet": {"path": "/health", "port": "web"}}
    with pytest.raises(RefusedError, match="PodSecurity"):
        create(api, restricted, pod)
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    made = create(api, restricted, pod)
    (sidecar,) = made["spec"]["initContainers"]
    assert sidecar["name"] == keys.SIDECAR
    assert made["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] == 15481
    again = {"metadata": {**pod["metadata"], "name": "again"}, "spec": made["spec"]}
    again["metadata"]["annotations"] = made["metadata"]["annotations"]
    copied = create(api, restricted, again)
    assert copied["spec"]["initContainers"][0]["args"] == sidecar["args"]
    assert copied["metadata"]["annotations"] == made["metadata"]["annotations"]
