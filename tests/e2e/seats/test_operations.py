"""Operations on a real node: by the network with a controller's certificate, and by the node's
own socket with `kybernate agent`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kybernate import keys
from kybernate.gen import agent_pb2
from kybernate.gen import agent_pb2 as pb
from kybernate.lib import rpc
from tests.cluster.processes.control import wait_until
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e
NAME = "operated"


@pytest.fixture
def controller(cluster: Cluster) -> Iterator[Any]:
    """The agent of n1 as a controller sees it."""
    tls = cluster.layout.tls
    # A node's agent may have a certificate of its own by now.
    authorities = b"".join((tls / f"{name}.crt").read_bytes() for name in ("agents-ca", "ca"))
    own = ((tls / f"controller.{kind}").read_bytes() for kind in ("key", "crt"))
    credentials = grpc.ssl_channel_credentials(authorities, *own)
    options = [("grpc.ssl_target_name_override", keys.agent_server_name("n1"))]
    address = cluster.node("n1").agent_address
    with grpc.secure_channel(address, credentials, options) as channel:
        yield rpc.Stub(channel, agent_pb2.DESCRIPTOR, "NodeAgent")


def kybernate(cluster: Cluster, *words: str) -> Any:
    """`kybernate agent … --json` on n1; what it printed."""
    socket = f"/proc/{cluster.node('n1').pid}/root{keys.AGENT_SOCKET}"
    command = [sys.executable, "-m", "kybernate.cli", "agent", "--socket", socket, *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def ended(agent: Any, operation: pb.Operation) -> pb.Operation:
    """The operation when it has ended."""
    request = pb.GetOperationRequest(name=operation.name)
    changes: list[pb.Operation] = list(agent.WatchOperation(request, timeout=60))
    return changes[-1]


def test_a_seat_is_evicted_woken_parked_and_drained(
    cluster: Cluster, pods: Pods, models: Models, controller: Any
) -> None:
    uid = pods.create(SeatPod(NAME, node="n1"))["metadata"]["uid"]
    pods.wait([NAME], ready, 60, "Ready")
    counter = models.ask(NAME).counter
    try:
        dry = controller.Evict(pb.EvictRequest(uid=uid, dry_run=True), timeout=10)
        assert any("host's RAM" in step for step in dry.plan)
        evicted = controller.Evict(pb.EvictRequest(name="e1", uid=uid, deadline_seconds=30))
        evicted = ended(controller, evicted)
        assert (evicted.state, evicted.by) == ("succeeded", "kyb-controller"), evicted
        assert evicted.saved.bytes >= 8 << 30
        assert not evicted.saved.outlives_pod
        assert {"checkpoint", "freeze", "all"} <= {phase.name for phase in evicted.phases}
        wait_until(
            lambda: "Evicted" in [event["reason"] for event in events(cluster, NAME)],
            30,
            "no event tells of it",
        )
        woken = kybernate(cluster, "wake", NAME)
        assert woken["state"] == "succeeded", woken
        parked = kybernate(cluster, "park", f"default/{NAME}", "--why", "a test")
        assert parked["state"] == "succeeded", parked
        drained = kybernate(cluster, "drain", "--why", "a test")
        assert drained["state"] == "succeeded", drained
        assert kybernate(cluster, "status")["draining"]
        assert ready_of_node(cluster) == "False"
        assert kybernate(cluster, "undrain")["state"] == "succeeded"
        answer = models.ask(NAME)
        assert (answer.status, answer.intact, answer.counter) == (200, True, counter + 1)
    finally:
        kybernate(cluster, "undrain")


def test_seats_are_parked_and_woken_by_hand(
    cluster: Cluster, pods: Pods, models: Models, tmp_path: Path
) -> None:
    """As docs/how-to/workloads/park-and-wake.md has it."""
    reader = Kubectl(cluster.kubectl_path, tmp_path, cluster.kubeconfig)
    socket = f"/proc/{cluster.node('n1').pid}/root{keys.AGENT_SOCKET}"
    reader.environment["KYB_AGENT_SOCKET"] = socket
    page = Page("park-and-wake", reader)
    pods.create(SeatPod(NAME, node="n1"))
    pods.wait([NAME], ready, 60, "Ready")
    counter = models.ask(NAME).counter
    assert NAME in page("kubectl kyb seats")
    assert "park of operated" in page("kubectl kyb park llama -n shop\n")
    assert "wake of operated" in page("kubectl kyb wake")
    with page.start("kubectl kyb top --watch") as watched:
        assert watched.stdout is not None
        assert watched.stdout.readline()
        watched.terminate()
    assert "node n" in page("kubectl -n kyb-system exec ds/kyb-agent")
    assert NAME in page("kybernate agent status")
    earlier = drains(json.dumps(kybernate(cluster, "operations", "--all")))
    try:
        page("kybernate agent drain")
        assert kybernate(cluster, "status")["draining"]
        (name,) = drains(page("kybernate agent operations")) - earlier
        with page:
            page("kybernate agent cancel", operation=name)
            page("kybernate agent undrain")
    finally:
        kybernate(cluster, "undrain")
    assert models.ask(NAME).counter == counter + 1


def drains(text: str) -> set[str]:
    """The drains of nodes that are named in it: the agent remembers those of other tests."""
    return set(re.findall(r"drain-node-\w+", text))


def events(cluster: Cluster, pod: str) -> list[Any]:
    """The pod's events, once there are some."""
    params = {"fieldSelector": f"involvedObject.name={pod}"}
    for _ in range(50):
        found = cluster.api().get("/api/v1/namespaces/default/events", params)["items"]
        if any(event["reason"] == "Evicted" for event in found):
            break
        time.sleep(0.1)
    return list(found)


def ready_of_node(cluster: Cluster) -> str:
    """The GPUNode's condition Ready, once it says that the node is drained."""
    for _ in range(50):
        status = cluster.api().get("/apis/kyb.ai/v1alpha1/gpunodes/n1")["status"]
        (condition,) = [one for one in status["conditions"] if one["type"] == "Ready"]
        if "drained" in condition["message"]:
            break
        time.sleep(0.1)
    return str(condition["status"])
