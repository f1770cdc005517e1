"""Inventory, memory, processes, topology and events, as the real nvidia-ml-py reads them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import GIB, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Worker

NAMESPACES = ("unshare", "-m", "-p", "--fork", "--mount-proc")
DOUBLE_BIT_ECC_EVENT = 2
XID_FALLEN_OFF_THE_BUS = 79


def nvml(worker: Worker, name: str, *arguments: Any) -> Any:
    return worker.ask("nvml", name, *arguments)


def processes(worker: Worker, gpu: int = 0) -> dict[int, int]:
    listed = nvml(worker, "nvmlDeviceGetComputeRunningProcesses", {"gpu": gpu})
    return {entry["pid"]: entry["usedGpuMemory"] for entry in listed}


def test_inventory(node: Node) -> None:
    watcher = node.watcher()
    assert nvml(watcher, "nvmlDeviceGetCount") == 4
    for gpu in node.spec.gpus:
        handle = {"gpu": gpu.index}
        assert nvml(watcher, "nvmlDeviceGetUUID", handle) == gpu.uuid
        assert nvml(watcher, "nvmlDeviceGetName", handle) == gpu.product
        assert nvml(watcher, "nvmlDeviceGetIndex", handle) == gpu.index
        assert nvml(watcher, "nvmlDeviceGetMinorNumber", handle) == gpu.minor
        assert nvml(watcher, "nvmlDeviceGetNumaNodeId", handle) == gpu.numa
        assert nvml(watcher, "nvmlDeviceGetPciInfo", handle)["busId"] == gpu.bus_id
        assert nvml(watcher, "nvmlDeviceGetMigMode", handle) == [0, 0]
        assert nvml(watcher, "nvmlDeviceGetPersistenceMode", handle) == 1
        assert nvml(watcher, "nvmlDeviceGetUtilizationRates", handle) == {"gpu": 0, "memory": 0}
        assert nvml(watcher, "nvmlDeviceGetCudaComputeCapability", handle) == [9, 0]
    assert nvml(watcher, "nvmlSystemGetDriverVersion") == node.spec.driver_version
    assert nvml(watcher, "nvmlSystemGetCudaDriverVersion_v2") == 13000
    assert nvml(watcher, "nvmlSystemGetNVMLVersion") == f"13.{node.spec.driver_version}"


def test_handles_by_uuid_and_bus(node: Node) -> None:
    watcher = node.watcher()
    gpu = node.spec.gpus[2]
    by_index = nvml(watcher, "nvmlDeviceGetHandleByIndex", 2)
    assert watcher.ask("by_name", "nvmlDeviceGetHandleByUUID", gpu.uuid) == by_index
    assert watcher.ask("by_name", "nvmlDeviceGetHandleByPciBusId", gpu.bus_id) == by_index
    missing = watcher.refused("by_name", "nvmlDeviceGetHandleByUUID", "GPU-0")
    assert missing == "NVMLError_NotFound"
    assert watcher.refused("nvml", "nvmlDeviceGetHandleByIndex", 4) == "NVMLError_InvalidArgument"


def test_only_what_was_given(node: Node) -> None:
    worker = node.bare(gpus=[3])
    nvml(worker, "nvmlInit")
    assert nvml(worker, "nvmlDeviceGetCount") == 1
    assert nvml(worker, "nvmlDeviceGetUUID", {"gpu": 0}) == node.spec.gpus[3].uuid
    assert nvml(worker, "nvmlDeviceGetIndex", {"gpu": 0}) == 0


def test_init_counts_its_users(node: Node) -> None:
    worker = node.bare()
    assert worker.refused("nvml", "nvmlDeviceGetCount") == "NVMLError_Uninitialized"
    nvml(worker, "nvmlInit")
    nvml(worker, "nvmlInit")
    nvml(worker, "nvmlShutdown")
    assert nvml(worker, "nvmlDeviceGetCount") == 4
    nvml(worker, "nvmlShutdown")
    assert worker.refused("nvml", "nvmlDeviceGetCount") == "NVMLError_Uninitialized"


def test_memory_by_both_versions(node: Node) -> None:
    worker, watcher = node.worker(), node.watcher()
    worker.alloc(3 * GIB)
    expected = {"total": 16 * GIB, "free": 13 * GIB, "used": 3 * GIB}
    assert nvml(watcher, "nvmlDeviceGetMemoryInfo", {"gpu": 0}) == expected
    second = watcher.ask("memory_v2", 0)
    assert {name: second[name] for name in expected} == expected


def test_a_gpu_whose_memory_somebody_holds_is_busy(node: Node) -> None:
    worker, watcher = node.worker(), node.watcher()

    def told() -> tuple[int, int, int]:
        busy = nvml(watcher, "nvmlDeviceGetUtilizationRates", {"gpu": 0})["gpu"]
        power = nvml(watcher, "nvmlDeviceGetPowerUsage", {"gpu": 0})
        return busy, power, nvml(watcher, "nvmlDeviceGetTemperature", {"gpu": 0}, 0)

    assert told() == (0, 70_000, 35)
    worker.alloc(GIB)
    assert told() == (90, 400_000, 65)
    worker.kill()
    assert told() == (0, 70_000, 35)


def test_all_processes_of_a_gpu_are_listed(node: Node) -> None:
    watcher = node.watcher()
    workers = [node.worker() for _ in range(3)]
    for number, worker in enumerate(workers):
        if number:
            worker.alloc(number * GIB)
    expected = {worker.pid: number * GIB for number, worker in enumerate(workers)}
    assert processes(watcher) == expected
    assert processes(watcher, 1) == {}
    workers[1].kill()
    del expected[workers[1].pid]
    assert processes(watcher) == expected


def test_process_numbers_are_those_of_the_callers_namespace(node: Node) -> None:
    inside = node.worker(prefix=NAMESPACES)
    outside, watcher = node.worker(), node.watcher()
    inside.alloc(GIB)
    assert set(processes(watcher)) == {inside.pid, outside.pid}
    nvml(inside, "nvmlInit")
    assert processes(inside) == {1: GIB}
    # What it can't see still uses memory.
    outside.alloc(GIB)
    assert nvml(inside, "nvmlDeviceGetMemoryInfo", {"gpu": 0})["used"] == 2 * GIB


def test_nvml_beside_cuda_loses_no_lock(node: Node) -> None:
    """Opening and closing NVML in a process must not end its hold on its memory."""
    worker, watcher = node.worker(), node.watcher()
    worker.alloc(GIB)
    for _ in range(2):
        nvml(worker, "nvmlInit")
        assert processes(worker) == {worker.pid: GIB}
        nvml(worker, "nvmlShutdown")
        assert processes(watcher) == {worker.pid: GIB}
    # What NVML left open is closed with the rest when the process is parked.
    watcher.ask("lock", worker.pid)
    watcher.ask("cuCheckpointProcessCheckpoint", worker.pid, None)
    assert worker.device_files(node.root) == []
    watcher.ask("restore", worker.pid)
    watcher.ask("cuCheckpointProcessUnlock", worker.pid, None)
    nvml(worker, "nvmlInit")
    assert processes(worker) == {worker.pid: GIB}


def test_topology(node: Node) -> None:
    watcher = node.watcher()

    def ancestor(a: int, b: int) -> int:
        return int(nvml(watcher, "nvmlDeviceGetTopologyCommonAncestor", {"gpu": a}, {"gpu": b}))

    assert [ancestor(0, b) for b in range(4)] == [0, 40, 50, 50]
    assert ancestor(2, 3) == 10
    nearest = nvml(watcher, "nvmlDeviceGetTopologyNearestGpus", {"gpu": 2}, 10)
    assert len(nearest) == 1


def test_nvlink(node: Node) -> None:
    watcher = node.watcher()
    state = "nvmlDeviceGetNvLinkState"
    active = [nvml(watcher, state, {"gpu": 0}, link) for link in range(18)]
    assert active == [1] * 4 + [0] * 14
    remote = nvml(watcher, "nvmlDeviceGetNvLinkRemotePciInfo", {"gpu": 0}, 3)
    assert remote["busId"] == node.spec.gpus[1].bus_id
    unlinked = watcher.refused("nvml", "nvmlDeviceGetNvLinkRemotePciInfo", {"gpu": 0}, 4)
    assert unlinked == "NVMLError_InvalidArgument"
    assert watcher.refused("nvml", state, {"gpu": 2}, 0) == "NVMLError_NotSupported"
    assert watcher.ask("field", 91) == 4
    assert watcher.ask("field", 230) == 0


@pytest.mark.parametrize(
    ("pair", "read", "nvlink"), [((0, 1), 0, 0), ((2, 3), 0, 5), ((0, 2), 1, 5)]
)
def test_peers(node: Node, pair: tuple[int, int], read: int, nvlink: int) -> None:
    watcher = node.watcher()
    handles = [{"gpu": gpu} for gpu in pair]
    assert nvml(watcher, "nvmlDeviceGetP2PStatus", *handles, 0) == read
    assert nvml(watcher, "nvmlDeviceGetP2PStatus", *handles, 2) == nvlink


def test_xids_reach_every_set_of_events(node: Node) -> None:
    watchers = [node.watcher(), node.watcher()]
    node.faults.xid(1, 13)
    for watcher in watchers:
        watcher.send("xids", 10000)
        assert watcher.read() == "registered"
    node.faults.xid(2, XID_FALLEN_OFF_THE_BUS)
    for watcher in watchers:
        assert watcher.read() == [[2, XID_FALLEN_OFF_THE_BUS]]
    watchers[0].send("xids", 20)
    assert watchers[0].read() == "registered"
    assert watchers[0].read() == {"error": "NVMLError_Timeout"}


def test_a_gpu_is_lost_and_comes_back(node: Node) -> None:
    watcher = node.watcher()
    node.faults.lose_gpu(1)
    assert nvml(watcher, "nvmlDeviceGetCount") == 4
    lost = watcher.refused("nvml", "nvmlDeviceGetMemoryInfo", {"gpu": 1})
    assert lost == "NVMLError_GpuIsLost"
    assert nvml(watcher, "nvmlDeviceGetUUID", {"gpu": 0}) == node.spec.gpus[0].uuid
    node.faults.lose_gpu(1, lost=False)
    assert nvml(watcher, "nvmlDeviceGetUUID", {"gpu": 1}) == node.spec.gpus[1].uuid


def test_foreign_memory_shows_without_a_process(node: Node) -> None:
    watcher = node.watcher()
    node.faults.foreign_memory(0, 5 * GIB)
    assert nvml(watcher, "nvmlDeviceGetMemoryInfo", {"gpu": 0})["used"] == 5 * GIB
    assert processes(watcher) == {}


def test_the_tool_is_a_foreign_process(node: Node) -> None:
    watcher = node.watcher()
    tool = subprocess.Popen(
        [node.root / "lib" / "simgpu", "hold", "1", str(2 * GIB)],
        env=node.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with tool:
        assert tool.stdout is not None
        assert tool.stdout.readline() == "held\n"
        assert processes(watcher, 1) == {tool.pid: 2 * GIB}
        tool.kill()
    assert processes(watcher, 1) == {}


def test_numa_is_optional(make_node: Callable[..., Node]) -> None:
    node = make_node(gpus=[{"product": "plain", "memory": "1GiB"}], links=[])
    watcher = node.watcher()
    refused = watcher.refused("nvml", "nvmlDeviceGetNumaNodeId", {"gpu": 0})
    assert refused == "NVMLError_NotSupported"


def test_the_log_names_the_pod(node: Node) -> None:
    """A process in a cgroup as the kubelet names it: the log shows the pod's UID."""
    uid = "0d1a6a52-2f4e-4f0e-9f39-5f2f6a3a1f10"
    parent = Path("/sys/fs/cgroup/freezer")
    if not os.access(parent, os.W_OK) or not parent.is_dir():
        pytest.skip("needs the cgroup v1 freezer, to stand in for a pod's cgroup")
    pod = parent / f"simgpu-test-{os.getpid()}"
    group = pod / f"pod{uid}"
    group.mkdir(parents=True)
    try:
        worker = node.bare()
        (group / "cgroup.procs").write_text(str(worker.pid))
        worker.ask("cuInit", 0)
        worker.ask("context", 0)
        worker.alloc(GIB)
        assert {record.pod for record in node.log()} == {uid}
        worker.kill()
    finally:
        group.rmdir()
        pod.rmdir()


def test_other_events_reach_a_set_that_wants_them(node: Node) -> None:
    watcher = node.watcher()
    watcher.send("xids", 10000)
    assert watcher.read() == "registered"
    node.faults.event(1, DOUBLE_BIT_ECC_EVENT)
    node.faults.xid(1, 48)
    assert watcher.read() == [[1, 48]]


def test_one_gpu_answers_with_an_error_or_not_at_all(node: Node) -> None:
    watcher = node.watcher()
    node.faults.nvml_error(1, 999)
    refused = watcher.refused("nvml", "nvmlDeviceGetMemoryInfo", {"gpu": 1})
    assert refused == "NVMLError_Unknown"
    node.faults.nvml_error(1, 0)
    node.faults.nvml_hang(1)
    assert nvml(watcher, "nvmlDeviceGetUUID", {"gpu": 0}) == node.spec.gpus[0].uuid
    watcher.send("nvml", "nvmlDeviceGetMemoryInfo", {"gpu": 1})
    assert watcher.quiet(0.2)
    node.faults.nvml_hang(1, hangs=False)
    assert watcher.read()["total"] == node.spec.gpus[1].memory


def test_what_the_driver_says_of_a_gpu(node: Node) -> None:
    watcher = node.watcher()
    for change in (node.faults.recovery_action, node.faults.mps):
        change(0, 2)
    node.faults.remap_failed(0)
    node.faults.mig(0)
    assert watcher.ask("field", 230) == 2
    assert watcher.ask("field", 145) == 1
    assert nvml(watcher, "nvmlDeviceGetMigMode", {"gpu": 0}) == [1, 1]
    mps = nvml(watcher, "nvmlDeviceGetMPSComputeRunningProcesses_v3", {"gpu": 0})
    assert len(mps) == 2


def test_a_driver_reload_ends_what_was_begun_before(node: Node) -> None:
    worker = node.bare()
    nvml(worker, "nvmlInit")
    node.faults.unload_driver()
    assert worker.refused("nvml", "nvmlDeviceGetCount") == "NVMLError_Unknown"
    nvml(worker, "nvmlShutdown")
    assert worker.refused("nvml", "nvmlInit") == "NVMLError_DriverNotLoaded"
    node.faults.load_driver()
    nvml(worker, "nvmlInit")
    assert nvml(worker, "nvmlDeviceGetCount") == 4
