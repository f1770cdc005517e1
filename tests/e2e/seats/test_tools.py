"""People's tools on a whole cluster: `kubectl kyb`, and our dashboards of its own metrics."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from tests.kit.clients.kubectl import Kubectl
from tests.kit.pods import SeatPod, ready
from tests.kit.servers import prometheus
from tests.kit.servers.prometheus import PANELS, meant

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

SEEN_S = 60.0
NOT_HERE = (
    *(
        "control-plane: Registry's",
        "control-plane: A call of the registry",
        "control-plane: Copies",
    ),
    *("nodes: Steps between tiers", "nodes: Bytes of artifacts"),
    *("nodes: Failures", "nodes: Parks refused", "nodes: Intruders", "nodes: GPU memory of"),
    *("cluster: Why pods wait", "cluster: Pods that wait", "cluster: Requests that wait"),
)
"""Panels of what this cluster doesn't have, or of what hasn't gone wrong on it: no registry, no
offload, nobody who waits."""


@pytest.fixture
def kubectl(cluster: Cluster, tmp_path: Path) -> Kubectl:
    return Kubectl(cluster.kubectl_path, tmp_path, cluster.kubeconfig)


def states(kubectl: Kubectl) -> dict[str, tuple[str, str | None]]:
    found = json.loads(kubectl("kyb", "seats", "-o", "json").stdout)
    return {one["pod"]: (one["state"], one["tier"]) for one in found}


def until_state(kubectl: Kubectl, name: str, wanted: tuple[str, str | None]) -> None:
    """GPUNodes are told a moment after an operation has ended."""
    until = time.monotonic() + SEEN_S
    while (seen := states(kubectl).get(name)) != wanted:
        assert time.monotonic() < until, seen
        time.sleep(0.2)


def test_a_seat_is_parked_and_woken_with_kubectl_alone(
    kubectl: Kubectl, pods: Pods, models: Models
) -> None:
    pods.create(SeatPod("tool"))
    pods.wait(["tool"], ready, 60, "Ready")
    parked = kubectl("kyb", "park", "tool", "--tier", "ram")
    assert parked.returncode == 0, parked.stderr
    assert "park of tool: " in parked.stdout
    until_state(kubectl, "tool", ("parked", "ram"))
    assert "it is parked (ram) on n" in kubectl("kyb", "explain", "pod", "tool").stdout
    top = kubectl("kyb", "top")
    assert "default/tool" not in top.stdout, "it is on no GPU"
    assert "parked" in top.stdout
    woken = kubectl("kyb", "wake", "tool", "--timeout", "60s")
    assert woken.returncode == 0, woken.stderr
    until_state(kubectl, "tool", ("active", None))
    assert "default/tool" in kubectl("kyb", "top").stdout
    levels = {
        one["check"]: one["level"]
        for one in json.loads(kubectl("kyb", "doctor", "--json").stdout)["findings"]
    }
    assert levels["nodes"] == levels["dra"] == levels["vendor-plugin"] == levels["webhook"] == "ok"


def scraped(cluster: Cluster) -> dict[str, dict[str, str]]:
    """What config/monitoring/scrape.yaml finds on a cluster whose control side are pods, too."""
    ports = cluster.ports
    local = {
        "kyb-extender": ports.extender_probe,
        "kyb-webhook": ports.webhook_probe,
        "kyb-controller": ports.controller,
        "kyb-proxy": ports.proxy,
    }
    found = {f"127.0.0.1:{port}": {"pod": name, "node": ""} for name, port in local.items()}
    for pod in cluster.api().get(f"/api/v1/namespaces/{keys.NAMESPACE}/pods")["items"]:
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", ()):
                if port["name"] == "probes":
                    labels = {"pod": pod["metadata"]["name"], "node": pod["spec"]["nodeName"]}
                    found[f"{pod['status']['podIP']}:{port['containerPort']}"] = labels
    return found


@pytest.mark.slow
def test_dashboards_show_what_a_cluster_does(
    cluster: Cluster, kubectl: Kubectl, pods: Pods, models: Models, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        pods.create(SeatPod(name, annotations={keys.REQUIRE_GROUP: "G0"}))
    pods.wait(["one", "two"], ready, 60, "Ready")
    until = time.monotonic() + SEEN_S
    with prometheus.server(tmp_path, scraped(cluster)) as server:
        empty = set(PANELS)
        while empty and time.monotonic() < until:
            for name in ("one", "two"):
                assert models.ask(name).status == 200
            assert kubectl("kyb", "park", "one").returncode == 0
            empty = {name for name in PANELS if not server.ask(meant(PANELS[name]))}
            empty = {name for name in empty if not name.startswith(NOT_HERE)}
        assert not empty
        assert server.ask("up == 0") == []
