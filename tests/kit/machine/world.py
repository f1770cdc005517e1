"""The machine itself: processes, device memory, containers, and what happens to them in time."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.ports import (
    DumpState,
    GateHello,
    GatePhase,
    Holder,
    ImageCommand,
    ProcessState,
    SeatSpec,
)
from tests.kit.machine.elsewhere import Elsewhere
from tests.kit.machine.processes import App, FakeProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.ports import SeatListener
    from kybernate.types import ArtifactId, GpuUuid, PodUid
    from tests.kit.machine.saved import Keeping, Snapshot

STEP = 0.004
"""Virtual seconds that each driver call takes."""

_LOOK_AGAIN = 0.02


class Crash(BaseException):
    """The agent was killed here; the event loop is stopped."""


class Machine:
    """The world under a node agent. `faults` are names of things that fail at the next try.

    `breaches` lists every moment at which a GPU held more than it has; `went` is by kyb-init's PID
    the generation that it was let go with. `ran` counts by handle how often a tree was thawed: an
    artifact is of one such moment. `dumps` are trees of which kyb-init says that they don't run;
    `gates` are the pods from which TCP is held back, and who hears of it; `cut` those whose network
    is down, and `stopped` the trees that a signal has stopped, too; `paging` says from which folder
    a tree's memory still comes, by its container's PID 1. `newcomers` are handles of containers
    that wait for another's tree. `lent` is what is in seats' folders, and whether all of it was
    verified; `coming` are those into which something is fetched, false once it never comes.
    `elsewhere` is what it has in common with others, by its `name`; while it is `cut_off`
    it reaches nothing of that but the object store.
    """

    besides = 0
    """Bytes of each tree's memory that aren't its GPUs'."""
    journal_damage = ""
    """What the journal says that it lost: see `ports.Journal`."""
    crash_after = False
    """Whether the write at which the agent dies is still made."""

    def __init__(
        self,
        memory: Mapping[GpuUuid, int],
        name: str = "n1",
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.name, self.cut_off = name, False
        self.elsewhere = elsewhere or Elsewhere()
        self.elsewhere.machines[name] = self
        self.memory = dict(memory)
        self.procs: dict[int, FakeProcess] = {}
        self.frozen: set[str] = set()
        self.freezing: set[str] = set()
        self.lost: set[GpuUuid] = set()
        self.apps: dict[PodUid, App] = {}
        self.inits: dict[PodUid, int] = {}
        self.went: dict[int, int] = {}
        self.faults: set[str] = set()
        self.breaches: list[str] = []
        self.log: list[tuple[str, ...]] = []
        self.specs: dict[str, SeatSpec] = {}
        self.holders: dict[str, Holder] = {}
        self.journal: dict[str, Mapping[str, object]] = {}
        self.journal_writes = 0
        # The last writes, and those that a power cut may still take, as (key, record before).
        self.written: deque[tuple[str, Mapping[str, object] | None]] = deque(maxlen=64)
        self.unsynced: list[tuple[str, Mapping[str, object] | None]] = []
        self.crash_at: int | None = None
        self.crash_with: type[BaseException] = Crash
        self.images: dict[str, ImageCommand] = {}
        self.ran: dict[str, int] = {}
        self.dumps: dict[int, DumpState] = {}
        self.folders: dict[str, Snapshot] = {}
        self.lent: dict[str, tuple[ArtifactId, bool]] = {}
        self.vault: dict[ArtifactId, Keeping] = {}
        self.sealed = 0
        self.newcomers: set[str] = set()
        self.gates: dict[PodUid, Callable[[str], None] | None] = {}
        self.cut: set[PodUid] = set()
        self.stopped: set[str] = set()
        self.paging: dict[int, str] = {}
        self.coming: dict[str, bool] = {}
        self.listener: SeatListener | None = None
        self.open_doors: set[PodUid] = set()
        self._pids = itertools.count(100)
        self._agenda: dict[int, tuple[float, Callable[[], None]]] = {}
        self._entries = itertools.count()

    # --- what tests do ------------------------------------------------------------------------

    def start_container(self, uid: PodUid) -> None:
        """kyb-init and kyb-tree are there; kyb-init says hello if the door is open."""
        init = self._new(uid)
        tree = self._new(uid, parent=init.pid)
        tree.handle = ""
        self.inits[uid] = init.pid
        self.hello(uid)

    def unfilled(self) -> set[str]:
        """Folders of which not all was verified that was lent there."""
        return {folder for folder, (_, filled) in self.lent.items() if not filled}

    def hello(self, uid: PodUid) -> None:
        """kyb-init (re)connects and says where it is."""
        if self.listener is None or uid not in self.open_doors:
            return
        init = self.procs[self.inits[uid]]
        if not init.alive:
            return
        generation = self.went.get(init.pid, 0)
        phase = GatePhase.RUNNING if init.pid in self.went else GatePhase.WAITING
        if self.dumps.get(init.pid) is DumpState.PARKED:
            phase = GatePhase.PARKED
        self.listener.on_hello(uid, GateHello(init.pid, phase, generation, image=False))

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

    def room(self, gpu: GpuUuid) -> int:
        """Bytes of this GPU that nobody holds."""
        return self.memory[gpu] - sum(self.held(gpu).values())

    def locked(self) -> list[FakeProcess]:
        """Live processes that the driver holds locked."""
        return [p for p in self.procs.values() if p.alive and p.cuda is ProcessState.LOCKED]

    def later(self, delay: float, what: Callable[[], None]) -> None:
        """The world continues by itself: also while no agent runs, and under the next one."""
        loop = asyncio.get_running_loop()
        self.at(loop, loop.time() + delay, what)

    def at(self, loop: asyncio.AbstractEventLoop, when: float, what: Callable[[], None]) -> None:
        """The same at a time, on the event loop of this machine's agent."""
        entry = next(self._entries)
        self._agenda[entry] = (when, what)
        loop.call_at(when, self._due, entry)

    def carry_on(self) -> None:
        """On a new event loop: what was to happen happens on it, kyb-inits reconnect."""
        loop = asyncio.get_running_loop()
        for entry, (when, _) in sorted(self._agenda.items(), key=lambda item: item[1][0]):
            loop.call_at(when, self._due, entry)
        self.open_doors.clear()

    def arrive(self, uid: PodUid) -> bool:
        """A packet comes to a pod from which TCP is held back; whether anybody hears of it."""
        hear = self.gates.get(uid)
        if hear is None:
            return False
        self.gates[uid] = None
        hear("somebody sent to its port 8000")
        return True

    # --- what the fakes ask ---------------------------------------------------------------------

    def fault(self, name: str) -> bool:
        """Whether this fault was set; it is used up."""
        if name in self.faults:
            self.faults.discard(name)
            return True
        return False

    def step(self) -> float:
        """Seconds that the next driver call takes."""
        return STEP

    def go(self, uid: PodUid, generation: int, told: tuple[GpuUuid, ...] = ()) -> None:
        """The gate opens: the app begins, told its GPUs, and serves after its delay."""
        init = self.procs.get(self.inits.get(uid, 0))
        if init is None or not init.alive or init.pid in self.went:
            return
        self.went[init.pid] = generation
        tree = next(p for p in self.procs.values() if p.parent == init.pid)
        app = self._new(uid, parent=tree.pid)
        app.handle, app.main, app.told = tree.handle, True, told
        self.later(self.apps[uid].delay, lambda: self._serve(app))

    def expect(self, uid: PodUid) -> None:
        """The gate closes for good: a tree from elsewhere is brought."""
        init = self.procs.get(self.inits.get(uid, 0))
        if init is None or not init.alive or init.pid in self.went or init.pid in self.dumps:
            return
        tree = next(p for p in self.procs.values() if p.parent == init.pid)
        self.newcomers.add(tree.handle)
        self.drop_tree(tree.handle)
        self.dumps[init.pid] = DumpState.PARKED
        self.went[init.pid] = 0

    def add_worker(self, handle: str) -> FakeProcess:
        """One more process of this tree uses the GPUs that its command was told, wherever it is by
        now; of one that was told none its app's: those of this machine, also where what was
        restored has its memory from another's."""
        tree = (p for p in self.procs.values() if p.handle == handle and p.main)
        app = max(tree, key=lambda p: (p.alive, p.pid))
        worker = self._new(app.uid, parent=app.parent)
        worker.handle, worker.cuda = handle, ProcessState.RUNNING
        here = [gpu for gpu in app.memory if gpu in self.memory]
        worker.told = app.told
        worker.memory = dict.fromkeys(app.told or here or self.apps[app.uid].gpus, 1)
        worker.strayed = bool(here) and worker.memory.keys() != set(here)
        if worker.strayed and self.lost & worker.memory.keys():
            worker.cuda, worker.memory = ProcessState.NO_CUDA, {}  # on a lost GPU nothing begins
        return worker

    def lose(self, gpu: GpuUuid) -> None:
        """It falls off the bus. What strayed there has nothing of it any more, also once it is
        back: that took a reset. Seats that were there are ended by the agent."""
        self.lost.add(gpu)
        for process in self.procs.values():
            if process.strayed and gpu in process.memory:
                process.cuda, process.memory = ProcessState.NO_CUDA, {}

    def moved(self, uid: PodUid) -> str:
        """The handle of this pod's tree, if it is elsewhere than its command was told."""
        apps = (p for p in self._of(uid) if p.main and p.told and not p.signalled)
        return next((p.handle for p in apps if p.memory.keys() != set(p.told)), "")

    def thaw(self, handle: str) -> None:
        """What was killed meanwhile dies."""
        tree = [process for process in self.procs.values() if process.handle == handle]
        if any(process.alive and not process.signalled for process in tree):
            self.ran[handle] = self.ran.get(handle, 0) + 1
            heard = not any(process.uid in self.gates for process in tree)
            self.elsewhere.thawed(self.name, handle, self.ran[handle], heard=heard)
        self.frozen.discard(handle)
        self.freezing.discard(handle)
        self.reap_all()

    def check(self) -> None:
        """Note every GPU that holds more than it has."""
        for gpu, memory in self.memory.items():
            held = self.held(gpu)
            if sum(held.values()) > memory:
                self.breach(f"GPU {gpu} holds {held} of {memory}")

    def breach(self, what: str) -> None:
        """Something happened that must never happen."""
        self.breaches.append(what)

    def die(self, process: FakeProcess) -> None:
        """A process ends by itself; with the main one its container does."""
        process.signalled = True
        self._reap(process)
        if process.main:
            asyncio.get_running_loop().call_soon(self.end_container, process.uid)

    def hang(self, handle: str) -> None:
        """A tree is killed but hangs in the kernel: it does nothing any more, and isn't gone."""
        for process in self.procs.values():
            if process.handle == handle:
                process.signalled = True

    def kill_handle(self, handle: str) -> None:
        """SIGKILL to a whole tree, thawed; kyb-init exits after it."""
        self.frozen.discard(handle)
        self.freezing.discard(handle)
        uids = {p.uid for p in self.procs.values() if p.alive and p.handle == handle}
        for process in self.procs.values():
            if process.handle == handle:
                process.signalled = True
                self._reap(process)
        for uid in uids:
            asyncio.get_running_loop().call_soon(self.end_container, uid)

    def recreate(self, process: FakeProcess) -> FakeProcess:
        """The same process with a new PID, as after a restore."""
        again = self._new(process.uid)
        pid, start = again.pid, again.start
        self.procs[pid] = replace(process, pid=pid, start=start, memory=dict(process.memory))
        return self.procs[pid]

    def given_up(self, uid: PodUid) -> bool:
        """Whether its container is asked to end, so that nobody needs its state any more."""
        init = self.procs.get(self.inits.get(uid, 0))
        return init is None or init.signalled

    def drop_tree(self, handle: str) -> None:
        """All processes of a tree are gone, and kyb-init takes it for nothing."""
        self.frozen.discard(handle)
        self.freezing.discard(handle)
        for process in self.procs.values():
            if process.handle == handle and process.alive:
                process.alive, process.memory = False, {}

    def reap_all(self) -> None:
        """Signalled processes that are not frozen die; an init whose tree died exits."""
        for process in tuple(self.procs.values()):
            if process.alive and process.signalled:
                self._reap(process)
                ours = self.procs[process.parent].parent if process.main else 0
                if not process.alive and ours == self.inits.get(process.uid):
                    asyncio.get_running_loop().call_soon(self.end_container, process.uid)

    # --- inside -------------------------------------------------------------------------------

    def _due(self, entry: int) -> None:
        planned = self._agenda.pop(entry, None)
        if planned is not None:
            planned[1]()

    def _new(self, uid: PodUid, parent: int = 0) -> FakeProcess:
        pid = next(self._pids)
        process = self.procs[pid] = FakeProcess(pid, pid * 10, uid, parent, inner=pid)
        return process

    def _of(self, uid: PodUid) -> list[FakeProcess]:
        return [p for p in self.procs.values() if p.uid == uid and p.alive]

    def _holds(self, process: FakeProcess, gpu: GpuUuid) -> bool:
        parked = process.cuda is ProcessState.CHECKPOINTED
        return process.alive and gpu in process.memory and not parked and not process.strayed

    def _reap(self, process: FakeProcess) -> None:
        if process.handle not in self.frozen:
            process.alive = False
            process.memory = {}

    def _serve(self, process: FakeProcess) -> None:
        if not process.alive or process.signalled:
            return
        if process.handle in self.frozen:
            self.later(_LOOK_AGAIN, lambda: self._serve(process))
            return
        app = self.apps[process.uid]
        process.port = app.port
        ranks = [process, *(self.add_worker(process.handle) for _ in range(app.ranks - 1))]
        for rank in ranks:
            rank.cuda = ProcessState.RUNNING
            rank.memory = dict.fromkeys(app.gpus, app.size // app.ranks)
        self.check()
