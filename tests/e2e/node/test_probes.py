"""All kinds of probes, by the real kubelet, while seats are active, parked and active again."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import requests

from kybernate import keys
from kybernate.errors import NotFoundError
from tests.cluster.processes.control import wait_until
from tests.kit.pods import PORT, SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

HEALTH_PORT = 50051
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PYTHON = ["/usr/bin/python3", "-S", "-c"]
ASK = f"import http.client as h; c = h.HTTPConnection('127.0.0.1', {PORT}, timeout=1); "
ASK += "c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"
HANDLERS: dict[str, dict[str, Any]] = {
    "http": {"httpGet": {"path": "/health", "port": "web"}},
    "tcp": {"tcpSocket": {"port": PORT}},
    "grpc": {"grpc": {"port": HEALTH_PORT}},
    "exec": {"exec": {"command": [*PYTHON, ASK]}},
}


def probed(name: str, handler: dict[str, Any], **notes: str) -> dict[str, Any]:
    """A toy model on G0 of n1 with all three probes of one kind, each asked every second."""
    pod = SeatPod(
        name,
        node="n1",
        annotations={keys.REQUIRE_GROUP: "G0", **notes},
        arguments=(f"--health-port={HEALTH_PORT}",),
    ).manifest()
    container = pod["spec"]["containers"][0]
    container["ports"][0]["name"] = "web"
    often = {"periodSeconds": 1, "failureThreshold": 3, "timeoutSeconds": 2}
    container["livenessProbe"] = {**handler, **often}
    container["readinessProbe"] = {**handler, **often}
    container["startupProbe"] = {**handler, **often, "failureThreshold": 60}
    return pod


def restarts(pod: dict[str, Any]) -> int:
    """How often its seat's container was restarted."""
    found: int = pod["status"]["containerStatuses"][0]["restartCount"]
    return found


def seats(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The seats of n1 by pod, as the GPUNode tells them."""
    status = cluster.api().get(f"{keys.GPU_NODES_PATH}/n1")["status"]
    return {seat["pod"]: seat for seat in status["seats"]}


def test_no_kind_of_probe_ends_or_wakes_a_parked_workload(
    cluster: Cluster, pods: Pods, models: Models
) -> None:
    for name, handler in HANDLERS.items():
        cluster.api().post("/api/v1/namespaces/default/pods", probed(name, handler))
    pods.wait(HANDLERS, ready, 120, "Ready")
    before = {name: models.ask(name).counter for name in HANDLERS}
    time.sleep(1)  # the GPUNode's status may be half a second late
    wakes = {name: seat["wakes"] for name, seat in seats(cluster).items()}
    for name in HANDLERS:
        answer = models.ask(name)
        assert answer.intact
        assert answer.counter == before[name] + 1
        # Three others stay parked through more probes than would end or unready them.
        time.sleep(4.5)
        found = pods.all()
        for pod in HANDLERS:
            assert ready(found[pod]), pods.story(pod)
            assert restarts(found[pod]) == 0, pods.story(pod)
    told = seats(cluster)
    assert {name: told[name]["state"] for name in HANDLERS} == {
        **dict.fromkeys(HANDLERS, "parked"),
        "exec": "active",
    }
    # One for each question: while they started, turns may have taken some more. A command that was
    # begun just before the park may still call and wake what it asks, once.
    woken = {name: told[name]["wakes"] - wakes[name] for name in HANDLERS}
    assert woken in ({**dict.fromkeys(HANDLERS, 1), "exec": more} for more in (1, 2)), woken


def events(cluster: Cluster, reason: str) -> list[str]:
    """Messages of the namespace's events with this reason."""
    found = cluster.api().get("/api/v1/namespaces/default/events")["items"]
    return [event["message"] for event in found if event["reason"] == reason]


@pytest.mark.parametrize("kind", ["http", "grpc", "exec"])
def test_a_sick_workload_is_restarted_as_ever(
    cluster: Cluster, pods: Pods, models: Models, kind: str
) -> None:
    name = f"sick-{kind}"
    cluster.api().post("/api/v1/namespaces/default/pods", probed(name, HANDLERS[kind]))
    pod = pods.wait([name], ready, 60, "Ready")[name]
    models.ask(name)
    time.sleep(2)  # a first success ends the start-up time
    url = f"http://{pod['status']['podIP']}:{PORT}/debug/sick"
    assert requests.post(url, json={}, timeout=5).status_code == 200
    pods.wait([name], lambda pod: restarts(pod) == 1, 60, "restarted")
    pods.wait([name], ready, 60, "Ready again")


def asked(pods: Pods) -> list[str]:
    """What the workload was asked to do, by its log."""
    lines = [line for line in pods.log("willing").splitlines() if "asked" in line]
    return [json.loads(line)["asked"] for line in lines]


def test_a_workload_is_asked_before_its_park_and_after_its_wake(
    cluster: Cluster, pods: Pods, models: Models
) -> None:
    names = ("willing", "other")
    notes = {keys.COOPERATE: "http"}
    for name in names:
        cluster.api().post(
            "/api/v1/namespaces/default/pods", probed(name, HANDLERS["http"], **notes)
        )
    pods.wait(names, ready, 90, "Ready")
    for _ in range(2):
        for name in names:
            assert models.ask(name).intact
    # Whichever of the two started first, this one was parked, woken and parked again. What it
    # printed before it was frozen is on its way to the log for a moment.
    wait_until(lambda: len(asked(pods)) >= 3, 20, lambda: f"it was asked {asked(pods)} only")
    assert asked(pods)[:3] == ["/kyb/park", "/kyb/wake", "/kyb/park"]
    assert not events(cluster, "NotCooperating")


@pytest.fixture
def hostile(cluster: Cluster) -> Iterator[str]:
    """A ConfigMap with all the variables that are ours, set otherwise."""
    name = "hostile"
    data = {
        "KYB_SEAT_SOCKET": "/tmp/mine.sock",
        "KYB_POD_SOCKET": "/tmp/mine.sock",
        "KYB_GPU_GROUP": "G3",
        "KYB_GPU_INDICES": "3",
        "CUDA_VISIBLE_DEVICES": "3",
        "NVIDIA_VISIBLE_DEVICES": "all",
    }
    with contextlib.suppress(NotFoundError):
        cluster.api().delete(f"{CONFIG_MAPS}/{name}")
    cluster.api().post(CONFIG_MAPS, {"metadata": {"name": name}, "data": data})
    yield name
    cluster.api().delete(f"{CONFIG_MAPS}/{name}")


def test_variables_from_a_config_map_lead_nobody_past_the_gate(
    cluster: Cluster, pods: Pods, models: Models, hostile: str
) -> None:
    for name in ("first", "second"):
        pod = probed(name, HANDLERS["http"])
        pod["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": hostile}}]
        cluster.api().post("/api/v1/namespaces/default/pods", pod)
    found = pods.wait(("first", "second"), ready, 90, "Ready")
    # Only one of them at a time holds the GPU: that is what the driver's log, read after every
    # test, says. The other answers when its turn comes.
    for name in found:
        assert models.ask(name).intact
        address = found[name]["status"]["podIP"]
        env = requests.get(f"http://{address}:{PORT}/debug/gpus", timeout=10).json()["env"]
        assert env["KYB_GPU_GROUP"] == "G0"
        assert env["KYB_GPU_INDICES"] == "0"
