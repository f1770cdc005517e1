"""A call that was given up while it hung at a store or a disk, and goes on when its folder is
another's already."""

from __future__ import annotations

import asyncio
import errno
import os
import threading

import pytest

from kybernate.adapters.objects.objects import LocalObjects
from kybernate.checkpoint import marks
from kybernate.checkpoint.packs import fetch
from kybernate.checkpoint.packs.target import Target
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import Place
from kybernate.checkpoint.raw import lending, seal
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.into import Into
from kybernate.types import PodUid, Tier
from tests.unit.checkpoint.kit import FACTS, KEYS, NOW, contents, make_dump, place

UID = PodUid("5e1f")
INTO = Into("team-a", UID)


class Hang:
    """Reads, of which number `at` hangs until it is let go; 0 for none."""

    def __init__(self, at=0):
        self.arm(at)
        self.hangs, self.go = threading.Event(), threading.Event()

    def arm(self, at):
        self.at, self.seen = at, 0

    def read(self):
        self.seen += 1
        if self.seen == self.at:
            self.hangs.set()
            self.go.wait(60)


class Rig:
    """A node with NVMe and a store, whose reads may hang; `ended` once the first of `calls` has."""

    def __init__(self, root, monkeypatch):
        self.packs, self.pieces = Hang(), Hang()
        self.ended = threading.Event()
        rig = self

        class Store(LocalObjects):
            def get(self, key, start=0, length=None):
                if key.startswith(layout.PACKS):
                    rig.packs.read()
                return super().get(key, start, length)

        read = PieceReader.read

        def read_piece(*given):
            rig.pieces.read()
            return read(*given)

        monkeypatch.setattr(PieceReader, "read", read_piece)
        for where, name in ((fetch, "fetch"), (seal, "copy_raw"), (lending, "lay_out")):
            monkeypatch.setattr(where, name, self._told(getattr(where, name)))
        self.nvme = place(root / "nvme")
        store = Place("store", Store(root / "store"), transfers=1)
        self.vault = Vault({Tier.NVME: self.nvme, Tier.OBJECT: store}, Tier.NVME, KEYS, lambda: NOW)

    def _told(self, call):
        def work(*given):
            ended = self.ended
            try:
                return call(*given)
            finally:
                ended.set()

        return work

    async def saved(self, seed, blocks, *tiers):
        images = make_dump(await self.vault.begin(UID), seed, blocks)
        artifact = await self.vault.seal(images, FACTS, 60)
        if Tier.OBJECT in tiers:
            await self.vault.pack(artifact, Tier.OBJECT, 60)
        if Tier.NVME not in tiers:
            await self.vault.drop(artifact, Tier.NVME)
        return artifact

    async def given_up(self, hang, call):
        """Whether it came as far as to hang."""
        doing = asyncio.ensure_future(call)
        hanging = asyncio.ensure_future(asyncio.to_thread(hang.hangs.wait, 60))
        await asyncio.wait((doing, hanging), return_when=asyncio.FIRST_COMPLETED)
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        hung = hang.hangs.is_set()
        hang.hangs.set()
        await hanging
        return hung

    async def goes_on(self, hang):
        self.ended.clear()
        hang.go.set()
        assert await asyncio.to_thread(self.ended.wait, 60)


@pytest.fixture
def rig(tmp_path, monkeypatch):
    found = Rig(tmp_path, monkeypatch)
    yield found
    found.packs.go.set()
    found.pieces.go.set()
    found.vault.close()


@pytest.mark.parametrize("kind", ["packs", "pieces"])
def test_a_fetch_touches_nothing_that_was_lent_in_its_place(rig, kind):
    """At whatever read it hung: a file of the same name is an artifact's own there."""

    async def story():
        old = await rig.saved(1, 60, Tier.OBJECT if kind == "packs" else Tier.NVME)
        new = await rig.saved(2, 20, Tier.NVME)
        before = contents(rig.nvme.local / layout.folder(new) / layout.IMAGES)
        at = 0
        while True:
            at += 1
            images = await rig.vault.begin(UID)
            setattr(rig, kind, hang := Hang(at))
            if not await rig.given_up(hang, rig.vault.fetch(old, images, 60, INTO)):
                break
            await rig.vault.lend(new, UID, 60, INTO)
            await rig.goes_on(hang)
            assert contents(rig.nvme.local / layout.folder(new) / layout.IMAGES) == before, at
            await rig.vault.fill(new, UID, 60)
            assert {**contents(images), **before} == contents(images)
        assert at > 4

    asyncio.run(story())


def test_a_fetch_tells_nothing_of_the_memory_that_another_one_brings(rig):
    """CRIU would read zeros that are said to be there, or give up what comes."""

    async def story():
        old = await rig.saved(1, 60, Tier.OBJECT)
        first, images = rig.packs, await rig.vault.begin(UID)
        given = old, images, 60, INTO, None
        await rig.given_up(first, rig.vault.fetch(*given, lambda: first.arm(1)))
        lost = [marks.Marks(path) for path in marks.pages_of(images)]
        second = rig.packs = Hang()
        assert await rig.vault.begin(UID) == images
        doing = asyncio.ensure_future(rig.vault.fetch(*given, lambda: second.arm(1)))
        assert await asyncio.to_thread(second.hangs.wait, 60)
        await rig.goes_on(first)
        now = [marks.Marks(path) for path in marks.pages_of(images)]
        assert {state for one in now for state in one.states()} == {marks.COMES}
        assert {state for one in lost for state in one.states()} == {marks.LOST}
        second.go.set()
        await doing

    asyncio.run(story())


def test_nothing_is_lent_where_a_dump_is_made_since(rig):
    """It would be written over."""

    async def story():
        artifact, at = await rig.saved(1, 20, Tier.NVME), 0
        while True:
            at += 1
            hang = rig.pieces = Hang(at)
            if not await rig.given_up(hang, rig.vault.lend(artifact, UID, 60, INTO)):
                break
            images = await rig.vault.begin(UID)
            await rig.goes_on(hang)
            assert list(images.iterdir()) == [], at
        assert at > 2

    asyncio.run(story())


def test_what_is_linked_elsewhere_is_not_written(tmp_path):
    own, lent = tmp_path / "own", tmp_path / "lent"
    own.write_bytes(b"a state")
    os.link(own, lent)
    with pytest.raises(OSError, match="it is lent") as told:
        Target.open(lent, 3)
    assert told.value.errno == errno.EMLINK
    assert own.read_bytes() == b"a state"
