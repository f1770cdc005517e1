"""Parts of the node side restart; pods don't notice."""

from __future__ import annotations

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

NAMES = ("one", "two", "three", "four")


@pytest.fixture
def counters(pods: Pods, models: Models) -> dict[str, int]:
    """Four models on two GPUs of n1, each asked once: two are parked."""
    for number, name in enumerate(NAMES):
        group = f"G{number % 2}"
        pods.create(SeatPod(name, node="n1", annotations={keys.REQUIRE_GROUP: group}))
    pods.wait(NAMES, ready, 90, "Ready")
    return {name: models.ask(name).counter for name in NAMES}


def check(pods: Pods, models: Models, counters: dict[str, int]) -> None:
    """Every model answers with its own next count, and no container was restarted."""
    for name in NAMES:
        answer = models.ask(name)
        assert answer.status == 200
        assert answer.intact
        counters[name] += 1
        assert answer.counter == counters[name]
    found = pods.all()
    for name in NAMES:
        assert found[name]["status"]["containerStatuses"][0]["restartCount"] == 0


def test_agent_killed_while_seats_are_parked(
    cluster: Cluster, pods: Pods, models: Models, counters: dict[str, int]
) -> None:
    for _ in range(3):
        cluster.node("n1").agent.kill9()
        check(pods, models, counters)


def test_kubelet_restarted(
    cluster: Cluster, pods: Pods, models: Models, counters: dict[str, int]
) -> None:
    cluster.restart_kubelet("n1")
    check(pods, models, counters)
    pods.create(SeatPod("late", node="n1"))
    pods.wait(["late"], ready, 90, "Ready")
    assert models.ask("late").intact


def test_plugin_killed(
    cluster: Cluster, pods: Pods, models: Models, counters: dict[str, int]
) -> None:
    cluster.node("n1").plugin.kill9()
    check(pods, models, counters)

    def advertised() -> bool:
        node = cluster.api().get("/api/v1/nodes/n1")
        return node["status"]["allocatable"].get(keys.seat_resource(1), "0") == "16"

    wait_until(advertised, 30, "the seats weren't advertised again")
    pods.create(SeatPod("late", node="n1"))
    pods.wait(["late"], ready, 90, "Ready")


def test_proxy_and_extender_restarted(
    cluster: Cluster, pods: Pods, models: Models, counters: dict[str, int]
) -> None:
    cluster.process("proxy").kill9()
    cluster.process("extender").kill9()
    wait_until(lambda: set(NAMES) <= set(_names(models)), 30, "the proxy didn't find its models")
    check(pods, models, counters)
    pods.create(SeatPod("late"))
    pods.wait(["late"], ready, 90, "Ready")


def _names(models: Models) -> list[str]:
    try:
        return models.names()
    except OSError:
        return []
