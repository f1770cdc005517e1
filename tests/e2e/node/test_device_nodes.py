"""A node whose container runtime is taken for one without CDI: GPUs come by device ID."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.cluster import Cluster, ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import TIB
from tests.kit.clients.models import Models
from tests.kit.pods import Pods, SeatPod, ready
from tests.simgpu import Faults, read_log, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

SEATS = {
    "profiles": [
        {"name": "1x", "resource": "kyb.ai/gpu-1x-seat", "groupSize": 1, "seatsPerGroup": 2},
        {"name": "2x", "resource": "kyb.ai/gpu-2x-seat", "groupSize": 2, "seatsPerGroup": 2},
    ],
    "deviceStrategy": "nodes",
}
NAMES = ("one", "two", "three", "four")


@dataclass(frozen=True, slots=True)
class PlainPod(SeatPod):
    """Brings the driver's libraries along, which a runtime without CDI doesn't mount."""

    def manifest(self) -> dict[str, Any]:
        """The pod as a user would write it."""
        manifest = super(PlainPod, self).manifest()
        (container,) = manifest["spec"]["containers"]
        container["env"].append({"name": "LD_LIBRARY_PATH", "value": "/run/simgpu/lib"})
        container["volumeMounts"] = [{"name": "simgpu", "mountPath": "/run/simgpu"}]
        manifest["spec"]["volumes"] = [{"name": "simgpu", "hostPath": {"path": "/run/simgpu"}}]
        return manifest


@pytest.fixture(scope="module")
def plain() -> Iterator[Cluster]:
    """One node with four GPUs."""
    spec = ClusterSpec(
        name="plain", nodes=("n1",), subnet="10.91.0.0/16", seats=SEATS, host_memory=4 * TIB
    )
    with running(spec, print) as up:
        yield up


def test_pods_of_four_groups_at_once_each_get_their_own_gpu(plain: Cluster) -> None:
    pods, models = Pods(plain.api()), Models(plain.proxy_url)
    for number, name in enumerate(NAMES):
        pods.create(PlainPod(name, annotations={keys.REQUIRE_GROUP: f"G{number}"}))
    found = pods.wait(NAMES, ready, 120, "Ready")
    for name in NAMES:
        answer = models.ask(name)
        assert answer.status == 200
        assert answer.intact
    log = read_log(plain.node("n1").simgpu_root)
    status = plain.api().get(f"{keys.GPU_NODES_PATH}/n1")["status"]
    uuids = {gpu["index"]: gpu["uuid"] for gpu in status["gpus"]}
    for number, name in enumerate(NAMES):
        uid = found[name]["metadata"]["uid"]
        assert {record.gpu for record in log if record.pod == uid} == {uuids[number]}
    assert not list(plain.layout.node("n1").cdi.glob("kyb-*.json"))
    assert status["deviceStrategy"] == "nodes"
    assert not violations(log)


def test_an_xid_takes_the_gpus_seats_from_allocatable_and_gives_them_back(plain: Cluster) -> None:
    def allocatable() -> int:
        node = plain.api().get("/api/v1/nodes/n1")
        return int(node["status"]["allocatable"].get(keys.seat_resource(1), "0"))

    faults = Faults(plain.node("n1").simgpu_root)
    assert allocatable() == 8
    began = time.monotonic()
    faults.recovery_action(3, 1)
    faults.xid(3, 79)
    wait_until(lambda: allocatable() == 6, 10, "the seats of GPU 3 stayed")
    down = time.monotonic() - began
    began = time.monotonic()
    faults.recovery_action(3, 0)
    wait_until(lambda: allocatable() == 8, 30, "the seats of GPU 3 didn't come back")
    up = time.monotonic() - began
    print(f"allocatable down after {down:.1f} s, up after {up:.1f} s")
    assert down < 2
    assert up < 15
