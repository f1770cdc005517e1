"""Who uses a GPU without its turn, and what the host has no room for, on real nodes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.e2e.conftest import emptied
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

GIB = 1 << 30
HOLD = """
import sys
from tests.workloads.device import Gpu, call
call("cuInit", 0)
gpu = Gpu(0, int(sys.argv[1]), 0, 1)
print("up", flush=True)
sys.stdin.read()
"""


TRY = """
import glob, os
said = []
for path in glob.glob('/dev/nvidia[0-9]*'):
    try:
        said.append(os.open(path, os.O_RDWR))
    except OSError as error:
        said.append(error.strerror)
with open('/proc/1/comm') as gate, open('/dev/shm/tried', 'w') as file:
    print(gate.read().strip(), *said, sep=': ', file=file)
"""
"""A hook: what comes of opening each GPU that its container has, and whether its gate is shut."""
SHOW = "print(open('/dev/shm/tried').read())"


@contextmanager
def holding(*command: str, **environment: str) -> Iterator[None]:
    """A process that holds device memory until the end of the block."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Pods]:
    """As everywhere, but the driver's log isn't asked: these tests break the rule on purpose."""
    with emptied(cluster) as found:
        yield found


def two_models(pods: Pods, models: Models) -> None:
    """`left` parked and `right` active on the first GPU of n1."""
    for name in ("left", "right"):
        pods.create(SeatPod(name, node="n1", annotations={keys.REQUIRE_GROUP: "G0"}))
    pods.wait(("left", "right"), ready, 90, "Ready")
    for name in ("left", "right"):
        assert models.ask(name).status == 200


def condition(cluster: Cluster, kind: str) -> dict[str, Any]:
    status = cluster.api().get(f"{keys.GPU_NODES_PATH}/n1")["status"]
    return next((one for one in status["conditions"] if one["type"] == kind), {})


def events(cluster: Cluster, reason: str) -> list[str]:
    found = cluster.api().get("/api/v1/namespaces/default/events")["items"]
    return [one["message"] for one in found if one["reason"] == reason]


def test_a_process_outside_kubernetes_is_reported_and_its_memory_respected(
    cluster: Cluster, pods: Pods, models: Models
) -> None:
    two_models(pods, models)
    node = cluster.node("n1")
    entry = ("nsenter", "-m", "-p", "-t", str(node.pid), "--", sys.executable, "-c", HOLD)
    counter = models.ask("left").counter
    models.ask("right")
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(models.ask("left", limit=60)))
    environment = {"LD_LIBRARY_PATH": "/run/simgpu/lib", "PYTHONPATH": str(REPOSITORY)}
    with holding(*entry, str(40 * GIB), **environment):
        wait_until(
            lambda: condition(cluster, "ExclusiveGpus").get("status") == "False",
            10,
            "the GPUNode says nothing of the process",
        )
        assert "outside of Kubernetes" in condition(cluster, "ExclusiveGpus")["message"]
        asking.start()
        time.sleep(3)
        assert answers == []
    asking.join(60)
    assert answers[0].status == 200
    assert answers[0].counter == counter + 1
    assert answers[0].intact
    wait_until(
        lambda: condition(cluster, "ExclusiveGpus").get("status") == "True",
        10,
        "the GPUNode goes on to speak of a process that is gone",
    )
    (told,) = events(cluster, "ForeignProcess")
    assert "GPU-" in told


def test_a_hook_has_no_gpu_before_its_seats_turn(
    cluster: Cluster, pods: Pods, models: Models
) -> None:
    node = cluster.node("n1")
    entry = ("nsenter", "-m", "-p", "-t", str(node.pid), "--", sys.executable, "-c", HOLD)
    environment = {"LD_LIBRARY_PATH": "/run/simgpu/lib", "PYTHONPATH": str(REPOSITORY)}
    hook = {"postStart": {"exec": {"command": ["python3", "-c", TRY]}}}
    show = ("exec", "hooked", "-c", "server", "--", "python3", "-c", SHOW)
    kubectl = (str(cluster.kubectl_path), f"--kubeconfig={cluster.kubeconfig}")
    found = ""

    def tried() -> bool:
        nonlocal found
        run = subprocess.run([*kubectl, *show], capture_output=True, text=True, check=False)
        found = run.stdout.strip() or run.stderr.strip()
        return bool(run.stdout)

    # There is no room on its GPU: it waits at its gate.
    with holding(*entry, str(40 * GIB), **environment):
        where = {keys.REQUIRE_GROUP: "G0"}
        pods.create(SeatPod("hooked", node="n1", annotations=where, more={"lifecycle": hook}))
        wait_until(tried, 40, lambda: f"its hook does not run: {found} {pods.get('hooked')}")
    assert found == "kyb-wait: Operation not permitted"
    pods.wait(("hooked",), ready, 90, "Ready")
    assert models.ask("hooked").status == 200


def test_a_command_run_in_a_parked_pod_is_killed_and_told_on_the_pod(
    cluster: Cluster, pods: Pods, models: Models
) -> None:
    two_models(pods, models)
    exec_ = ("exec", "-i", "left", "-c", "server", "--", "python3", "-c", HOLD, str(2 * GIB))
    command = (str(cluster.kubectl_path), f"--kubeconfig={cluster.kubeconfig}", *exec_)
    with holding(*command):
        wait_until(lambda: bool(events(cluster, "Intruder")), 10, "no event tells of it")
    assert "did not start" in events(cluster, "Intruder")[0]
    assert "it is killed" in events(cluster, "Intruder")[0]
    assert models.ask("left").intact


def test_a_park_beyond_the_containers_limit_is_refused_with_the_choices(
    cluster: Cluster, pods: Pods, models: Models
) -> None:
    # It declares less than it takes, so its memory limit was raised by too little.
    pods.create(SeatPod("liar", node="n1", vram="1Gi", annotations={keys.REQUIRE_GROUP: "G3"}))
    pods.wait(["liar"], ready, 90, "Ready")
    pods.create(SeatPod("other", node="n1", annotations={keys.REQUIRE_GROUP: "G3"}))
    wait_until(lambda: bool(events(cluster, "ParkRefused")), 30, "no event tells of the refusal")
    assert "raise that limit" in events(cluster, "ParkRefused")[0]
    assert models.ask("liar").intact
    wait_until(
        lambda: condition(cluster, "HostMemory").get("status") == "False",
        10,
        "the GPUNode says nothing of the host's memory",
    )
    assert not ready(pods.get("other"))
    pods.delete(["liar"])
    pods.wait(["other"], ready, 60, "Ready")
