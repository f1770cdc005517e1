"""People's tools on a whole cluster: `kubectl kyb`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.kit.clients.kubectl import Kubectl
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

SEEN_S = 60.0


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
