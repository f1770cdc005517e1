"""Wake on connect: requests straight to a parked pod's address, with no proxy between.

A Service's cluster IP leads to the same address and needs kube-proxy, which this cluster has not.
"""

from __future__ import annotations

import http.client
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.kit.clients.direct import Direct
from tests.kit.pods import PORT, SeatPod, ready

if TYPE_CHECKING:
    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e


def states(cluster: Cluster) -> dict[str, str]:
    status = cluster.api().get(f"{keys.GPU_NODES_PATH}/n1")["status"]
    return {seat["pod"]: seat["state"] for seat in status["seats"]}


def two(cluster: Cluster, pods: Pods, **annotations: str) -> dict[str, Any]:
    """`left`, parked, and `right`, active, on one GPU."""
    notes = {keys.REQUIRE_GROUP: "G1", **annotations}
    for name in ("left", "right"):
        pods.create(SeatPod(name, node="n1", annotations=notes))
        pods.wait([name], ready, 60, "Ready")
    found = pods.all()
    wait_until(lambda: states(cluster).get("left") == "parked", 60, "left wasn't parked")
    time.sleep(0.5)
    return found


def restarts(pods: Pods) -> set[int]:
    return {
        one["restartCount"]
        for pod in pods.all().values()
        for one in pod["status"]["containerStatuses"]
    }


def test_a_plain_request_to_the_pods_address_wakes_it(cluster: Cluster, pods: Pods) -> None:
    found = two(cluster, pods)
    left, right = Direct.to(found["left"]), Direct.to(found["right"])
    for one in (left, right, left):
        answer = one.get("/v1/models", limit=20)
        assert answer.status_code == 200
    counters = [one.ask(limit=20).counter for one in (right, left, right, left)]
    assert counters == [1, 1, 2, 2]
    assert restarts(pods) == {0}


def test_a_request_is_answered_before_its_seat_is_parked_again(
    cluster: Cluster, pods: Pods, models: Models
) -> None:
    found = two(cluster, pods)
    answers: list[tuple[Any, float]] = []

    def slowly() -> None:
        answer = Direct.to(found["left"]).ask(limit=30, max_tokens=8, token_delay=0.5)
        answers.append((answer, time.monotonic()))

    asking = threading.Thread(target=slowly)
    asking.start()
    wait_until(lambda: states(cluster).get("left") == "active", 30, "left isn't woken")
    assert models.ask("right").status == 200
    other = time.monotonic()
    asking.join(30)
    ((answer, ended),) = answers
    assert answer.status == 200
    assert answer.intact
    assert ended < other


def test_an_idle_connection_is_reset_at_the_park_unless_the_pod_keeps_it(
    cluster: Cluster, pods: Pods
) -> None:
    for kept in (False, True):
        found = two(cluster, pods, **({keys.CONNECTIONS: "keep"} if kept else {}))
        old = http.client.HTTPConnection(found["right"]["status"]["podIP"], PORT, timeout=20)
        assert get(old) == 200
        Direct.to(found["left"]).get("/health", limit=20)
        wait_until(lambda: states(cluster).get("right") == "parked", 40, "right wasn't parked")
        time.sleep(0.5)
        if kept:
            assert get(old) == 200
        else:
            with pytest.raises(ConnectionResetError):
                old.sock.recv(1)
        old.close()
        pods.delete(["left", "right"], grace=0)
        pods.gone(["left", "right"], 60)


def get(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/health")
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_a_request_that_comes_while_the_agent_is_away_is_answered_once_it_is_back(
    cluster: Cluster, pods: Pods
) -> None:
    found = two(cluster, pods)
    cluster.node("n1").agent.kill9()
    assert Direct.to(found["left"]).get("/health", limit=40).status_code == 200
    assert restarts(pods) == {0}
