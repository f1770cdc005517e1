"""What a process that uses the adapters sees of a driver; `test_driver.py` starts one per scene.

A process of its own, because libraries are found by the LD_LIBRARY_PATH that it starts with.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kybernate.adapters.cuda.driver import HELPER_COMMAND, CudaHelpers
from kybernate.adapters.nvml import Nvml
from kybernate.core.doctor.health import Checkup, EventKind, GpuEvent, Readings
from kybernate.core.swap.drivermemory import read
from kybernate.errors import DeadlineError, DriverError
from kybernate.ports import ProcessState
from kybernate.types import GpuUuid, Link
from tests.simgpu import Call, Fault, Faults
from tests.simgpu.faults import DOUBLE_BIT_ECC_EVENT, RECOVERY_ACTION_EVENT

GIB = 1 << 30
MIB = 1 << 20
FAULTS = Faults(Path(os.environ["SIMGPU_DIR"]))

TARGET = """
import sys
from cuda.bindings import driver as d
def ok(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) > 1 else None
gpu, size = int(sys.argv[1]), int(sys.argv[2])
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(gpu))))))
memory = ok(d.cuMemAlloc(size))
ok(d.cuMemsetD8(memory, 7, size))
print("up", flush=True)
for line in sys.stdin:
    sample = bytearray(64)
    ok(d.cuMemcpyDtoH(sample, memory, 64))
    print("intact" if set(sample) == {7} else "lost", flush=True)
"""


class Target:
    """A process that holds memory of a GPU and can tell whether it is intact."""

    def __init__(self, gpu: int, size: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TARGET, str(gpu), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.read() == "up"

    @property
    def pid(self) -> int:
        return self.process.pid

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return self.read()


@asynccontextmanager
async def stage(*sizes: int, command: tuple[str, ...] = HELPER_COMMAND):
    """An agent's view: NVML, a helper, and a target per size on GPU 0."""
    nvml, helpers = Nvml(pci_devices=Path("/nonexistent")), CudaHelpers(command)
    targets = []
    try:
        helper = await helpers.start("seat-1")
        targets += [Target(0, size) for size in sizes]
        yield nvml, helpers, helper, targets
    finally:
        helpers.close()
        for target in targets:
            target.process.kill()
            target.process.communicate()


def raised(kind: type[Exception], function, *args) -> Exception:
    try:
        function(*args)
    except kind as error:
        return error
    raise AssertionError(f"{function} raised no {kind.__name__}")


async def refused(kind: type[Exception], awaitable) -> Exception:
    try:
        await awaitable
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


async def inventory() -> None:
    nvml = Nvml(pci_devices=Path("/nonexistent"))
    gpus = nvml.devices()
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert [gpu.numa for gpu in gpus] == [0, 0, 1, 1]
    assert {gpu.product for gpu in gpus} == {"NVIDIA H100 80GB HBM3"}
    assert {gpu.memory for gpu in gpus} == {16 * GIB}
    assert all(gpu.healthy and gpu.uuid.startswith("GPU-") for gpu in gpus)
    links = nvml.links()
    assert len(links) == 6
    expected = {(0, 1): Link.NVLINK, (2, 3): Link.PCIE_SWITCH, (0, 2): Link.SYSTEM}
    for (a, b), link in expected.items():
        assert links[frozenset((gpus[a].uuid, gpus[b].uuid))] is link
    driver, cuda = nvml.driver_versions()
    assert driver.count(".") == 2
    assert cuda == "13.0"


async def lost_gpu() -> None:
    nvml = Nvml(pci_devices=Path("/nonexistent"))
    before = nvml.devices()
    FAULTS.lose_gpu(1)
    after = nvml.devices()
    assert [gpu.healthy for gpu in after] == [True, False, True, True]
    assert [gpu.uuid for gpu in after] == [gpu.uuid for gpu in before]
    assert len(nvml.links()) == 3
    error = raised(DriverError, nvml.used, before[1].uuid)
    assert "lost" in str(error).lower(), error
    assert nvml.used(before[0].uuid) >= 0
    FAULTS.lose_gpu(1, lost=False)
    assert nvml.devices() == before
    assert nvml.used(before[1].uuid) >= 0


async def unknown_gpu() -> None:
    raised(DriverError, Nvml().used, "GPU-00000000-0000-0000-0000-000000000000")


@contextmanager
def listening(nvml: Nvml):
    """The events that NVML tells, in a list."""
    stop, told = threading.Event(), []
    thread = threading.Thread(target=nvml.watch, args=(told.append, stop))
    thread.start()
    time.sleep(0.1)
    try:
        yield told
    finally:
        stop.set()
        thread.join(5)
        assert not thread.is_alive()


def until(condition, limit: float = 5.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it didn't happen in time"
        time.sleep(0.01)


async def events() -> None:
    nvml = Nvml(pci_devices=Path("/nonexistent"))
    uuids = [gpu.uuid for gpu in nvml.devices()]
    with listening(nvml) as told:
        FAULTS.xid(1, 79)
        until(lambda: told)
        assert told.pop() == GpuEvent(uuids[1], EventKind.XID, 79)
        # A GPU that fell off the bus can't be asked for its name, and is told all the same.
        FAULTS.lose_gpu(2)
        FAULTS.xid(2, 79)
        until(lambda: told)
        assert told.pop() == GpuEvent(uuids[2], EventKind.XID, 79)
        FAULTS.event(0, DOUBLE_BIT_ECC_EVENT)
        until(lambda: told)
        assert told.pop() == GpuEvent(uuids[0], EventKind.DOUBLE_BIT_ECC)
        FAULTS.event(0, RECOVERY_ACTION_EVENT)
        until(lambda: told)
        assert told.pop().kind is EventKind.LOOK


async def events_of_the_others() -> None:
    """A GPU that hangs or is lost when events are asked for costs the others' none."""
    nvml = Nvml(pci_devices=Path("/nonexistent"))
    uuids = [gpu.uuid for gpu in nvml.devices()]
    FAULTS.nvml_hang(0)
    FAULTS.lose_gpu(1)
    with listening(nvml) as told:
        await asyncio.sleep(2.5)
        FAULTS.xid(3, 48)
        until(lambda: told)
        assert told.pop() == GpuEvent(uuids[3], EventKind.XID, 48)
        FAULTS.nvml_hang(0, hangs=False)
        FAULTS.lose_gpu(1, lost=False)
        await asyncio.sleep(3.5)
        for index in (0, 1):
            FAULTS.xid(index, 48)
            until(lambda: told)
            assert told.pop() == GpuEvent(uuids[index], EventKind.XID, 48)


def health(nvml: Nvml, gpu: GpuUuid) -> Checkup:
    """A checkup without what the GPU measures just then."""
    return replace(nvml.checkup(gpu), readings=Readings())


async def checkups() -> None:
    nvml = Nvml(pci_devices=Path("/nonexistent"))
    first, second = (gpu.uuid for gpu in nvml.devices()[:2])
    assert health(nvml, first) == health(nvml, second) == Checkup()
    assert nvml.checkup(first).readings.memory_used == 0
    FAULTS.recovery_action(0, 1)
    FAULTS.remap_failed(0)
    FAULTS.mig(0)
    FAULTS.mps(0, 1)
    assert health(nvml, first) == Checkup("", 1, remap_failed=True, mig=True, mps=True)
    FAULTS.lose_gpu(0)
    FAULTS.nvml_error(1, 999)
    assert "lost" in nvml.checkup(first).gone
    assert "Unknown Error" in nvml.checkup(second).gone


async def hung_gpu() -> None:
    """One GPU that hangs doesn't take the answers of the others, however often it is asked."""
    nvml = Nvml(deadline=0.5, pci_devices=Path("/nonexistent"))
    first, second = (gpu.uuid for gpu in nvml.devices()[:2])
    FAULTS.nvml_hang(1)
    assert "no answer" in nvml.checkup(second).gone
    begin = time.monotonic()
    for _ in range(20):
        assert "hangs" in nvml.checkup(second).gone
        raised(DeadlineError, nvml.used, second)
        assert health(nvml, first) == Checkup()
        assert nvml.used(first) == 0
    raised(DeadlineError, nvml.devices)
    raised(DeadlineError, nvml.reload)
    assert time.monotonic() - begin < 8, "each call waited for the GPU that hangs"
    FAULTS.nvml_hang(1, hangs=False)
    until(lambda: health(nvml, second) == Checkup())
    assert len(nvml.devices()) == 4


async def driver_reload() -> None:
    nvml = Nvml(pci_devices=Path("/nonexistent"))
    before = nvml.devices()
    with listening(nvml) as told:
        FAULTS.unload_driver()
        assert nvml.checkup(before[0].uuid).gone
        until(lambda: told and told[-1].gpu is None)
        raised(DriverError, nvml.reload)
        FAULTS.load_driver()
        assert health(nvml, before[0].uuid) == Checkup()
        assert nvml.devices() == before
        FAULTS.load_driver()
        assert nvml.checkup(before[0].uuid).gone
        nvml.reload()
        assert health(nvml, before[0].uuid) == Checkup()
        told.clear()
        await asyncio.sleep(1.5)
        told.clear()
        FAULTS.xid(3, 48)
        until(lambda: told)
        assert told == [GpuEvent(before[3].uuid, EventKind.XID, 48)]


async def driver_reload_renewed() -> None:
    nvml = Nvml(pci_devices=Path("/nonexistent"), renews=True)
    first = nvml.devices()[0].uuid
    FAULTS.unload_driver()
    raised(DriverError, nvml.used, first)
    raised(DriverError, nvml.used, first)
    FAULTS.load_driver()
    until(lambda: health(nvml, first) == Checkup())
    assert nvml.used(first) == 0


async def park_and_wake() -> None:
    async with stage(4 * GIB, 2 * GIB) as (nvml, _, helper, targets):
        gpu = nvml.devices()[0].uuid
        idle = nvml.used(gpu)
        assert idle >= 6 * GIB
        pids = [target.pid for target in targets]
        holders = dict(nvml.processes(gpu))
        assert set(pids) <= set(holders)
        phases = await helper.park(pids, lock_timeout=2, deadline=20)
        assert set(phases) == {"lock", "checkpoint"}
        assert nvml.used(gpu) <= idle - 6 * GIB
        assert set((await helper.states(pids, 5)).values()) == {ProcessState.CHECKPOINTED}
        phases = await helper.wake(pids, {}, deadline=20)
        assert set(phases) == {"restore", "unlock", "canary"}
        assert nvml.used(gpu) == idle
        assert [target.ask() for target in targets] == ["intact", "intact"]


def noted_in(folder: str) -> dict[int, int]:
    """Bytes by process."""
    notes = {
        int(note.name.split("-")[0]): read(note.read_text()) for note in Path(folder).iterdir()
    }
    return {
        pid: sum(end - start for start, end in note.private) for pid, note in notes.items() if note
    }


async def noted() -> None:
    """What the checkpoint takes is noted, and no more; 1024 bytes of a GPU are one here."""
    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-m", "nodeagent.offload.helper", folder)
        async with stage(8 * GIB, 64 * MIB, command=command) as (_, _, helper, targets):
            pids = [target.pid for target in targets]
            await helper.park(pids, lock_timeout=2, deadline=20)
            sizes = noted_in(folder)
            assert set(sizes) == set(pids)
            assert 7 * MIB <= sizes[pids[0]] < 12 * MIB, f"of its 8 MiB it is {sizes[pids[0]]}"
            await helper.wake(pids, {}, deadline=20)
            assert noted_in(folder) == {}
            assert [target.ask() for target in targets] == ["intact", "intact"]


async def another_gpu() -> None:
    async with stage(4 * GIB) as (nvml, _, helper, (target,)):
        first, second = (gpu.uuid for gpu in nvml.devices()[:2])
        await helper.park([target.pid], lock_timeout=2, deadline=20)
        await helper.wake([target.pid], {first: second}, deadline=20)
        assert nvml.used(second) >= 4 * GIB
        assert nvml.used(first) < 4 * GIB
        assert target.ask() == "intact"


async def bystander() -> None:
    async with stage(64 * MIB) as (_, _, helper, (target,)):
        states = await helper.states([target.pid, os.getpid(), 999_999_999], 5)
        assert states == {
            target.pid: ProcessState.RUNNING,
            os.getpid(): ProcessState.NO_CUDA,
            999_999_999: ProcessState.NO_CUDA,
        }


async def lock_timeout() -> None:
    async with stage(64 * MIB, 64 * MIB) as (_, _, helper, targets):
        pids = [target.pid for target in targets]
        FAULTS.inject(Fault.LOCK_TIMEOUT, times=1)
        error = await refused(DriverError, helper.park(pids, 0.1, 10))
        assert (error.call, error.code) == ("cuCheckpointProcessLock", 600)
        assert set((await helper.states(pids, 5)).values()) == {ProcessState.RUNNING}
        assert {target.ask() for target in targets} == {"intact"}


async def checkpoint_fails() -> None:
    async with stage(64 * MIB, 64 * MIB) as (_, _, helper, targets):
        pids = [target.pid for target in targets]
        FAULTS.inject(Fault.CHECKPOINT_FAILS, times=1)
        error = await refused(DriverError, helper.park(pids, 1, 10))
        assert (error.call, error.code) == ("cuCheckpointProcessCheckpoint", 304)
        assert set((await helper.states(pids, 5)).values()) == {ProcessState.RUNNING}
        assert {target.ask() for target in targets} == {"intact"}


async def lock_fails_otherwise() -> None:
    async with stage(64 * MIB, 64 * MIB) as (_, _, helper, targets):
        pids = [target.pid for target in targets]
        FAULTS.inject(Fault.LOCK_FAILS, times=1)
        error = await refused(DriverError, helper.park(pids, 1, 10))
        assert (error.call, error.code) == ("cuCheckpointProcessLock", 304)
        assert set((await helper.states(pids, 5)).values()) == {ProcessState.RUNNING}
        assert {target.ask() for target in targets} == {"intact"}


async def checkpoint_fails_when_it_is_done() -> None:
    async with stage(64 * MIB, 64 * MIB) as (_, _, helper, targets):
        pids = [target.pid for target in targets]
        FAULTS.inject(Fault.CHECKPOINT_LATE, times=1)
        error = await refused(DriverError, helper.park(pids, 1, 10))
        assert (error.call, error.code) == ("cuCheckpointProcessCheckpoint", 304)
        assert set((await helper.states(pids, 5)).values()) == {ProcessState.RUNNING}
        assert {target.ask() for target in targets} == {"intact"}


async def passing_states() -> None:
    async with stage(64 * MIB) as (_, _, helper, (target,)):
        for number in (4, 5):
            FAULTS.inject(Fault.PASSING, code=number, times=2)
            assert await helper.states([target.pid], 5) == {target.pid: ProcessState.RUNNING}
        FAULTS.inject(Fault.PASSING, code=4)
        assert await helper.states([target.pid], 0.4) == {target.pid: ProcessState.FAILED}
        FAULTS.clear()
        assert target.ask() == "intact"


async def thread_number() -> None:
    async with stage(64 * MIB) as (_, _, helper, (target,)):
        threads = sorted(int(name) for name in os.listdir(f"/proc/{target.pid}/task"))
        assert len(threads) > 1
        await helper.park(threads, 1, 10)
        assert await helper.states([target.pid], 5) == {target.pid: ProcessState.CHECKPOINTED}
        await helper.wake(threads, {}, 10)
        assert target.ask() == "intact"


async def one_rank_dies_on_lock() -> None:
    async with stage(64 * MIB, 64 * MIB) as (_, _, helper, targets):
        pids = [target.pid for target in targets]
        FAULTS.inject(Fault.DIES_ON_LOCK, times=1)
        with suppress(DriverError):
            await helper.park(pids, 1, 10)
        states = set((await helper.states(pids, 5)).values())
        assert ProcessState.NO_CUDA in states
        assert ProcessState.LOCKED not in states


async def killed_after_out_of_memory() -> None:
    async with stage(64 * MIB) as (nvml, _, helper, (target,)):
        gpu = nvml.devices()[0].uuid
        used = nvml.used(gpu)
        await helper.park([target.pid], 1, 10)
        FAULTS.inject(Fault.RESTORE_OOM, times=1)
        await refused(DriverError, helper.wake([target.pid], {}, 10))
        target.process.kill()
        target.process.wait(10)
        assert await helper.states([target.pid], 5) == {target.pid: ProcessState.NO_CUDA}
        assert nvml.used(gpu) < used


async def restore_without_memory() -> None:
    async with stage(64 * MIB, 64 * MIB) as (nvml, _, helper, targets):
        pids = [target.pid for target in targets]
        gpu = nvml.devices()[0].uuid
        await helper.park(pids, 1, 10)
        parked = nvml.used(gpu)
        FAULTS.inject(Fault.RESTORE_OOM, times=1)
        error = await refused(DriverError, helper.wake(pids, {}, 10))
        assert (error.call, error.code) == ("cuCheckpointProcessRestore", 2)
        assert nvml.used(gpu) == parked
        FAULTS.clear()
        error = await refused(DriverError, helper.wake(pids, {}, 10))
        assert error.code == 304


async def failed() -> None:
    async with stage(64 * MIB) as (_, _, helper, (target,)):
        FAULTS.inject(Fault.FAILED, call=Call.CHECKPOINT, times=1)
        await refused(DriverError, helper.park([target.pid], 1, 10))
        assert await helper.states([target.pid], 5) == {target.pid: ProcessState.FAILED}
        error = await refused(DriverError, helper.park([target.pid], 1, 10))
        assert "FAILED" in error.name


async def dies_on_lock() -> None:
    async with stage(64 * MIB) as (_, _, helper, (target,)):
        FAULTS.inject(Fault.DIES_ON_LOCK, times=1)
        with suppress(DriverError):
            await helper.park([target.pid], 1, 10)
        target.process.wait(10)
        assert await helper.states([target.pid], 5) == {target.pid: ProcessState.NO_CUDA}


async def hang() -> None:
    async with stage(64 * MIB) as (_, helpers, helper, (target,)):
        FAULTS.inject(Fault.HANG, call=Call.CHECKPOINT)
        begin = time.monotonic()
        await refused(DeadlineError, helper.park([target.pid], 1, 0.3))
        assert time.monotonic() - begin < 9, "it waited for longer than it was told"
        FAULTS.clear()
        again = await helpers.start("seat-1")
        state = (await again.states([target.pid], 5))[target.pid]
        assert state in (ProcessState.LOCKED, ProcessState.RUNNING), state
        await again.wake([target.pid], {}, 5)
        assert target.ask() == "intact"


async def hang_in_every_call() -> None:
    """Whatever the call: the deadline holds, and another helper brings the process back."""
    for call in (Call.LOCK, Call.CHECKPOINT, Call.RESTORE, Call.UNLOCK):
        async with stage(64 * MIB) as (_, helpers, helper, (target,)):
            parks = call in (Call.LOCK, Call.CHECKPOINT)
            if not parks:
                await helper.park([target.pid], 1, 10)
            FAULTS.inject(Fault.HANG, call=call)
            pids = [target.pid]
            attempt = helper.park(pids, 1, 0.3) if parks else helper.wake(pids, {}, 0.3)
            await refused(DeadlineError, attempt)
            FAULTS.clear()
            again = await helpers.start("seat-1")
            await again.wake(pids, {}, 5)
            assert await again.states(pids, 5) == {target.pid: ProcessState.RUNNING}
            assert target.ask() == "intact"


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]]())
