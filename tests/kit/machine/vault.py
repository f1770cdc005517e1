"""Where artifacts are kept."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.core.artifacts.into import why_refused
from kybernate.core.artifacts.manifest import PACKED, VERSION, Manifest, facts_of
from kybernate.core.artifacts.misfits import refusal
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.ports import DumpState, Sealed
from kybernate.types import ArtifactId, PodUid, Tier
from tests.kit.machine.saved import FACTS, Keeping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.core.artifacts.into import Into
    from tests.kit.machine.world import Machine

_LOCAL = Tier.NVME
_DAY = "20260131T120000Z"


class FakeVault:
    """Implements `ports.Vault`, of this node's NVMe and an object store.

    Faults: begin-fails, seal-fails (no space), seal-hangs, corrupt, fill-fails, store-down (of
    packing and fetching), abandon-fails, drop-fails. Sees that nobody's last state is dropped.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def begin(self, uid: PodUid) -> Path:
        """Empty."""
        if self._machine.fault("begin-fails"):
            raise OSError(28, "No space left on device")
        self._empty(uid)
        return Path("/dumps") / uid

    async def abandon(self, uid: PodUid) -> None:
        """Dropped."""
        if self._machine.fault("abandon-fails"):
            raise OSError(5, "Input/output error")
        self._empty(uid)

    def _empty(self, uid: PodUid) -> None:
        self._see_unread(f"/dumps/{uid}")
        self._machine.folders.pop(f"/dumps/{uid}", None)
        self._machine.coming.pop(f"/dumps/{uid}", None)
        self._machine.lent.pop(f"/dumps/{uid}", None)

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
        if against := why_refused(manifest, into, 0.0):
            raise refusal(against)
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
        self._machine.lent[str(lent)] = artifact, False
        return lent

    async def fill(self, artifact: ArtifactId, uid: PodUid, deadline: float) -> None:
        """Also of a state that was dropped."""
        folder = f"/dumps/{uid}"
        if folder not in self._machine.unfilled():
            return
        await asyncio.sleep(self._machine.step())
        if self._machine.fault("fill-fails"):
            raise OSError(24, "Too many open files")
        self._machine.lent[folder] = artifact, True

    async def lent(self, uid: PodUid) -> str:
        """Until it is abandoned."""
        return self._machine.lent.get(f"/dumps/{uid}", ("", True))[0]

    async def pack(
        self,
        artifact: ArtifactId,
        place: Tier,
        deadline: float,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """There, too. With the fault store-slow it takes as long as that is set."""
        keeping = self._keeping(artifact)
        await asyncio.sleep(self._machine.step())
        if self._machine.fault("store-down"):
            raise RetryableError("the object store does not answer")
        if progress is not None:
            keeping.packing = True
            try:
                await self._half_packed(keeping.snapshot.size // 2, progress)
            finally:
                keeping.packing = False
        keeping.places.add(place)
        if place is Tier.OBJECT:
            self._machine.elsewhere.objects[artifact] = keeping

    async def _half_packed(self, size: int, progress: Callable[[int], None]) -> None:
        progress(size)
        await asyncio.sleep(self._machine.step())
        while "store-slow" in self._machine.faults:
            progress(size)
            await asyncio.sleep(self._machine.step())

    async def fetch(
        self,
        artifact: ArtifactId,
        images: Path,
        deadline: float,
        into: Into,
        progress: Callable[[int], None] | None = None,
        laid_out: Callable[[], None] | None = None,
    ) -> Manifest:
        """Into a folder, which a restore may wait for."""
        keeping = self._keeping(artifact)
        manifest = await self.admit(artifact, into, deadline)
        await asyncio.sleep(self._machine.step())
        if self._machine.fault("store-down"):
            raise RetryableError("the object store does not answer")
        if laid_out is not None:
            await self._as_it_comes(str(images), keeping, laid_out)
        if progress is not None:
            progress(keeping.snapshot.size // 2)
            await asyncio.sleep(self._machine.step())
        self._machine.folders[str(images)] = keeping.snapshot
        self._machine.coming.pop(str(images), None)
        return manifest

    async def _as_it_comes(
        self, folder: str, keeping: Keeping, laid_out: Callable[[], None]
    ) -> None:
        """An agent that dies meanwhile leaves what never comes."""
        self._machine.folders[folder] = keeping.snapshot
        self._machine.coming[folder] = True
        laid_out()
        await asyncio.sleep(self._machine.step())
        for fault, error in (
            ("store-down", RetryableError("the object store does not answer")),
            ("corrupt", CorruptError("pages-1.img is not what was recorded when it was saved")),
        ):
            if self._machine.fault(fault):
                self._machine.coming[folder] = False
                await asyncio.sleep(self._machine.step())
                raise error

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
        elsewhere, line, ran = machine.elsewhere, keeping.snapshot.line, keeping.snapshot.ran
        # What its successor has continued from, or stands in RAM with, is its container's no more.
        needed = needed and ran >= elsewhere.ran.get(line, 0) and not elsewhere.stands(line, ran)
        awaited = not others and elsewhere.awaited(uid, ran, line)
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
        fields = {**asdict(FACTS), **keeping.facts, "pod_uid": snapshot.uid}
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
