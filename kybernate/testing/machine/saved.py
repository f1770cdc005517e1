"""Dumps of trees, the saved states made of them, and the gate that holds TCP back meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.core.artifacts.into import Container, why_refused
from kybernate.core.artifacts.manifest import PACKED, VERSION, Facts, Manifest, facts_of
from kybernate.core.artifacts.match import Target
from kybernate.core.artifacts.privileges import Privileges
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    DumpError,
    DumpRefusedError,
    NotFoundError,
    RefusedError,
    RestoreError,
    RetryableError,
)
from kybernate.ports import DumpState, ProcessState, Sealed
from kybernate.types import ArtifactId, PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.core.artifacts.into import Into
    from kybernate.ports import Phases
    from kybernate.testing.machine.world import FakeProcess, Machine

_LOCAL = Tier.NVME
_DAY = "20260131T120000Z"
_FACTS = Facts(
    *("", "", "", "main", "sha256:1", "9f2c", "6.18", "4.2.1", "x86_64", 100),
    Privileges((), ()),
    root_pid=2,
)
_HELD_OPEN = (ProcessState.RUNNING, ProcessState.LOCKED, ProcessState.FAILED)


CONTAINER = Container(
    Target(_FACTS.image_digest, _FACTS.spec_hash, _FACTS.kernel, _FACTS.criu, _FACTS.architecture),
    Privileges((), ()),
)
"""What every container of the machine is: all may have each other's states, but for namespaces."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A tree as it was when it had been thawed `ran` times. `line`: whose state it is, through all
    its successors; `whole`: all of it was written; `besides`: bytes that were on no GPU."""

    uid: PodUid
    handle: str
    ran: int
    processes: tuple[FakeProcess, ...] = ()
    whole: bool = False
    line: str = ""
    besides: int = 0

    @property
    def first(self) -> int:
        """Bytes that were on GPUs."""
        return sum(sum(process.memory.values()) for process in self.processes)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.first + self.besides


@dataclass(slots=True)
class Keeping:
    """A saved state, the folder with its images, and the places that have it."""

    snapshot: Snapshot
    folder: str
    places: set[Tier] = field(default_factory=set)
    facts: Mapping[str, object] = field(default_factory=dict)


class FakeDumper:
    """Implements `ports.Dumper`. Faults: undumpable (at `check`), dump-refused, dump-fails,
    dump-suspect (the tree runs), dump-hangs, end-hangs (half of it lives), keep-fails,
    restore-fails-criu, restore-hangs (half of it is there).

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
        self, init: int, handle: str, images: Path, deadline: float, *, goes_on: bool = False
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
        pids: dict[int, int] = {}
        hangs = machine.fault("restore-hangs")
        for process in snapshot.processes[: 1 if hangs else None]:
            again = machine.recreate(process)
            again.uid, again.handle = self._init(init).uid, handle
            pids[process.pid] = again.pid
            again.parent = pids.get(process.parent, init)
            again.signalled = False
        machine.frozen.add(handle)
        if stopped:
            machine.stopped.add(handle)
        await asyncio.sleep(deadline if hangs else machine.step())
        if hangs:
            raise DeadlineError("criu did not end")
        machine.dumps.pop(init, None)
        if lazy:
            machine.paging[init] = str(images)
        if handle in machine.newcomers:
            machine.newcomers.discard(handle)
            machine.ran[handle] = snapshot.ran
            uid = self._init(init).uid
            machine.elsewhere.went_on(machine.name, handle, uid, snapshot.line)
        return {"criu": machine.step()}

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
        """After a second, unless pages-late (after ten) or pages-lost (the container ends)."""
        machine, uid = self._machine, self._init(init).uid
        if init in machine.paging:
            await asyncio.sleep(10.0 if machine.fault("pages-late") else 1.0)
            await self._filled(machine.paging[init], deadline)
        if machine.fault("pages-lost"):
            machine.end_container(uid)
        if machine.paging.pop(init, None) and not machine.procs[init].alive:
            raise RestoreError("lazy-pages was killed")

    async def _filled(self, folder: str, deadline: float) -> None:
        """Nothing is read before it is verified."""
        for _ in range(int(deadline)):
            if folder not in self._machine.unfilled:
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


class FakeGatekeeper:
    """Implements `ports.Gatekeeper`. Faults: shut-fails, open-fails, cut-refused."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def shut(
        self, init: int, on_arrival: Callable[[str], None], deadline: float, port: int = 0
    ) -> None:
        """From now on what `arrive` brings is told."""
        process = self._machine.procs.get(init)
        if process is None or not process.alive:
            raise NotFoundError(f"process {init} is gone")
        if self._machine.fault("shut-fails"):
            raise OSError(1, "Operation not permitted")
        self._machine.gates[process.uid] = on_arrival

    async def cut(self, init: int, deadline: float) -> None:
        """Nothing passes any more."""
        if self._machine.fault("cut-refused"):
            raise RefusedError("its pod shares the node's network (hostNetwork)")
        self._machine.cut.add(self._machine.procs[init].uid)

    async def open(self, init: int, deadline: float) -> None:
        """TCP passes."""
        if self._machine.fault("open-fails"):
            raise OSError(1, "Operation not permitted")
        process = self._machine.procs.get(init)
        if process is not None and process.alive:
            self._machine.gates.pop(process.uid, None)


class FakeVault:
    """Implements `ports.Vault`, of this node's NVMe and an object store.

    Faults: begin-fails, seal-fails (no space), seal-hangs, corrupt, fill-fails, store-down (of
    packing and fetching), drop-fails. Sees that nobody's last state is dropped.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def begin(self, uid: PodUid) -> Path:
        """Empty."""
        if self._machine.fault("begin-fails"):
            raise OSError(28, "No space left on device")
        await self.abandon(uid)
        return Path("/dumps") / uid

    async def abandon(self, uid: PodUid) -> None:
        """Dropped."""
        self._see_unread(f"/dumps/{uid}")
        self._machine.folders.pop(f"/dumps/{uid}", None)
        self._machine.unfilled.discard(f"/dumps/{uid}")

    async def begun(self) -> tuple[PodUid, ...]:
        """Those of which something was dumped or fetched."""
        folders = [Path(name) for name in self._machine.folders]
        return tuple(PodUid(one.name) for one in folders if one.parent == Path("/dumps"))

    def _see_unread(self, folder: str) -> None:
        machine = self._machine
        if any(at == folder and machine.procs[init].alive for init, at in machine.paging.items()):
            machine.breach(f"{folder} is dropped while memory comes from it")

    async def seal(self, images: Path, facts: Mapping[str, object], deadline: float) -> ArtifactId:
        """It exists when this returns, or a moment before."""
        machine = self._machine
        await asyncio.sleep(machine.step())
        if machine.fault("seal-hangs"):
            await asyncio.sleep(deadline)
            raise DeadlineError("the disk did not sync")
        if machine.fault("seal-fails"):
            raise OSError(28, "No space left on device")
        snapshot = machine.folders.pop(str(images))
        if not snapshot.whole:
            machine.breach(f"{images} is sealed before it is whole")
        machine.sealed += 1
        artifact = ArtifactId(f"{facts['namespace']}/{facts['pod']}@{_DAY}-{machine.sealed:08x}")
        folder = f"/artifacts/{artifact}"
        machine.folders[folder] = snapshot
        machine.vault[artifact] = Keeping(snapshot, folder, {_LOCAL}, facts)
        await asyncio.sleep(machine.step())
        return artifact

    async def manifest(self, artifact: ArtifactId, deadline: float) -> Manifest:
        """Made of what it was sealed with."""
        await asyncio.sleep(self._machine.step())
        return self._manifest(artifact, self._keeping(artifact))

    async def admit(self, artifact: ArtifactId, into: Into, deadline: float) -> Manifest:
        """Of the pod itself; of another where the machine says what its container is."""
        manifest = self._manifest(artifact, self._keeping(artifact))
        await asyncio.sleep(self._machine.step())
        if sentences := why_refused(manifest, into, 0.0):
            raise RefusedError(" ".join(sentences))
        return manifest

    async def images(self, artifact: ArtifactId, deadline: float, into: Into) -> Path:
        """Its folder."""
        keeping = self._keeping(artifact, _LOCAL)
        await self.admit(artifact, into, deadline)
        await asyncio.sleep(self._machine.step())
        if self._machine.fault("corrupt"):
            raise CorruptError(f"{artifact}: piece 3 of pages-1.img is not what was written")
        return Path(keeping.folder)

    async def lend(self, artifact: ArtifactId, uid: PodUid, deadline: float, into: Into) -> Path:
        """Its folder, in the seat's."""
        folder = await self.images(artifact, deadline, into)
        lent = await self.begin(uid)
        self._machine.folders[str(lent)] = self._machine.folders[str(folder)]
        self._machine.unfilled.add(str(lent))
        return lent

    async def fill(self, artifact: ArtifactId, uid: PodUid, deadline: float) -> None:
        """As long as it is there to be read."""
        folder = f"/dumps/{uid}"
        if folder not in self._machine.unfilled:
            return
        await asyncio.sleep(self._machine.step())
        if self._machine.fault("fill-fails"):
            raise OSError(24, "Too many open files")
        self._keeping(artifact, _LOCAL)
        self._machine.unfilled.discard(folder)

    async def pack(
        self,
        artifact: ArtifactId,
        place: Tier,
        deadline: float,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """There, too."""
        keeping = self._keeping(artifact)
        await asyncio.sleep(self._machine.step())
        if self._machine.fault("store-down"):
            raise RetryableError("the object store does not answer")
        keeping.places.add(place)
        if place is Tier.OBJECT:
            self._machine.elsewhere.objects[artifact] = keeping

    async def fetch(self, artifact: ArtifactId, images: Path, deadline: float, into: Into) -> None:
        """Into a folder."""
        keeping = self._keeping(artifact)
        await self.admit(artifact, into, deadline)
        await asyncio.sleep(self._machine.step())
        if self._machine.fault("store-down"):
            raise RetryableError("the object store does not answer")
        self._machine.folders[str(images)] = keeping.snapshot

    async def verify(self, artifact: ArtifactId, place: Tier, deadline: float) -> None:
        """Right."""
        self._keeping(artifact, place)

    async def drop(self, artifact: ArtifactId, place: Tier, *, forget: str = "") -> None:
        """Unless it is the last."""
        machine, keeping = self._machine, self._found(artifact)
        if keeping is None or place not in keeping.places:
            return
        if machine.fault("drop-fails"):
            raise RetryableError("the disk does not answer")
        if keeping.places == {place}:
            self._forget(artifact, keeping, place, forget)
        keeping.places.discard(place)
        if place is _LOCAL:
            self._see_unread(keeping.folder)
            machine.folders.pop(keeping.folder, None)
        else:
            machine.elsewhere.forget_object(artifact)

    def _forget(self, artifact: ArtifactId, keeping: Keeping, place: Tier, why: str) -> None:
        machine, uid = self._machine, keeping.snapshot.uid
        if not why:
            raise RefusedError(f"{artifact} has no other verified copy")
        init, handle = machine.inits.get(uid, 0), keeping.snapshot.handle
        latest = machine.ran.get(handle, 0)
        ended = machine.dumps.get(init) is DumpState.PARKED and machine.procs[init].alive
        others = machine.elsewhere.others(artifact, keeping.snapshot, machine.name, place)
        # What a container of before has left is no state of the present one.
        present = any(p.parent == init and p.handle == handle for p in machine.procs.values())
        needed = present and keeping.snapshot.ran == latest and not others
        elsewhere, line = machine.elsewhere, keeping.snapshot.line
        awaited = not others and elsewhere.awaited(uid, keeping.snapshot.ran, line)
        if (ended and needed and not machine.given_up(uid)) or awaited:
            machine.breach(f"{uid} lost its last state: {why}")
        machine.vault.pop(artifact, None)

    async def ls(self, place: Tier) -> tuple[Sealed, ...]:
        """Oldest first."""
        machine = self._machine
        kept = machine.elsewhere.objects if place is Tier.OBJECT else machine.vault
        return tuple(
            Sealed(name, one.snapshot.uid, one.snapshot.size)
            for name, one in kept.items()
            if place in one.places
        )

    def _manifest(self, artifact: ArtifactId, keeping: Keeping) -> Manifest:
        snapshot = keeping.snapshot
        fields = {**asdict(_FACTS), **keeping.facts, "pod_uid": snapshot.uid}
        facts = facts_of(fields)
        return Manifest(VERSION, artifact, _DAY, PACKED, facts, (), snapshot.size, snapshot.size)

    def _found(self, artifact: ArtifactId) -> Keeping | None:
        """What is here; of others' states what is in the object store."""
        mine = self._machine.vault.get(artifact)
        there = self._machine.elsewhere.objects.get(artifact)
        return mine or (there and replace(there, places={Tier.OBJECT}))

    def _keeping(self, artifact: ArtifactId, place: Tier | None = None) -> Keeping:
        keeping = self._found(artifact)
        if keeping is None or (place is not None and place not in keeping.places):
            raise NotFoundError(f"no artifact {artifact} is in {place or 'any place'}")
        return keeping
