"""What dumps trees and brings them back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.errors import (
    DeadlineError,
    DumpError,
    DumpRefusedError,
    NotFoundError,
    RestoreError,
)
from kybernate.ports import DumpState, ProcessState
from tests.kit.machine.saved import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.ports import Phases
    from kybernate.types import PodUid
    from tests.kit.machine.processes import FakeProcess
    from tests.kit.machine.world import Machine

_GLANCE = 0.5
_HELD_OPEN = (ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.FAILED)


class FakeDumper:
    """Implements `ports.Dumper`. Faults: undumpable (at `check`), dump-refused, dump-fails,
    dump-suspect (the tree runs), dump-hangs, end-hangs (half of it lives), keep-fails,
    restore-fails-criu, restore-refused, restore-starves and restore-hangs (half of it is there).

    Sees that nothing is lost: what is ended was sealed as it is, what is restored is what was
    ended last, and nothing runs twice.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def check(self, init: int, handle: str, deadline: float) -> tuple[str, ...]:
        """Nothing, or io_uring."""
        self._init(init)
        await asyncio.sleep(self._machine.step())
        return ("process 7 uses io_uring",) if self._machine.fault("undumpable") else ()

    async def dump(
        self, init: int, handle: str, images: Path, deadline: float, *, continues: bool = False
    ) -> Phases:
        """Into the machine's `folders`."""
        machine, uid = self._machine, self._init(init).uid
        tree = self._tree(handle)
        if not tree or machine.fault("dump-refused"):
            raise DumpRefusedError("a connection waits to be accepted")
        self._see_still(handle, tree)
        if init in machine.paging:
            machine.breach(f"{handle} is dumped before its memory is in")
        machine.dumps[init] = DumpState.HOLDING
        line = machine.elsewhere.line(machine.name, handle)
        begun = Snapshot(uid, handle, machine.ran.get(handle, 0), line=line)
        machine.folders[str(images)] = begun
        await asyncio.sleep(machine.step())
        if machine.fault("dump-hangs"):
            await asyncio.sleep(deadline)
            raise DeadlineError("criu did not end")
        if machine.fault("dump-suspect"):
            machine.thaw(handle)
            raise DumpError("criu was killed", suspect=True)
        if machine.fault("dump-fails"):
            raise DumpError("No space left on device")
        processes = tuple(replace(one, memory=dict(one.memory)) for one in self._tree(handle))
        done = replace(begun, processes=processes, whole=True, besides=machine.besides)
        machine.folders[str(images)] = done
        return {"criu": machine.step()}

    def _see_still(self, handle: str, tree: list[FakeProcess]) -> None:
        if handle not in self._machine.frozen:
            self._machine.breach(f"{handle} is dumped while it runs")
        if any(process.memory and process.cuda in _HELD_OPEN for process in tree):
            self._machine.breach(f"{handle} is dumped with memory of a GPU")

    async def end(self, init: int, handle: str, deadline: float) -> None:
        """All of the tree is gone."""
        machine = self._machine
        uid = self._init(init).uid
        if machine.dumps.get(init) is not DumpState.PARKED:
            self._see_saved(uid, handle)
            machine.dumps[init] = DumpState.HOLDING
        # Else half of a tree is there at most, and kyb-init says as before that none is.
        if machine.fault("end-hangs"):
            await asyncio.sleep(deadline)
            raise DeadlineError("the tree did not die")
        machine.drop_tree(handle)
        machine.dumps[init] = DumpState.PARKED
        await asyncio.sleep(machine.step())

    def _see_saved(self, uid: PodUid, handle: str) -> None:
        ran = self._machine.ran.get(handle, 0)
        kept = [k for k in self._machine.vault.values() if k.snapshot.uid == uid]
        if not any(k.snapshot.ran == ran and k.snapshot.handle == handle for k in kept):
            self._machine.breach(f"{uid} is ended and not saved as it is")
        if uid not in self._machine.gates:
            self._machine.breach(f"{uid} is ended and its connections are reset")

    async def keep(self, init: int, handle: str, deadline: float) -> None:
        """It stands frozen."""
        machine = self._machine
        self._init(init)
        if machine.fault("keep-fails"):
            raise DumpError("TCP repair mode could not be left", suspect=True)
        if not self._tree(handle):
            raise DumpError("nothing is left of the tree", suspect=True)
        machine.dumps.pop(init, None)
        machine.frozen.add(handle)
        await asyncio.sleep(machine.step())

    async def restore(
        self,
        init: int,
        handle: str,
        images: Path,
        deadline: float,
        *,
        lazy: bool = False,
        stopped: bool = False,
    ) -> Phases:
        """From the machine's `folders`, with new PIDs."""
        machine = self._machine
        snapshot = self._restorable(init, handle, images)
        if machine.fault("restore-fails-criu"):
            raise RestoreError("Can't open file dev/shm/x")
        if machine.fault("restore-refused"):
            raise RestoreError("File data/log is another one now", refused=True)
        pids: dict[int, int] = {}
        starves, hangs = machine.fault("restore-starves"), machine.fault("restore-hangs")
        for process in snapshot.processes[: 1 if hangs or starves else None]:
            again = machine.recreate(process)
            again.uid, again.handle = self._init(init).uid, handle
            pids[process.pid] = again.pid
            again.parent = pids.get(process.parent, init)
            again.signalled = False
        machine.frozen.add(handle)
        if stopped:
            machine.stopped.add(handle)
        await asyncio.sleep(deadline if hangs else machine.step())
        await self._come(str(images), deadline)
        if hangs:
            raise DeadlineError("criu did not end")
        if starves:
            raise RestoreError("criu was killed", starved=True, killed=True)
        machine.dumps.pop(init, None)
        if lazy:
            machine.paging[init] = str(images)
        if handle in machine.newcomers:
            machine.newcomers.discard(handle)
            machine.ran[handle] = snapshot.ran
            uid = self._init(init).uid
            machine.elsewhere.continued(machine.name, handle, uid, snapshot.line)
        return {"criu": machine.step()}

    async def _come(self, folder: str, deadline: float) -> None:
        """Nothing stands before all has come that it is made of."""
        until = asyncio.get_running_loop().time() + deadline
        while self._machine.coming.get(folder):
            if asyncio.get_running_loop().time() >= until:
                raise DeadlineError("criu did not end")
            await asyncio.sleep(0.01)
        if folder in self._machine.coming:
            raise RestoreError("pages-1.img: piece 3 is lost in every place")

    def _restorable(self, init: int, handle: str, images: Path) -> Snapshot:
        machine = self._machine
        self._init(init)
        if machine.dumps.get(init) is not DumpState.PARKED:
            machine.breach(f"{handle} is restored beside itself")
        machine.drop_tree(handle)
        snapshot = machine.folders.get(str(images))
        if snapshot is None or not snapshot.whole:
            raise RestoreError(f"{images} holds no whole dump")
        moved = snapshot.handle != handle or snapshot.ran != machine.ran.get(handle, 0)
        if moved and handle not in machine.newcomers:
            machine.breach(f"{handle} goes back in time")
        return snapshot

    async def pages_done(self, init: int, deadline: float) -> None:
        """After a second, unless pages-late (after ten) or pages-lost (the container ends); at
        once when the container has ended."""
        machine, uid = self._machine, self._init(init).uid
        if init in machine.paging:
            takes = 10.0 if machine.fault("pages-late") else 1.0
            await self._came(init, min(takes, deadline))
            if takes > deadline:
                raise DeadlineError("its memory is still coming in")
            await self._filled(machine.paging[init], deadline)
        if machine.fault("pages-lost"):
            machine.end_container(uid)
        if machine.paging.pop(init, None) and not machine.procs[init].alive:
            raise RestoreError("lazy-pages was killed")

    async def _came(self, init: int, seconds: float) -> None:
        """Unless the container ends, and the server of its memory with it."""
        for _ in range(int(seconds / _GLANCE)):
            await asyncio.sleep(_GLANCE)
            if not self._machine.procs[init].alive:
                self._machine.paging.pop(init, None)
                raise RestoreError("lazy-pages was killed")

    async def _filled(self, folder: str, deadline: float) -> None:
        """Nothing is read before it is verified."""
        for _ in range(int(deadline)):
            if folder not in self._machine.unfilled():
                return
            await asyncio.sleep(1.0)
        raise DeadlineError("memory is missing yet")

    def state(self, init: int) -> DumpState:
        """As it is."""
        self._init(init)
        return self._machine.dumps.get(init, DumpState.RUNNING)

    def _init(self, init: int) -> FakeProcess:
        process = self._machine.procs.get(init)
        if process is None or not process.alive:
            raise NotFoundError(f"process {init} is gone")
        return process

    def _tree(self, handle: str) -> list[FakeProcess]:
        return [p for p in self._machine.procs.values() if p.alive and p.handle == handle]
