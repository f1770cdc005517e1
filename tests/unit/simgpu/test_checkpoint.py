"""Parking and waking another process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.local.simgpu.folder import compile_node
from kybernate.local.simgpu.layout import NODE_FILE
from tests.simgpu import Call, Event, Fault, holdings, parse, violations

from .conftest import DEADLINE, DESCRIPTION, GIB, MIB, DriverRefusedError, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Worker

pytestmark = [pytest.mark.slow, pytest.mark.always]

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
NAMESPACES = ("unshare", "-m", "-p", "--fork", "--mount-proc")


def park(caller: Worker, pid: int) -> None:
    caller.ask("lock", pid)
    caller.ask("cuCheckpointProcessCheckpoint", pid, None)


def wake(caller: Worker, pid: int, pairs: dict[str, str] | None = None) -> None:
    caller.ask("restore", pid, pairs or {})
    caller.ask("cuCheckpointProcessUnlock", pid, None)


def park_and_wake(caller: Worker, pid: int) -> None:
    park(caller, pid)
    wake(caller, pid)


def state(caller: Worker, pid: int) -> int:
    return int(caller.ask("cuCheckpointProcessGetState", pid))


def met(node: Node, fault: Fault) -> None:
    """Return once a call has met the fault."""
    until = time.monotonic() + DEADLINE
    while node.faults.uses_left(fault):
        assert time.monotonic() < until, "no call meets it"
        time.sleep(0.001)


def used(watcher: Worker, gpu: int = 0) -> int:
    return int(watcher.ask("nvml", "nvmlDeviceGetMemoryInfo", {"gpu": gpu})["used"])


def test_states_in_turn(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    assert state(caller, target.pid) == RUNNING
    caller.ask("lock", target.pid)
    assert state(caller, target.pid) == LOCKED
    caller.ask("cuCheckpointProcessCheckpoint", target.pid, None)
    assert state(caller, target.pid) == CHECKPOINTED
    caller.ask("restore", target.pid)
    assert state(caller, target.pid) == LOCKED
    caller.ask("cuCheckpointProcessUnlock", target.pid, None)
    assert state(caller, target.pid) == RUNNING


@pytest.mark.parametrize(
    ("before", "verb"),
    [
        ([], "checkpoint"),
        ([], "restore"),
        ([], "unlock"),
        (["lock"], "lock"),
        (["lock"], "restore"),
        (["lock", "checkpoint"], "lock"),
        (["lock", "checkpoint"], "checkpoint"),
        (["lock", "checkpoint"], "unlock"),
    ],
)
def test_calls_in_the_wrong_state(node: Node, before: list[str], verb: str) -> None:
    target, caller = node.worker(), node.watcher()
    calls = {
        "lock": ("lock", target.pid),
        "checkpoint": ("cuCheckpointProcessCheckpoint", target.pid, None),
        "restore": ("restore", target.pid),
        "unlock": ("cuCheckpointProcessUnlock", target.pid, None),
    }
    for done in before:
        caller.ask(*calls[done])
    was = state(caller, target.pid)
    assert caller.refused(*calls[verb]) == "CUDA_ERROR_ILLEGAL_STATE"
    assert state(caller, target.pid) == was


def test_content_survives_and_the_budget_comes_back(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    address = target.alloc(10 * GIB)
    written = target.ask("write", address, 10 * MIB, 1)
    other = node.worker()
    for _ in range(3):
        park(caller, target.pid)
        assert used(caller) == 0
        spoiled = other.alloc(16 * GIB)
        other.ask("write", spoiled, 16 * MIB, 2)
        other.ask("cuMemFree", spoiled)
        wake(caller, target.pid)
        assert target.ask("checksum", address, 10 * MIB) == written
        assert used(caller) == 10 * GIB
    assert violations(node.log()) == []


def test_a_parked_process_holds_nothing_of_the_device(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    target.alloc(4 * GIB)
    assert target.device_files(node.root) != []
    park(caller, target.pid)
    assert target.device_files(node.root) == []
    wake(caller, target.pid)
    assert target.device_files(node.root) != []


def test_the_private_copy_is_the_targets_own(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    address = target.alloc(16 * GIB)
    target.ask("write", address, 16 * MIB, 1)
    before = _anonymous(target.pid)
    park(caller, target.pid)
    assert _anonymous(target.pid) - before >= 16 * MIB
    wake(caller, target.pid)
    assert _anonymous(target.pid) - before < 4 * MIB


def _anonymous(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("parked", [False, True])
def test_calls_wait_while_other_threads_run(node: Node, parked: bool) -> None:
    target, caller = node.worker(), node.watcher()
    caller.ask("lock", target.pid)
    if parked:
        caller.ask("cuCheckpointProcessCheckpoint", target.pid, None)
    target.ask("start", "cuMemGetInfo")
    for _ in range(20):
        assert target.ask("finished") == "still running"
        time.sleep(0.002)
    if parked:
        caller.ask("restore", target.pid)
    caller.ask("cuCheckpointProcessUnlock", target.pid, None)
    assert _until_finished(target) == [16 * GIB, 16 * GIB]


def _until_finished(target: Worker) -> object:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        answer: object = target.ask("finished")
        if answer != "still running":
            return answer
        time.sleep(0.002)
    raise AssertionError("the call never ended")


def test_across_pid_and_mount_namespaces(node: Node) -> None:
    target, caller = node.worker(prefix=NAMESPACES), node.watcher()
    assert target.inner_pid == 1
    address = target.alloc(GIB)
    written = target.ask("write", address, MIB, 1)
    tid = caller.ask("cuCheckpointProcessGetRestoreThreadId", target.pid)
    assert Path(f"/proc/{target.pid}/task/{tid}/comm").read_text() == "cuda-restore\n"
    park(caller, target.pid)
    wake(caller, target.pid)
    assert target.ask("checksum", address, MIB) == written


def test_a_thread_number_stands_for_its_process(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    tid = caller.ask("cuCheckpointProcessGetRestoreThreadId", target.pid)
    park(caller, tid)
    assert state(caller, target.pid) == CHECKPOINTED


def test_processes_without_cuda(node: Node) -> None:
    caller, idle = node.watcher(), node.bare()
    get_state = "cuCheckpointProcessGetState"
    assert caller.refused(get_state, idle.pid) == "CUDA_ERROR_NOT_INITIALIZED"
    assert caller.refused(get_state, os.getpid()) == "CUDA_ERROR_NOT_INITIALIZED"
    assert caller.refused(get_state, 1 << 22) == "CUDA_ERROR_INVALID_VALUE"
    assert caller.refused(get_state, 0) == "CUDA_ERROR_INVALID_VALUE"
    assert idle.refused(get_state, caller.pid) == "CUDA_ERROR_NOT_INITIALIZED"


def test_a_process_number_that_is_used_again(node: Node) -> None:
    """What was remembered of a process must not be taken for its successor under the number."""
    caller, target = node.watcher(), node.worker()
    park(caller, target.pid)
    target.kill()
    get_state = "cuCheckpointProcessGetState"
    assert caller.refused(get_state, target.pid) == "CUDA_ERROR_INVALID_VALUE"


def test_lock_waits_no_longer_than_its_timeout(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    node.faults.inject(Fault.LOCK_TIMEOUT)
    begin = time.monotonic()
    assert caller.refused("lock", target.pid, 100) == "CUDA_ERROR_NOT_READY"
    assert 0.1 <= time.monotonic() - begin < 5
    assert state(caller, target.pid) == RUNNING
    node.faults.clear()
    caller.ask("lock", target.pid, 100)


def test_lock_of_a_stopped_process(node: Node) -> None:
    """A call that came too late must not be carried out when the process runs again."""
    target, caller = node.worker(), node.watcher()
    os.kill(target.pid, 19)
    assert caller.refused("lock", target.pid, 50) == "CUDA_ERROR_NOT_READY"
    os.kill(target.pid, 18)
    assert target.ask("cuMemGetInfo")
    assert state(caller, target.pid) == RUNNING
    caller.ask("lock", target.pid, 1000)


def test_a_killed_caller_blocks_nobody(node: Node) -> None:
    target, caller, other = node.worker(), node.watcher(), node.watcher()
    os.kill(target.pid, 19)
    caller.send("lock", target.pid)
    assert caller.quiet(0.1)
    caller.kill()
    os.kill(target.pid, 18)
    end = time.monotonic() + DEADLINE
    while state(other, target.pid) != LOCKED and time.monotonic() < end:
        time.sleep(0.002)
    other.ask("cuCheckpointProcessUnlock", target.pid, None)
    park(other, target.pid)


def test_restore_onto_another_gpu(node: Node) -> None:
    target, caller = node.worker(gpus=[0, 1]), node.watcher()
    zero, one = (node.spec.gpus[index].uuid for index in (0, 1))
    address = target.alloc(4 * GIB)
    written = target.ask("write", address, 4 * MIB, 1)
    park(caller, target.pid)
    wake(caller, target.pid, {zero: one, one: zero})
    assert (used(caller, 0), used(caller, 1)) == (0, 4 * GIB)
    assert target.ask("checksum", address, 4 * MIB) == written
    assert target.ask("cuDeviceGetUuid", 0) == one[4:].replace("-", "")


@pytest.mark.parametrize(
    "pairs",
    [{0: 1}, {0: 2, 1: 0}, {0: 1, 1: 1}, {0: 0, 1: 1, 7: 0}],
    ids=["not all", "not given", "twice", "unknown"],
)
def test_maps_that_lead_nowhere(node: Node, pairs: dict[int, int]) -> None:
    target, caller = node.worker(gpus=[0, 1], CUDA_VISIBLE_DEVICES="0"), node.watcher()
    park(caller, target.pid)
    unknown = "GPU-00000000-0000-0000-0000-000000000000"
    uuids = {gpu.index: gpu.uuid for gpu in node.spec.gpus} | {7: unknown}
    named = {uuids[old]: uuids[new] for old, new in pairs.items()}
    assert caller.refused("restore", target.pid, named) == "CUDA_ERROR_INVALID_VALUE"
    wake(caller, target.pid)


def test_restore_onto_another_nodes_gpu(node: Node) -> None:
    """The process is brought to another node: for it, that is what the node's folder is then."""
    target, caller = node.worker(gpus=[0]), node.watcher()
    address = target.alloc(4 * GIB)
    written = target.ask("write", address, 4 * MIB, 1)
    park(caller, target.pid)
    there = parse({**DESCRIPTION, "name": "n2"})
    (node.root / NODE_FILE).unlink()
    (node.root / NODE_FILE).write_bytes(compile_node(there))
    here, other = node.spec.gpus[0].uuid, there.gpus[0].uuid
    assert caller.refused("restore", target.pid) == "CUDA_ERROR_INVALID_VALUE"
    assert caller.refused("restore", target.pid, {other: here}) == "CUDA_ERROR_INVALID_VALUE"
    wake(caller, target.pid, {here: other})
    assert target.ask("checksum", address, 4 * MIB) == written
    assert target.ask("cuDeviceGetUuid", 0) == other[4:].replace("-", "")
    park(caller, target.pid)
    wake(caller, target.pid)
    assert target.ask("checksum", address, 4 * MIB) == written


def test_no_restore_onto_another_product(make_node: Callable[..., Node]) -> None:
    gpus = [{"product": name, "memory": "1GiB"} for name in ("big", "small")]
    node = make_node(gpus=gpus, links=[])
    target, caller = node.worker(), node.watcher()
    park(caller, target.pid)
    big, small = (gpu.uuid for gpu in node.spec.gpus)
    swapped = {big: small, small: big}
    assert caller.refused("restore", target.pid, swapped) == "CUDA_ERROR_INVALID_VALUE"


def _restore_into_a_full_gpu(node: Node) -> tuple[Worker, Worker, Worker]:
    """A process on two GPUs whose restore finds the second one full."""
    target, other, caller = node.worker(), node.worker(1), node.watcher()
    target.alloc(8 * GIB)
    target.ask("context", 1)
    target.alloc(8 * GIB)
    park(caller, target.pid)
    other.alloc(9 * GIB)
    assert caller.refused("restore", target.pid) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert state(caller, target.pid) == CHECKPOINTED
    assert (used(caller, 0), used(caller, 1)) == (0, 9 * GIB)
    assert target.device_files(node.root) == []
    return target, other, caller


def test_a_restore_without_memory_is_the_end(node: Node) -> None:
    target, other, caller = _restore_into_a_full_gpu(node)
    other.kill()
    assert caller.refused("restore", target.pid) == "CUDA_ERROR_OPERATING_SYSTEM"
    unlock = ("cuCheckpointProcessUnlock", target.pid, None)
    assert caller.refused(*unlock) == "CUDA_ERROR_ILLEGAL_STATE"


def test_a_restore_without_memory_can_be_tried_again(make_node: Callable[..., Node]) -> None:
    node = make_node(restore_oom="retry")
    target, other, caller = _restore_into_a_full_gpu(node)
    other.kill()
    wake(caller, target.pid)
    assert target.ask("cuMemGetInfo") == [8 * GIB, 16 * GIB]


def test_without_copying_content_stays_and_budgets_move(make_node: Callable[..., Node]) -> None:
    node = make_node(zero_cost=True)
    target, caller = node.worker(), node.watcher()
    address = target.alloc(16 * GIB)
    written = target.ask("write", address, 16 * MIB, 1)
    park(caller, target.pid)
    assert used(caller) == 0
    other = node.worker()
    other.ask("cuMemFree", other.alloc(16 * GIB))
    wake(caller, target.pid)
    assert used(caller) == 16 * GIB
    assert target.ask("checksum", address, 16 * MIB) == written


@pytest.mark.parametrize("call", [Call.LOCK, Call.CHECKPOINT, Call.RESTORE, Call.UNLOCK])
def test_failed_is_for_good(node: Node, call: Call) -> None:
    target, caller = node.worker(), node.watcher()
    node.faults.inject(Fault.FAILED, call=call, times=1)
    with pytest.raises(DriverRefusedError, match="CUDA_ERROR_UNKNOWN"):
        park_and_wake(caller, target.pid)
    assert state(caller, target.pid) == FAILED
    assert caller.refused("lock", target.pid) == "CUDA_ERROR_ILLEGAL_STATE"


def test_a_failing_checkpoint_changes_nothing(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    address = target.alloc(GIB)
    written = target.ask("write", address, MIB, 1)
    node.faults.inject(Fault.CHECKPOINT_FAILS, times=1)
    caller.ask("lock", target.pid)
    checkpoint = ("cuCheckpointProcessCheckpoint", target.pid, None)
    assert caller.refused(*checkpoint) == "CUDA_ERROR_OPERATING_SYSTEM"
    assert state(caller, target.pid) == LOCKED
    caller.ask("cuCheckpointProcessUnlock", target.pid, None)
    assert target.ask("checksum", address, MIB) == written


def test_injected_out_of_memory_is_the_end(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    park(caller, target.pid)
    node.faults.inject(Fault.RESTORE_OOM, times=1)
    assert caller.refused("restore", target.pid) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert caller.refused("restore", target.pid) == "CUDA_ERROR_OPERATING_SYSTEM"


def test_dies_on_lock(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    target.alloc(GIB)
    node.faults.inject(Fault.DIES_ON_LOCK)
    assert caller.refused("lock", target.pid) == "CUDA_ERROR_OPERATING_SYSTEM"
    assert target.wait() == -11
    assert used(caller) == 0


@pytest.mark.parametrize("call", list(Call)[1:])
def test_a_hanging_call_holds_up_its_caller_only(node: Node, call: Call) -> None:
    target, caller, other = node.worker(), node.watcher(), node.watcher()
    pid = target.pid
    before = {Call.CHECKPOINT: 1, Call.RESTORE: 2, Call.UNLOCK: 1}.get(call, 0)
    for verb in (("lock", pid), ("cuCheckpointProcessCheckpoint", pid, None))[:before]:
        caller.ask(*verb)
    node.faults.inject(Fault.HANG, call=call, times=1)
    caller.send(
        *{
            Call.GET_STATE: ("cuCheckpointProcessGetState", pid),
            Call.LOCK: ("lock", pid),
            Call.CHECKPOINT: ("cuCheckpointProcessCheckpoint", pid, None),
            Call.RESTORE: ("restore", pid),
            Call.UNLOCK: ("cuCheckpointProcessUnlock", pid, None),
        }[call]
    )
    met(node, Fault.HANG)
    assert caller.quiet(0.05)
    assert state(other, pid) == before
    node.faults.clear(Fault.HANG)
    assert caller.read() == {"error": "CUDA_ERROR_UNKNOWN"}
    assert state(other, pid) == before


def test_a_held_call_is_made_once_the_fault_is_cleared(node: Node) -> None:
    target, caller, other = node.worker(), node.watcher(), node.watcher()
    node.faults.inject(Fault.HOLD, call=Call.LOCK, times=1)
    caller.send("lock", target.pid)
    met(node, Fault.HOLD)
    assert caller.quiet(0.05)
    assert state(other, target.pid) == 0
    node.faults.clear(Fault.HOLD)
    assert caller.read() is None
    assert state(other, target.pid) == 1


def test_faults_can_be_pinned_to_a_pod(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    node.faults.inject(Fault.LOCK_TIMEOUT, pod="0d1a6a52-2f4e-4f0e-9f39-5f2f6a3a1f10")
    caller.ask("lock", target.pid, 100)


def test_a_parked_process_is_not_listed_and_can_be_killed(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    target.alloc(GIB)
    processes = ("nvml", "nvmlDeviceGetComputeRunningProcesses", {"gpu": 0})
    assert [entry["pid"] for entry in caller.ask(*processes)] == [target.pid]
    park(caller, target.pid)
    assert caller.ask(*processes) == []
    assert target.kill() == -9


def test_a_call_in_progress_is_waited_for(node: Node) -> None:
    """Lock comes between calls, never into one: a long copy ends first."""
    target, caller = node.worker(), node.watcher()
    address = target.alloc(16 * GIB)
    for seed in range(3):
        target.ask("start", "write", address, 16 * MIB, seed)
        park(caller, target.pid)
        wake(caller, target.pid)
        assert _until_finished(target) == target.ask("checksum", address, 16 * MIB)


def test_the_log_follows_the_bytes(node: Node) -> None:
    target, caller = node.worker(), node.watcher()
    target.alloc(GIB)
    target.alloc(2 * GIB)
    park(caller, target.pid)
    wake(caller, target.pid)
    events = [(record.event, record.bytes // GIB, record.held // GIB) for record in node.log()]
    assert events == [
        (Event.OPEN, 0, 0),
        (Event.ACQUIRE, 1, 1),
        (Event.ACQUIRE, 2, 3),
        (Event.RELEASE, 3, 0),
        (Event.CLOSE, 0, 0),
        (Event.OPEN, 0, 0),
        (Event.ACQUIRE, 3, 3),
    ]
    (holder,) = holdings(node.log())[node.spec.gpus[0].uuid].items()
    assert holder[1] == 3 * GIB


def test_two_callers_at_once(node: Node) -> None:
    """Of two that park the same process one wins each step; nothing is done twice."""
    target, callers = node.worker(), [node.watcher(), node.watcher()]
    target.alloc(GIB)
    results: list[str] = []

    def call(caller: Worker) -> None:
        try:
            caller.ask("lock", target.pid)
            results.append("locked")
        except DriverRefusedError as error:
            results.append(str(error))

    threads = [threading.Thread(target=call, args=(caller,)) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(results) == ["CUDA_ERROR_ILLEGAL_STATE", "locked"]


def test_an_empty_process_is_parked_and_woken_in_under_a_millisecond(node: Node) -> None:
    script = (
        "import sys, time, statistics\n"
        "from cuda.bindings import driver as d\n"
        "d.cuInit(0)\n"
        "pid, took = int(sys.argv[1]), []\n"
        "for _ in range(200):\n"
        "    begin = time.perf_counter()\n"
        "    d.cuCheckpointProcessLock(pid, None)\n"
        "    d.cuCheckpointProcessCheckpoint(pid, None)\n"
        "    d.cuCheckpointProcessRestore(pid, None)\n"
        "    d.cuCheckpointProcessUnlock(pid, None)\n"
        "    took.append(time.perf_counter() - begin)\n"
        "print(min(took))\n"
    )
    target = node.worker()
    output = subprocess.run(
        [sys.executable, "-c", script, str(target.pid)],
        env=node.environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    ).stdout
    # The minimum, since other work on the machine only ever adds.
    assert float(output) < 0.001
