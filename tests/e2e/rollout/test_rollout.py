"""A rolling update of agent and plugin under parked and active seats."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

GPUS, SEATS_PER_GPU = 4, 3
DAEMONS = ("kyb-agent", "kyb-device-plugin")
LIMIT = 180


def test_agent_and_plugin_are_updated_under_twelve_seats(
    cluster: Cluster, pods: Pods, models: Models, figures: list[str]
) -> None:
    names = [f"seat-{number}" for number in range(GPUS * SEATS_PER_GPU)]
    for number, name in enumerate(names):
        group = {keys.REQUIRE_GROUP: f"G{number % GPUS}"}
        pods.create(SeatPod(name, node="n1", annotations=group, bytes_="1GiB"))
    pods.wait(names, ready, 120, "Ready")
    counters = {name: models.ask(name).counter for name in names}
    wait_until(lambda: tally(cluster) == (8, 4), 30, "not eight parked and four active seats")
    before = {name: trace(pod) for name, pod in pods.all().items()}
    daemons = daemon_pods(cluster)

    began = time.monotonic()
    for name in DAEMONS:
        cluster.kubectl("-n", keys.NAMESPACE, "rollout", "restart", f"daemonset/{name}")
    for name in DAEMONS:
        cluster.kubectl(
            *("-n", keys.NAMESPACE, "rollout", "status", f"daemonset/{name}"),
            f"--timeout={LIMIT}s",
            limit=LIMIT + 10,
        )
    seconds = time.monotonic() - began

    assert not daemons & daemon_pods(cluster)
    wait_until(lambda: tally(cluster) == (8, 4), 30, "not eight parked and four active any more")
    for name in names:
        answer = models.ask(name)
        assert answer.status == 200
        assert answer.intact
        assert answer.counter == counters[name] + 1
    assert {name: trace(pod) for name, pod in pods.all().items()} == before
    figures.append(
        f"rolling update of agent and plugin in {seconds:.0f} s under 8 parked and 4 active seats: "
        "0 restarted, 0 lost"
    )


def tally(cluster: Cluster) -> tuple[int, int]:
    """Parked and active seats of n1, as its status tells them."""
    seats = cluster.api().get(f"{keys.GPU_NODES_PATH}/n1")["status"]["seats"]
    states = [seat["state"] for seat in seats]
    return states.count("parked"), states.count("active")


def trace(pod: dict[str, object]) -> object:
    """What changes when a container is restarted or a pod isn't Ready for a moment."""
    status = pod["status"]
    assert isinstance(status, dict)
    containers = [(one["containerID"], one["restartCount"]) for one in status["containerStatuses"]]
    since = [one["lastTransitionTime"] for one in status["conditions"] if one["type"] == "Ready"]
    return containers, since


def daemon_pods(cluster: Cluster) -> set[str]:
    """UIDs of our own pods."""
    items = cluster.api().get(f"/api/v1/namespaces/{keys.NAMESPACE}/pods")["items"]
    return {pod["metadata"]["uid"] for pod in items if not pod["metadata"].get("deletionTimestamp")}
