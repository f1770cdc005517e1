"""A machine with GPUs, containers and processes, in memory: fakes of the node agent's ports.

All ports look at one `Machine`, so that what one does the others see: a checkpoint gives device
memory back, a frozen process makes no progress, a killed one holds nothing. Time is the event
loop's (`clock.VirtualLoop`). Faults are set by name and happen once.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kybernate.errors import DeadlineError, DriverError, NotFoundError, RetryableError
from kybernate.ports import (
    CooperationPhase,
    GateHello,
    GatePhase,
    Holder,
    ImageCommand,
    ProcessState,
    SeatSpec,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from kybernate.ports import Phases, SeatListener
    from kybernate.types import GpuUuid, PodUid

T = TypeVar("T")

STEP = 0.004
"""Virtual seconds that each driver call takes."""


@dataclass(slots=True)
class FakeProcess:
    """A process; `memory` in bytes by GPU, held unless CHECKPOINTED."""

    pid: int
    start: int
    uid: PodUid
    parent: int = 0
    handle: str = ""
    alive: bool = True
    port: int | None = None
    cuda: ProcessState = ProcessState.NO_CUDA
    memory: dict[GpuUuid, int] = field(default_factory=dict)
    signalled: bool = False


@dataclass(slots=True)
class App:
    """What a container runs once its gate opens."""

    gpus: tuple[GpuUuid, ...]
    size: int
    port: int | None = 8000
    delay: float = 0.5
    """Seconds until it serves."""


class Machine:
    """The world under a node agent. `faults` are names of things that fail at the next try."""

    def __init__(self, memory: Mapping[GpuUuid, int]) -> None:
        self.memory = dict(memory)
        self.procs: dict[int, FakeProcess] = {}
        self.frozen: set[str] = set()
        self.freezing: set[str] = set()
        self.lost: set[GpuUuid] = set()
        self.apps: dict[PodUid, App] = {}
        self.inits: dict[PodUid, int] = {}
        self.faults: set[str] = set()
        self.breaches: list[str] = []
        self.log: list[tuple[str, ...]] = []
        self.specs: dict[str, SeatSpec] = {}
        self.holders: dict[str, Holder] = {}
        self.journal: dict[str, Mapping[str, object]] = {}
        self.journal_writes = 0
        self.crash_at: int | None = None
        self.crash_after = False
        self.images: dict[str, ImageCommand] = {}
        self.listener: SeatListener | None = None
        self.open_doors: set[PodUid] = set()
        self._pids = itertools.count(100)
        self._starting: dict[int, float] = {}

    # --- what tests do ------------------------------------------------------------------------

    def start_container(self, uid: PodUid) -> None:
        """kyb-init and kyb-tree are there; kyb-init says hello if the door is open."""
        init = self._new(uid)
        tree = self._new(uid, parent=init.pid)
        tree.handle = ""
        self.inits[uid] = init.pid
        self.hello(uid)

    def hello(self, uid: PodUid) -> None:
        """kyb-init (re)connects and says where it is."""
        if self.listener is None or uid not in self.open_doors:
            return
        init = self.procs[self.inits[uid]]
        if not init.alive:
            return
        began = ("went", str(init.pid)) in self.log
        phase = GatePhase.RUNNING if began else GatePhase.WAITING
        self.listener.on_hello(uid, GateHello(init.pid, phase, int(began), image=False))

    def end_container(self, uid: PodUid) -> None:
        """All its processes die, unless they are frozen: then they wait for the thaw."""
        for process in self._of(uid):
            process.signalled = True
            self._reap(process)
        if self.listener is not None and uid in self.open_doors:
            self.listener.on_lost(uid)

    def restart_container(self, uid: PodUid) -> None:
        """What the kubelet does after a container ended."""
        self.start_container(uid)

    def held(self, gpu: GpuUuid) -> dict[PodUid, int]:
        """Bytes of this GPU by pod."""
        found: dict[PodUid, int] = {}
        for process in self.procs.values():
            if self._holds(process, gpu):
                found[process.uid] = found.get(process.uid, 0) + process.memory[gpu]
        return found

    def carry_on(self) -> None:
        """On a new event loop: apps that were starting go on with it, kyb-inits reconnect."""
        for pid, when in self._starting.items():
            asyncio.get_running_loop().call_at(when, self._serve, self.procs[pid])
        self.open_doors.clear()

    # --- inside -------------------------------------------------------------------------------

    def fault(self, name: str) -> bool:
        """Whether this fault was set; it is used up."""
        if name in self.faults:
            self.faults.discard(name)
            return True
        return False

    def _new(self, uid: PodUid, parent: int = 0) -> FakeProcess:
        pid = next(self._pids)
        process = self.procs[pid] = FakeProcess(pid, pid * 10, uid, parent)
        return process

    def _of(self, uid: PodUid) -> list[FakeProcess]:
        return [p for p in self.procs.values() if p.uid == uid and p.alive]

    def _holds(self, process: FakeProcess, gpu: GpuUuid) -> bool:
        parked = process.cuda is ProcessState.CHECKPOINTED
        return process.alive and gpu in process.memory and not parked

    def reap_all(self) -> None:
        """Signalled processes that are not frozen die; an init whose tree died exits."""
        for process in tuple(self.procs.values()):
            if process.alive and process.signalled:
                self._reap(process)

    def _reap(self, process: FakeProcess) -> None:
        if process.handle not in self.frozen:
            process.alive = False
            process.memory = {}

    def go(self, uid: PodUid) -> None:
        """The gate opens: the app begins, and serves after its delay."""
        init = self.procs.get(self.inits.get(uid, 0))
        if init is None or not init.alive:
            return
        if ("went", str(init.pid)) in self.log:
            return
        self.log.append(("went", str(init.pid)))
        tree = next(p for p in self.procs.values() if p.parent == init.pid)
        app = self._new(uid, parent=tree.pid)
        app.handle = tree.handle
        loop = asyncio.get_running_loop()
        self._starting[app.pid] = when = loop.time() + self.apps[uid].delay
        loop.call_at(when, self._serve, app)

    def _serve(self, process: FakeProcess) -> None:
        if self._starting.pop(process.pid, None) is None or not process.alive:
            return
        app = self.apps[process.uid]
        process.port = app.port
        process.cuda = ProcessState.RUNNING
        process.memory = dict.fromkeys(app.gpus, app.size)
        self.check()

    def add_worker(self, handle: str) -> FakeProcess:
        """One more process of this tree uses its app's GPUs."""
        app = next(p for p in self.procs.values() if p.handle == handle and p.port is not None)
        worker = self._new(app.uid, parent=app.parent)
        worker.handle, worker.cuda = handle, ProcessState.RUNNING
        worker.memory = dict.fromkeys(self.apps[app.uid].gpus, 1)
        return worker

    def locked(self) -> list[FakeProcess]:
        """Live processes that the driver holds locked."""
        return [p for p in self.procs.values() if p.alive and p.cuda is ProcessState.LOCKED]

    def thaw(self, handle: str) -> None:
        """What was killed meanwhile dies."""
        self.frozen.discard(handle)
        self.freezing.discard(handle)
        self.reap_all()

    def check(self) -> None:
        """Note every GPU that holds more than it has."""
        for gpu, memory in self.memory.items():
            held = self.held(gpu)
            if sum(held.values()) > memory:
                self.breaches.append(f"GPU {gpu} holds {held} of {memory}")

    def kill_handle(self, handle: str) -> None:
        """SIGKILL to a whole tree, thawed; kyb-init exits after it."""
        self.frozen.discard(handle)
        uids = {p.uid for p in self.procs.values() if p.alive and p.handle == handle}
        for process in self.procs.values():
            if process.handle == handle:
                process.signalled = True
                self._reap(process)
        for uid in uids:
            asyncio.get_running_loop().call_soon(self.end_container, uid)


class FakeGpus:
    """Implements `ports.Gpus`. Faults: nvml, and nvml-unsure when a GPU has no process."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def used(self, gpu: GpuUuid) -> int:
        """Sum of what pods hold."""
        if gpu in self._machine.lost or self._machine.fault("nvml"):
            raise DriverError("nvmlDeviceGetMemoryInfo", 15, "GPU_IS_LOST")
        return sum(self._machine.held(gpu).values())

    def processes(self, gpu: GpuUuid) -> tuple[tuple[int, int | None], ...]:
        """Processes that hold memory."""
        if gpu in self._machine.lost:
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
    """Implements `ports.DriverHelper`.

    Faults: lock-timeout, checkpoint-fails, park-hangs, restore-fails, wake-hangs.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.killed = False

    async def park(self, pids: Sequence[int], lock_timeout: float, deadline: float) -> Phases:
        """Lock all, then checkpoint all."""
        targets = self._targets(pids)
        if self._machine.fault("lock-sticks"):
            for process in targets:
                process.cuda = ProcessState.LOCKED
            raise DriverError("cuCheckpointProcessLock", 600, "NOT_READY")
        if self._machine.fault("lock-timeout"):
            raise DriverError("cuCheckpointProcessLock", 600, "NOT_READY")
        for process in targets:
            process.cuda = ProcessState.LOCKED
        await asyncio.sleep(STEP)
        if self._machine.fault("park-hangs"):
            await asyncio.sleep(deadline)
            raise DeadlineError("the helper did not answer")
        if self._machine.fault("checkpoint-fails"):
            for process in targets:
                process.cuda = ProcessState.FAILED
            raise DriverError("cuCheckpointProcessCheckpoint", 304, "OPERATING_SYSTEM")
        for process in targets:
            process.cuda = ProcessState.CHECKPOINTED
        await asyncio.sleep(STEP)
        return {"lock": STEP, "checkpoint": STEP}

    async def wake(
        self, pids: Sequence[int], gpu_map: Mapping[GpuUuid, GpuUuid], deadline: float
    ) -> Phases:
        """Restore all, then unlock all."""
        known = self._machine.procs
        targets = self._targets([pid for pid in pids if known[pid].alive] or pids)
        if any(p.handle in self._machine.frozen for p in targets):
            raise DeadlineError("the processes are frozen")
        await asyncio.sleep(STEP)
        if self._machine.fault("wake-hangs"):
            await asyncio.sleep(deadline)
            raise DeadlineError("the helper did not answer")
        if self._machine.fault("restore-fails"):
            raise DriverError("cuCheckpointProcessRestore", 2, "OUT_OF_MEMORY")
        for process in targets:
            process.cuda = ProcessState.LOCKED
        self._machine.check()
        await asyncio.sleep(STEP)
        for process in targets:
            process.cuda = ProcessState.RUNNING
        return {"restore": STEP, "unlock": STEP}

    async def states(self, pids: Sequence[int], deadline: float) -> Mapping[int, ProcessState]:
        """As they are."""
        procs = self._machine.procs
        return {
            pid: procs[pid].cuda if pid in procs and procs[pid].alive else ProcessState.NO_CUDA
            for pid in pids
        }

    def kill(self) -> None:
        """Noted."""
        self.killed = True

    def _targets(self, pids: Sequence[int]) -> list[FakeProcess]:
        found = [self._machine.procs[pid] for pid in pids]
        if not all(process.alive for process in found):
            raise DriverError("cuCheckpointProcessLock", 1, "INVALID_VALUE")
        return found


class FakeHelpers:
    """Implements `ports.DriverHelpers`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def start(self, uid: PodUid) -> FakeHelper:
        """A helper."""
        return FakeHelper(self._machine)

    def close(self) -> None:
        """Nothing to end."""


class FakeFreezer:
    """Implements `ports.Freezer`. Fault: freeze-fails."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def place(self, tree_pid: int) -> str:
        """A handle by the tree's PID."""
        process = self._machine.procs.get(tree_pid)
        if process is None or not process.alive:
            raise NotFoundError(f"process {tree_pid} is gone")
        process.handle = f"/cgroup/{tree_pid}/kyb"
        return process.handle

    async def freeze(self, handle: str, deadline: float) -> None:
        """Frozen at once."""
        if not self.pids(handle):
            raise NotFoundError(f"{handle} is gone")
        if self._machine.fault("freeze-fails"):
            raise DeadlineError(f"{handle} does not freeze")
        if self._machine.fault("worker-begins"):
            self._machine.add_worker(handle)
        self._machine.freezing.discard(handle)
        self._machine.frozen.add(handle)

    def thaw(self, handle: str) -> None:
        """Thawed; what was killed meanwhile dies."""
        self._machine.thaw(handle)

    def frozen(self) -> frozenset[str]:
        """All frozen handles, and those half-way to it."""
        return frozenset(self._machine.frozen | self._machine.freezing)

    def pids(self, handle: str) -> tuple[int, ...]:
        """Live processes in it."""
        procs = self._machine.procs.values()
        return tuple(p.pid for p in procs if p.alive and p.handle == handle)

    async def kill(self, handle: str, deadline: float) -> None:
        """Everything in it dies, and its container ends."""
        self._machine.kill_handle(handle)


class FakeProcs:
    """Implements `ports.Procs`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def _live(self, pid: int) -> FakeProcess:
        process = self._machine.procs.get(pid)
        if process is None or not process.alive:
            raise NotFoundError(f"process {pid} is gone")
        return process

    def child_of(self, init_pid: int) -> int:
        """kyb-tree."""
        children = (p.pid for p in self._machine.procs.values() if p.parent == init_pid)
        for pid in children:
            return self._live(pid).pid
        raise NotFoundError(f"process {init_pid} has no child")

    def start_time(self, pid: int) -> int:
        """As made up at its start."""
        return self._live(pid).start

    def alive(self, pid: int, start_time: int) -> bool:
        """Whether exactly it lives."""
        process = self._machine.procs.get(pid)
        return process is not None and process.alive and process.start == start_time

    def listening(self, pids: Sequence[int], port: int) -> bool:
        """Whether one of them has the port."""
        procs = self._machine.procs
        return any(procs[pid].alive and procs[pid].port == port for pid in pids)

    def pod_uid_of(self, pid: int) -> PodUid | None:
        """Its pod."""
        return self._live(pid).uid

    def ending(self, pid: int) -> bool:
        """Whether a signal waits for the thaw, or it is gone."""
        process = self._machine.procs.get(pid)
        return process is None or not process.alive or process.signalled


class FakeDoors:
    """Implements `ports.SeatDoors`. Notes what is sent in the machine's log."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def listen(self, listener: SeatListener) -> None:
        """Who is told."""
        self._machine.listener = listener

    async def open(self, uid: PodUid) -> Path:
        """The door is open; a kyb-init that waits connects."""
        fresh = uid not in self._machine.open_doors
        self._machine.open_doors.add(uid)
        if fresh and uid in self._machine.inits:
            asyncio.get_running_loop().call_soon(self._machine.hello, uid)
        return Path("/run/kyb/seats") / uid

    async def close(self, uid: PodUid) -> None:
        """Shut."""
        self._machine.open_doors.discard(uid)

    def go(self, uid: PodUid, generation: int, argv_prefix: Sequence[str]) -> None:
        """Open the gate."""
        self._machine.log.append(("go", uid, str(generation), *argv_prefix))
        self._machine.go(uid)

    def refuse(self, uid: PodUid, sentence: str) -> None:
        """kyb-init exits."""
        self._machine.log.append(("refuse", uid, sentence))
        self._machine.end_container(uid)

    def ok(self, uid: PodUid) -> None:
        """Noted."""
        self._machine.log.append(("ok", uid))

    def tell(self, uid: PodUid, state: str, sentence: str) -> None:
        """Noted, without the sentence."""
        self._machine.log.append(("tell", uid, state))

    async def cooperate(self, uid: PodUid, phase: CooperationPhase, limit: float) -> str:
        """Done at once. Fault: not-cooperating."""
        self._machine.log.append(("cooperate", uid, phase.value))
        return "HTTP 500" if self._machine.fault("not-cooperating") else ""


class FakeSpecs:
    """Implements `ports.Specs`. Fault: no-vendor-spec."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def write(self, device_id: str, spec: SeatSpec) -> None:
        """Kept."""
        if self._machine.fault("no-vendor-spec"):
            raise RetryableError("there is no nvidia.yaml yet")
        self._machine.specs[device_id] = spec

    def remove(self, device_id: str) -> None:
        """Dropped."""
        self._machine.specs.pop(device_id, None)

    def ids(self) -> frozenset[str]:
        """All kept."""
        return frozenset(self._machine.specs)


class FakePodResources:
    """Implements `ports.PodResources`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def holder(self, resource: str, device_ids: Sequence[str]) -> Holder:
        """Who holds the first of them."""
        try:
            return self._machine.holders[device_ids[0]]
        except KeyError:
            raise NotFoundError(f"nobody holds {device_ids[0]}") from None

    async def held(self) -> Mapping[str, Holder]:
        """All."""
        return dict(self._machine.holders)


class FakeImages:
    """Implements `ports.Images`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def command_of(self, image: str) -> ImageCommand:
        """As set."""
        try:
            return self._machine.images[image]
        except KeyError:
            raise NotFoundError(f"image {image} is not on this node") from None


class Crash(BaseException):
    """The agent was killed here; the event loop is stopped."""


class FakeJournal:
    """Implements `ports.Journal`. Fault: disk-full, at the next synced write.

    With the machine's `crash_at` = n the agent dies at the n-th write; `crash_after` says whether
    the record is still written.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def load(self) -> Mapping[str, Mapping[str, object]]:
        """All records."""
        return dict(self._machine.journal)

    def put(self, key: str, record: Mapping[str, object], *, synced: bool) -> Awaitable[None]:
        """Kept, unless the agent is to be killed here."""
        self._write(lambda: self._machine.journal.update({key: record}))
        full = synced and self._machine.fault("disk-full")
        return _done(OSError(28, "No space left on device") if full else None)

    def delete(self, key: str) -> Awaitable[None]:
        """Forgotten."""
        self._write(lambda: self._machine.journal.pop(key, None))
        return _done()

    def close(self) -> None:
        """Nothing to close."""

    def _write(self, write: Callable[[], object]) -> None:
        machine = self._machine
        machine.journal_writes += 1
        crashes = machine.crash_at is not None and machine.journal_writes >= machine.crash_at
        if not crashes or machine.crash_after:
            write()
        if crashes:
            asyncio.get_running_loop().stop()
            raise Crash


def _done(error: Exception | None = None) -> Awaitable[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


async def inline(call: Callable[[], T], deadline: float) -> T:
    """A blocking call, made at once: fakes don't block."""
    return call()
