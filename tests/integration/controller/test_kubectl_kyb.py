"""`kubectl kyb` as people use it: the real kubectl finds the plugin on the PATH, and an API server,
the controller and a node's agent do the rest."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kybernate import keys
from kybernate.errors import ConflictError, NotFoundError
from tests.integration.controller.conftest import NAMESPACE, NODE, PODS, REQUESTS, complete, pod
from tests.integration.hooks import until
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.kit.servers.agentdoor import Door

pytestmark = pytest.mark.integration

LIMIT_S = 90.0


@pytest.fixture
def kubectl(control_plane: Cluster, namespace: str, tmp_path: Path) -> Iterator[Kubectl]:
    yield Kubectl(control_plane.kubectl_path, tmp_path, control_plane.kubeconfig)
    api = control_plane.api()
    for item in api.get(REQUESTS)["items"]:
        with contextlib.suppress(NotFoundError):
            api.delete(f"{REQUESTS}/{item['metadata']['name']}")


@pytest.fixture
def api(control_plane: Cluster) -> Api:
    return control_plane.api()


def asked(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(REQUESTS)["items"]
    return found


@pytest.mark.usefixtures("controller")
def test_a_seat_is_parked_woken_and_kept(
    kubectl: Kubectl, api: Api, door: Door, seated: Callable[..., str]
) -> None:
    uid = seated()
    parked = kubectl("kyb", "park", "a", "-n", NAMESPACE, "--tier", "nvme")
    assert (parked.returncode, parked.stdout) == (0, "park of a: it is kept\n"), parked.stderr
    woken = kubectl("kyb", "wake", "pod/a", "-n", NAMESPACE)
    assert (woken.returncode, woken.stdout) == (0, "wake of a: it is kept\n"), woken.stderr
    door.takes = 2.0
    kept = kubectl("kyb", "snapshot", "a", "-n", NAMESPACE)
    assert kept.returncode == 0, kept.stderr
    assert "snapshot of a: it is parking" in kept.stderr, "people see how far it is"
    assert [one[1:] for one in door.begun] == [
        ("park", uid, "nvme"),
        ("wake", uid, ""),
        ("save", uid, ""),
    ]
    artifact = f"shop/a@{door.begun[-1][0]}"
    assert kept.stdout.splitlines() == [
        "snapshot of a: it is kept",
        f"{artifact}  7 B in the object store",
    ]
    assert {one["spec"]["ttlSecondsAfterFinished"] for one in asked(api)} == {86_400}


@pytest.mark.usefixtures("controller")
def test_what_programs_read(kubectl: Kubectl, door: Door, seated: Callable[..., str]) -> None:
    seated()
    found = kubectl("kyb", "snapshot", "a", "-n", NAMESPACE, "-o", "json")
    assert complete(json.loads(found.stdout)) == ("True", "Sealed"), found.stderr
    named = kubectl("kyb", "park", "a", "-n", NAMESPACE, "-o", "name", "--no-wait")
    assert named.returncode == 0, named.stderr
    kind, _, name = named.stdout.strip().partition("/")
    assert kind == "checkpointrequest.kyb.ai"
    assert kubectl("-n", NAMESPACE, "get", kind, name).returncode == 0


@pytest.mark.usefixtures("controller")
def test_exit_statuses(kubectl: Kubectl, api: Api, door: Door, seated: Callable[..., str]) -> None:
    refused = kubectl("kyb", "park", "nobody", "-n", NAMESPACE)
    assert refused.returncode == 1
    assert "park of nobody failed (PodNotFound): there is no pod requests/nobody" in refused.stderr
    usage = kubectl("kyb", "park", "a", "-n", NAMESPACE, "--tier", "tape")
    assert usage.returncode == 2
    assert kubectl("kyb", "park", "a", "--timeout", "0s").returncode == 2
    unknown = kubectl("kyb", "park", "a", "--context", "elsewhere")
    assert (unknown.returncode, "no context elsewhere" in unknown.stderr) == (1, True)
    seated()
    door.takes = 3600.0
    late = kubectl("kyb", "park", "a", "-n", NAMESPACE, "--timeout", "2s")
    assert late.returncode == 3, late.stderr
    assert "DeadlineExceeded" in late.stderr
    until(lambda: len(door.cancelled) == 1, "it continues after its time", LIMIT_S)


def test_without_a_controller_it_is_told_that_nobody_answers(
    kubectl: Kubectl, webhook: object
) -> None:
    found = kubectl("kyb", "park", "a", "-n", NAMESPACE, "--timeout", "1s")
    assert found.returncode == 3
    assert "no controller answers" in found.stderr


def test_a_dry_run_says_what_admission_says_and_asks_nothing(
    kubectl: Kubectl, webhook: object, api: Api, users: Callable[..., Api], tmp_path: Path
) -> None:
    found = kubectl("kyb", "park", "a", "-n", NAMESPACE, "--dry-run")
    assert found.returncode == 0, found.stderr
    assert "may be asked for; nothing was" in found.stdout
    rule = {"apiGroups": ["kyb.ai"], "resources": ["checkpointrequests"], "verbs": ["create"]}
    users("asks-alone", [rule])
    words = ("kyb", "park", "a", "-n", NAMESPACE, "--dry-run")

    def refused() -> bool:
        answer = kubectl(*words, "--kubeconfig", str(tmp_path / "asks-alone.conf"))
        return answer.returncode == 1 and "may not ask for mode Park of pod a" in answer.stderr

    until(refused, "who may not park is not refused", LIMIT_S)
    assert asked(api) == []


@pytest.fixture
def told(control_plane: Cluster, door: Door, seated: Callable[..., str]) -> Callable[..., None]:
    """Writes what n1's agent tells of the seat of pod a, parked on NVMe; the answer writes more."""
    uid, agent = seated(), control_plane.api("agent")
    gpu = {"index": 0, "uuid": "GPU-0", "product": "H100", "memoryBytes": 80 << 30, "healthy": True}
    group = {"name": "G0", "resource": keys.seat_resource(1), "gpus": ["GPU-0"]}
    seat = {"uid": uid, "name": "G0-seat-1", "group": "G0", "namespace": NAMESPACE, "pod": "a"}
    parked = {"state": "parked", "tier": "nvme", "savedBytes": 3 << 30, "wakes": 2}
    status = {
        "gpus": [gpu],
        "groups": [{**group, "seats": 2, "activeSlots": 1}],
        "tiers": [{"name": "nvme", "seats": 1, "usedBytes": 3 << 30, "budgetBytes": 1 << 40}],
        "seats": [{**seat, **parked, "lastWakeMs": 41.6, "model": "birch", "reason": "idle"}],
    }

    def write(**change: Any) -> None:
        now = {**status, "seats": [{**status["seats"][0], **change}]}
        agent.patch(f"{keys.GPU_NODES_PATH}/{NODE}/status", {"status": now})

    write()
    return write


def test_seats_and_top(kubectl: Kubectl, webhook: object, told: Any) -> None:
    listed = kubectl("kyb", "seats", "-n", NAMESPACE)
    assert listed.returncode == 0, listed.stderr
    head, line = listed.stdout.splitlines()
    assert head.split()[:5] == ["NAMESPACE", "POD", "STATE", "TIER", "SIZE"]
    assert line.split() == f"{NAMESPACE} a parked nvme 3.0 GiB - 0 2 42 ms".split()
    wide = kubectl("kyb", "seats", "-A", "-o", "wide").stdout
    assert "birch" in wide
    assert kubectl("kyb", "seats", "-n", NAMESPACE, "-o", "name").stdout == "pod/a\n"
    (found,) = json.loads(kubectl("kyb", "seats", "-n", NAMESPACE, "-o", "json").stdout)
    assert (found["state"], found["node"], found["bytes"]) == ("parked", NODE, 3 << 30)
    assert yaml.safe_load(kubectl("kyb", "seats", "-n", NAMESPACE, "-o", "yaml").stdout) == [found]
    top = kubectl("kyb", "top").stdout
    assert "its agent has not reported yet" in top, "a node without a Ready condition is told first"
    assert "H100" in top
    assert "1.0 TiB" in top
    gpus = json.loads(kubectl("kyb", "top", "-o", "json").stdout)["gpus"]
    assert [(one["index"], one["parked"], one["active"]) for one in gpus] == [(0, 1, [])]


def test_a_pod_is_explained_from_what_the_api_server_has(
    kubectl: Kubectl, webhook: object, api: Api, told: Any
) -> None:
    found = kubectl("kyb", "explain", "pod", "a", "-n", NAMESPACE)
    said, *values = found.stdout.splitlines()
    assert said == f"{NAMESPACE}/a: it is parked (nvme) on n1, group G0: idle", found.stderr
    assert any(keys.TURN in one and "the agent's setting" in one for one in values)
    made = pod("waits", {keys.seat_resource(1): "1", "memory": "1Gi"})
    made["metadata"]["labels"] = {keys.MANAGED_LABEL: "true"}
    made["metadata"]["annotations"] = {keys.VRAM: "1Gi"}
    made["spec"]["containers"][0]["args"] = ["serve"]
    uid = api.post(PODS, made)["metadata"]["uid"]
    try:
        about = {"kind": "Pod", "namespace": NAMESPACE, "name": "waits", "uid": uid}
        event = {"involvedObject": about, "reason": "NoSeat", "message": "1 node: no free 1x seat"}
        meta = {"metadata": {"generateName": "waits."}}
        api.post(f"/api/v1/namespaces/{NAMESPACE}/events", {**event, **meta})
        waits = kubectl("kyb", "explain", "pod", "waits", "-n", NAMESPACE)
        said, *_ = waits.stdout.splitlines()
        assert said == f"{NAMESPACE}/waits: 1 node: no free 1x seat", waits.stderr
    finally:
        api.delete(f"{PODS}/waits", {"gracePeriodSeconds": 0})


def test_artifacts_that_nodes_tell_of(
    kubectl: Kubectl, webhook: object, control_plane: Cluster, told: Any
) -> None:
    row = {"artifact": f"{NAMESPACE}/a@1-2", "uid": "u", "tier": "object", "bytes": 1 << 20}
    path = f"{keys.GPU_NODES_PATH}/{NODE}/status"
    control_plane.api("agent").patch(path, {"status": {"saved": [row]}})
    lines = kubectl("kyb", "artifacts", "ls", "-A").stdout.splitlines()
    assert lines[1].split() == [f"{NAMESPACE}/a@1-2", "object", "1.0", "MiB", NODE, "u"]
    assert "No node tells" in kubectl("kyb", "artifacts", "ls", "-n", "other").stdout
    assert kubectl("kyb", "artifacts", "ls", "s3://x").returncode == 2


@pytest.mark.usefixtures("controller")
def test_a_drain_cordons_and_parks(
    kubectl: Kubectl, api: Api, door: Door, told: Any, request: pytest.FixtureRequest
) -> None:
    with contextlib.suppress(ConflictError):
        api.post("/api/v1/nodes", {"metadata": {"name": NODE}})
    request.addfinalizer(lambda: api.delete(f"/api/v1/nodes/{NODE}"))
    would = kubectl("kyb", "drain", NODE, "--dry-run")
    assert would.stdout == f"would cordon node {NODE}, and park: {NAMESPACE}/a\n", would.stderr
    assert not api.get(f"/api/v1/nodes/{NODE}")["spec"].get("unschedulable")
    found = kubectl("kyb", "drain", NODE, "--tier", "nvme")
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[1:] == ["evict of a: it is kept"]
    assert api.get(f"/api/v1/nodes/{NODE}")["spec"]["unschedulable"]
    assert [one[1::2] for one in door.begun] == [("evict", "nvme")]
    door.refuses = "its pod is ending"
    assert kubectl("kyb", "drain", NODE).returncode == 1


def test_a_cluster_is_examined(
    kubectl: Kubectl, webhook: object, api: Api, told: Any, request: pytest.FixtureRequest
) -> None:
    """docs/how-to/install/gpu-operator.md: who else hands out the same GPUs."""

    def found() -> tuple[int, dict[str, str]]:
        done = kubectl("kyb", "doctor", "--json")
        findings = json.loads(done.stdout)["findings"]
        return done.returncode, {one["check"]: one["level"] for one in findings}

    api.post("/api/v1/nodes", {"metadata": {"name": NODE}})
    request.addfinalizer(lambda: api.delete(f"/api/v1/nodes/{NODE}"))
    page = Page("gpu-operator", kubectl)
    page("kubectl label node gpu-1 nvidia.com/gpu.deploy.device-plugin=false")
    page("kubectl label node gpu-1 kyb.ai/gpu-node=true")
    before = found()[1]
    assert (before["objects"], before["webhook"]) == ("ok", "ok")
    assert (before["vendor-plugin"], before["dra"]) == ("ok", "ok")
    assert before["nodes"] == "ok"
    slices = "/apis/resource.k8s.io/v1/resourceslices"

    def publish(name: str, uuid: str) -> None:
        device = {"name": "gpu-0", "attributes": {"uuid": {"string": uuid}}}
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": pool, "devices": [device]}
        api.post(slices, {"metadata": {"name": name}, "spec": spec})
        request.addfinalizer(lambda: api.delete(f"{slices}/{name}"))

    publish("others", "GPU-7")
    assert found()[1]["dra"] == "ok", "another GPU of the node is nobody's business"
    publish("same", "GPU-0")
    status, levels = found()
    assert (status, levels["dra"]) == (1, "fail")
    offered = {
        "status": {"allocatable": {"nvidia.com/gpu": "8"}, "capacity": {"nvidia.com/gpu": "8"}}
    }
    api.patch(f"/api/v1/nodes/{NODE}/status", offered)
    assert found()[1]["vendor-plugin"] == "fail"
    with page.start("kubectl kyb doctor") as examined:
        said = examined.communicate(timeout=LIMIT_S)[0]
    assert examined.returncode == 1
    assert ("vendor-plugin" in said, "dra" in said) == (True, True), said
    with page:
        page("kubectl label node gpu-1 kyb.ai/gpu-node- nvidia.com/gpu.deploy.device-plugin-")
    assert "labels" not in api.get(f"/api/v1/nodes/{NODE}")["metadata"]


def test_a_watch_tells_what_changes(kubectl: Kubectl, webhook: object, told: Any) -> None:
    with kubectl.start("kyb", "seats", "-n", NAMESPACE, "--watch", "-o", "json") as watch:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["state"] == "parked"
        told(state="active", tier=None)
        assert json.loads(watch.stdout.readline())["state"] == "active"
        watch.terminate()


def test_who_may_read_pods_alone_sees_the_pods(
    kubectl: Kubectl, webhook: object, told: Any, users: Callable[..., Api], tmp_path: Path
) -> None:
    users("reads-pods", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
    conf = str(tmp_path / "reads-pods.conf")

    def listed() -> bool:
        found = kubectl("kyb", "seats", "-n", NAMESPACE, "--kubeconfig", conf)
        return found.returncode == 0 and found.stdout.splitlines()[1].split()[1:3] == [
            "a",
            "starting",
        ]

    until(listed, "pods are not told", LIMIT_S)
    top = kubectl("kyb", "top", "--kubeconfig", conf)
    assert (top.returncode, "gpunodes" in top.stderr) == (1, True)


def test_kubectl_completes_the_words(kubectl: Kubectl, webhook: object, told: Any) -> None:
    found = kubectl("__complete", "kyb", "pa").stdout
    assert found.split("\t")[0] == "park"
    pods = kubectl("__complete", "kyb", "park", "-n", NAMESPACE, "").stdout
    assert "a" in pods.splitlines(), pods
