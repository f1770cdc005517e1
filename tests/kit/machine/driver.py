"""NVML, and the helpers that make the driver's checkpoint calls."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kybernate.errors import DeadlineError, DriverError
from kybernate.ports import ProcessState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kybernate.ports import Phases
    from kybernate.types import GpuUuid, PodUid
    from tests.kit.machine.processes import FakeProcess
    from tests.kit.machine.world import Machine

_LOCK, _CHECKPOINT = "cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint"
_RESTORE, _GET_STATE = "cuCheckpointProcessRestore", "cuCheckpointProcessGetState"


class FakeGpus:
    """Implements `ports.Gpus`. Faults: nvml, nvml-list, and nvml-unsure when a GPU has no
    process; a GPU in the machine's `lost` answers nothing."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def used(self, gpu: GpuUuid) -> int:
        """Sum of what pods hold."""
        if gpu in self._machine.lost or self._machine.fault("nvml"):
            raise DriverError("nvmlDeviceGetMemoryInfo", 15, "GPU_IS_LOST")
        return sum(self._machine.held(gpu).values())

    def processes(self, gpu: GpuUuid) -> tuple[tuple[int, int | None], ...]:
        """Processes that hold memory."""
        if gpu in self._machine.lost or self._machine.fault("nvml-list"):
            raise DriverError("nvmlDeviceGetComputeRunningProcesses", 15, "GPU_IS_LOST")
        procs = self._machine.procs.values()
        shown = tuple(
            (p.pid, p.memory[gpu])
            for p in procs
            if p.alive and gpu in p.memory and p.cuda is not ProcessState.CHECKPOINTED
        )
        if not shown and self._machine.fault("nvml-unsure"):
            raise DriverError("nvmlDeviceGetComputeRunningProcesses", 999, "UNKNOWN")
        return shown

    def driver_versions(self) -> tuple[str, str]:
        """Fixed."""
        return "580.95.05", "13.0"


class FakeHelper:
    """Implements `ports.DriverHelper`: one call at a time, dead after one that did not end.

    Once it is killed its call, if it is at one, ends without an answer at its next step. Faults of
    park: helper-dies, helper-dies-midway (all are locked then), lock-timeout,
    lock-sticks (an unlock after it fails), lock-kills (a process dies of it), park-hangs,
    checkpoint-refused (taken back), checkpoint-fails (FAILED).
    Of wake: helper-dies, wake-hangs, restore-fails (out of memory, for good), remap-refused (it
    stays as it was). Of states: states-hang.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._busy = False
        self.killed = False

    async def park(self, pids: Sequence[int], lock_timeout: float, deadline: float) -> Phases:
        """Lock all, then checkpoint all."""
        with self._call():
            targets = self._present(pids)
            if any(process.handle in self._machine.frozen for process in targets):
                raise DeadlineError("the processes are frozen")
            await self._lock(targets)
            await self._checkpoint(targets, deadline)
        return {"lock": self._machine.step(), "checkpoint": self._machine.step()}

    async def _lock(self, targets: list[FakeProcess]) -> None:
        fault = self._machine.fault
        sticks = fault("lock-sticks")
        if sticks or fault("lock-timeout"):
            for process in targets if sticks else ():
                process.cuda = ProcessState.LOCKED
            raise DriverError(_LOCK, 600, "NOT_READY")
        if targets and fault("lock-kills"):
            self._machine.die(targets[-1])
            raise DriverError(_LOCK, 999, "UNKNOWN")
        for process in targets:
            if process.cuda is ProcessState.RUNNING:
                process.cuda = ProcessState.LOCKED
        await self._pass()

    async def _checkpoint(self, targets: list[FakeProcess], deadline: float) -> None:
        fault = self._machine.fault
        if fault("helper-dies-midway"):
            raise DeadlineError("the helper died")
        if fault("park-hangs"):
            await asyncio.sleep(deadline)
            raise DeadlineError("the helper did not answer")
        refused, lost = fault("checkpoint-refused"), self._machine.lost
        broken = any(lost & process.memory.keys() for process in targets)
        if refused or broken or fault("checkpoint-fails"):
            for process in targets:
                if process.cuda is ProcessState.LOCKED:
                    process.cuda = ProcessState.RUNNING if refused else ProcessState.FAILED
            raise DriverError(_CHECKPOINT, 304, "OPERATING_SYSTEM")
        for process in targets:
            if process.cuda is ProcessState.LOCKED:
                process.cuda = ProcessState.CHECKPOINTED
        await self._pass()

    async def wake(
        self, pids: Sequence[int], gpu_map: Mapping[GpuUuid, GpuUuid], deadline: float
    ) -> Phases:
        """Restore all, then unlock all."""
        with self._call():
            targets = self._present(pids)
            if any(p.handle in self._machine.frozen for p in targets):
                raise DeadlineError("the processes are frozen")
            await self._pass()
            if self._machine.fault("wake-hangs"):
                await asyncio.sleep(deadline)
                raise DeadlineError("the helper did not answer")
            moved = any(old != new for old, new in gpu_map.items())
            if moved and self._machine.fault("remap-refused"):
                raise DriverError(_RESTORE, 1, "INVALID_VALUE")
            for process in targets:
                held = process.memory.items()
                process.memory = {gpu_map.get(gpu, gpu): size for gpu, size in held}
            await self._restore(targets)
            for process in targets:
                if process.cuda is ProcessState.LOCKED:
                    process.cuda = ProcessState.RUNNING
            self._see_running(pids)
        return {name: self._machine.step() for name in ("restore", "unlock", "canary")}

    def _see_running(self, pids: Sequence[int]) -> None:
        left = self._present(pids)
        if (pids and not left) or any(one.cuda is not ProcessState.RUNNING for one in left):
            raise DriverError(_GET_STATE, 1, "INVALID_VALUE")

    async def _restore(self, targets: list[FakeProcess]) -> None:
        parked = [p for p in targets if p.cuda is ProcessState.CHECKPOINTED]
        if any(process.stuck or self._machine.lost & process.memory.keys() for process in parked):
            raise DriverError(_RESTORE, 304, "OPERATING_SYSTEM")
        lacks = not self._fit(parked)
        if parked and (lacks or self._machine.fault("restore-fails")):
            for process in parked:
                process.stuck = True
            if lacks:
                self._machine.breach(f"no room to restore {parked[0].uid}")
            raise DriverError(_RESTORE, 2, "OUT_OF_MEMORY")
        for process in parked:
            process.cuda = ProcessState.LOCKED
        self._machine.check()
        await self._pass()

    def _fit(self, parked: list[FakeProcess]) -> bool:
        need: dict[GpuUuid, int] = {}
        for process in parked:
            for gpu, size in process.memory.items():
                need[gpu] = need.get(gpu, 0) + size
        return all(size <= self._machine.room(gpu) for gpu, size in need.items())

    async def states(self, pids: Sequence[int], deadline: float) -> Mapping[int, ProcessState]:
        """As they are."""
        with self._call():
            if self._machine.fault("states-hang"):
                await asyncio.sleep(deadline)
                raise DeadlineError("the helper did not answer")
            procs = self._machine.procs
            return {
                pid: procs[pid].cuda if pid in procs and procs[pid].alive else ProcessState.NO_CUDA
                for pid in pids
            }

    def kill(self) -> None:
        """Later calls find it dead."""
        self.killed = True

    async def _pass(self) -> None:
        await asyncio.sleep(self._machine.step())
        if self.killed:
            raise DeadlineError("the helper died")

    @contextmanager
    def _call(self) -> Iterator[None]:
        self.killed = self.killed or self._machine.fault("helper-dies")
        if self.killed or self._busy:
            raise DeadlineError("the helper is busy" if self._busy else "the helper is dead")
        self._busy = True
        try:
            yield
        except DriverError:
            raise
        except BaseException:
            self.killed = True
            raise
        finally:
            self._busy = False

    def _present(self, pids: Sequence[int]) -> list[FakeProcess]:
        found = [self._machine.procs[pid] for pid in pids if self._machine.procs[pid].alive]
        for process in found:
            if process.cuda is ProcessState.FAILED:
                raise DriverError("cuCheckpointProcessGetState", 401, f"{process.pid} is FAILED")
        return found


class FakeHelpers:
    """Implements `ports.DriverHelpers`. Fault: no-helper."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._started: list[FakeHelper] = []

    async def start(self, uid: PodUid) -> FakeHelper:
        """A helper."""
        if self._machine.fault("no-helper"):
            raise DriverError("cuInit", 999, "UNKNOWN")
        self._started = [one for one in self._started if not one.killed]
        self._started.append(FakeHelper(self._machine))
        return self._started[-1]

    def kill_all(self) -> int:
        """`kill -9` of each; how many there were."""
        killed = [one for one in self._started if not one.killed]
        for one in killed:
            one.kill()
        return len(killed)

    def close(self) -> None:
        """Nothing to end."""
