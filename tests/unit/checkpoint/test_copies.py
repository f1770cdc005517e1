"""A vault of whose copies one can't be read, is away for a moment, or hangs."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from contextlib import contextmanager

import pytest

from kybernate.adapters.objects.objects import LocalObjects
from kybernate.checkpoint.places import Place
from kybernate.checkpoint.raw import seal
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.into import Into
from kybernate.errors import CorruptError, DeadlineError, RefusedError, RetryableError
from kybernate.lib.deadline import Deadline
from kybernate.types import PodUid, Tier

from .kit import FACTS, KEYS, NOW, attempt, contents, draft, make_dump, place

UID = PodUid("5e1f")
INTO = Into("team-a", UID)
MANIFEST, PACK, PIECES = layout.MANIFEST, layout.PACKS, layout.PIECES


class Failing(LocalObjects):
    """What is read or listed there raises `error`, where its key holds `match`."""

    error: Exception | None = None
    match = ""

    def get(self, key, start=0, length=None):
        self.see(key)
        return super().get(key, start, length)

    def head(self, key):
        if key.startswith(PACK):
            self.see(key)
        return super().head(key)

    def scan(self, prefix):
        self.see(prefix)
        return super().scan(prefix)

    def see(self, key):
        if self.error is not None and self.match in key:
            raise self.error

    @contextmanager
    def failing(self, error, match=""):
        self.error, self.match = error, match
        yield
        self.error = None


class Rig:
    """A state that is raw on NVMe and packed in a store."""

    def __init__(self, root):
        self.back = root / "back"
        self.root = root
        self.places = {tier: Failing(root / tier) for tier in (Tier.NVME, Tier.OBJECT)}
        self.nvme, self.store = self.places.values()
        self.vault = self.new()

    def new(self):
        places = {
            tier: Place(tier, objects, objects.root if tier is Tier.NVME else None)
            for tier, objects in self.places.items()
        }
        return Vault(places, Tier.NVME, KEYS, now=lambda: NOW)

    async def saved(self, *tiers):
        images = make_dump(await self.vault.begin(UID))
        self.before = contents(images)
        artifact = await self.vault.seal(images, FACTS, 60)
        if Tier.OBJECT in tiers:
            await self.vault.pack(artifact, Tier.OBJECT, 60)
        return artifact

    def folder(self, artifact):
        return self.root / "nvme" / layout.folder(artifact)

    def spoil(self, artifact):
        path = self.folder(artifact) / layout.IMAGES / "core-1.img"
        path.write_bytes(b"y" * path.stat().st_size)

    async def fetched(self, artifact):
        await self.vault.fetch(artifact, self.back, 60, INTO)
        return contents(self.back)


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def run(work):
    return asyncio.run(work)


def eio():
    return OSError(errno.EIO, os.strerror(errno.EIO))


AWAY = RetryableError("the store doesn't answer")


class TestFetch:
    @pytest.mark.parametrize("match", [MANIFEST, PIECES])
    def test_from_a_disk_that_can_not_be_read_another_copy_is_taken(self, rig, match):
        async def story():
            artifact = await rig.saved(Tier.OBJECT)
            with rig.nvme.failing(eio(), match):
                assert await rig.fetched(artifact) == rig.before

        run(story())

    @pytest.mark.parametrize("match", [MANIFEST, PACK])
    def test_a_copy_that_is_away_for_a_moment_is_not_hidden_by_a_damaged_one(self, rig, match):
        async def story():
            artifact = await rig.saved(Tier.OBJECT)
            rig.spoil(artifact)
            with rig.store.failing(AWAY, match), pytest.raises(RetryableError):
                await rig.fetched(artifact)
            # The damaged one is known as such, and asked last now: it still hides nothing.
            with rig.store.failing(AWAY, match), pytest.raises(RetryableError):
                await rig.fetched(artifact)
            assert await rig.fetched(artifact) == rig.before

        run(story())

    def test_nor_by_one_whose_manifest_is_not_believed(self, rig):
        async def story():
            artifact = await rig.saved(Tier.OBJECT)
            (rig.folder(artifact) / MANIFEST).write_bytes(b"forged")
            with rig.store.failing(AWAY, MANIFEST):
                with pytest.raises(RetryableError):
                    await rig.vault.admit(artifact, INTO, 60)
                with pytest.raises(RetryableError):
                    await rig.fetched(artifact)
            assert await rig.fetched(artifact) == rig.before

        run(story())

    def test_where_only_an_unreadable_copy_is_that_is_said_and_nothing_is_given_up(self, rig):
        async def story():
            artifact = await rig.saved()
            with rig.nvme.failing(eio(), PIECES), pytest.raises(OSError, match="Input/output"):
                await rig.fetched(artifact)
            assert await rig.fetched(artifact) == rig.before

        run(story())

    def test_images_that_can_not_be_read_are_given_up_only_for_another_copy(self, rig):
        async def story():
            artifact = await rig.saved(Tier.OBJECT)
            with rig.nvme.failing(eio(), PIECES):
                with pytest.raises(CorruptError, match="can't be read in nvme"):
                    await rig.vault.images(artifact, 60, INTO)
                with rig.store.failing(AWAY), pytest.raises(OSError, match="Input/output"):
                    await rig.vault.images(artifact, 60, INTO)

        run(story())

    def test_a_full_disk_is_told_as_such_whatever_other_copies_there_are(self, rig, monkeypatch):
        async def story():
            artifact = await rig.saved(Tier.OBJECT)
            tried = []

            def full(place, *_):
                tried.append(place.name)
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(rig.vault, "_bring", full)
            with pytest.raises(OSError, match="No space left"):
                await rig.fetched(artifact)
            assert tried == ["nvme"]

        run(story())


def test_a_copy_that_can_not_be_read_counts_for_none(rig):
    async def story():
        artifact = await rig.saved(Tier.OBJECT)
        with rig.nvme.failing(eio(), PIECES):
            assert await rig.fetched(artifact) == rig.before
        with pytest.raises(RefusedError, match="last verified"):
            await rig.vault.drop(artifact, Tier.OBJECT)
        # It can be read again, every byte: then it counts.
        await rig.vault.verify(artifact, Tier.NVME, 60)
        await rig.vault.drop(artifact, Tier.OBJECT)

    run(story())


def test_one_that_can_not_be_read_hides_no_other_and_goes_once_nobody_needs_it(rig):
    async def story():
        artifact, other = await rig.saved(), await rig.saved()
        with rig.nvme.failing(eio(), layout.manifest_key(artifact)):
            listed = {one.id: one for one in await rig.vault.ls(Tier.NVME)}
            assert [listed[each].unread for each in (artifact, other)] == [True, False]
            assert [listed[each].verified for each in (artifact, other)] == [False, True]
            with pytest.raises(OSError, match="Input/output"):
                await rig.vault.drop(artifact, Tier.NVME)
            await rig.vault.drop(artifact, Tier.NVME, forget="its pod was deleted")
        assert [one.id for one in await rig.vault.ls(Tier.NVME)] == [other]
        assert not rig.folder(artifact).exists()
        full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with rig.nvme.failing(full, layout.manifest_key(other)):
            with pytest.raises(OSError, match="Too many"):
                await rig.vault.ls(Tier.NVME)
            with pytest.raises(OSError, match="Too many"):
                await rig.vault.drop(other, Tier.NVME, forget="its pod was deleted")

    run(story())


class TestPackedAgain:
    """A copy in the store that is packed once more, as after a kill, while NVMe's is damaged."""

    def test_a_store_that_does_not_answer_for_a_moment_loses_no_copy(self, rig):
        async def story():
            artifact = await rig.saved(Tier.OBJECT)
            rig.spoil(artifact)
            with rig.store.failing(AWAY, PACK), pytest.raises(RetryableError, match="answer"):
                await rig.vault.pack(artifact, Tier.OBJECT, 60)
            assert await rig.fetched(artifact) == rig.before

        run(story())

    def test_one_that_is_not_whole_stays_until_all_is_there_that_takes_its_place(self, rig):
        """Its other files are the only ones that there are."""

        async def story():
            artifact = await rig.saved(Tier.OBJECT)
            rig.spoil(artifact)
            manifest = rig.root / Tier.OBJECT / layout.manifest_key(artifact)
            before = manifest.read_bytes()
            for pack in (rig.root / Tier.OBJECT / PACK).glob("*/*"):
                pack.rename(rig.root / pack.name)
                with pytest.raises(CorruptError):
                    await rig.vault.pack(artifact, Tier.OBJECT, 60)
                (rig.root / pack.name).rename(pack)
            assert manifest.read_bytes() == before
            assert await rig.fetched(artifact) == rig.before

        run(story())

    def test_one_whose_manifest_reads_wrong_once_stays_too(self, rig, monkeypatch):
        async def story():
            artifact = await rig.saved(Tier.OBJECT)
            rig.spoil(artifact)
            with monkeypatch.context() as patched:
                get = LocalObjects.get
                wrong = {layout.manifest_key(artifact)}

                def read(objects, key, *more):
                    found = get(objects, key, *more)
                    return found[:-1] if objects is rig.store and key in wrong else found

                patched.setattr(LocalObjects, "get", read)
                with pytest.raises(CorruptError):
                    await rig.vault.pack(artifact, Tier.OBJECT, 60)
            assert await rig.fetched(artifact) == rig.before

        run(story())

    def test_one_that_lost_a_pack_is_whole_again(self, rig):
        async def story():
            artifact = await rig.saved(Tier.OBJECT)
            for pack in (rig.root / Tier.OBJECT / PACK).glob("*/*"):
                pack.unlink()
            await rig.vault.pack(artifact, Tier.OBJECT, 60)
            await rig.vault.verify(artifact, Tier.OBJECT, 60)
            await rig.vault.drop(artifact, Tier.NVME)
            assert await rig.fetched(artifact) == rig.before

        run(story())


class Hanging:
    """A call that hangs until it is let go, the first time."""

    def __init__(self, work):
        self.work, self.begun, self.go = work, threading.Event(), threading.Event()
        self.ended = threading.Event()

    def __call__(self, *args):
        first = not self.begun.is_set()
        self.begun.set()
        if first:
            self.go.wait(60)
        try:
            return self.work(*args)
        finally:
            self.ended.set()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("kybernate.checkpoint.vault._LATE", 0.05)


class TestHanging:
    @pytest.mark.parametrize("call", ["begin", "abandon", "drop", "ls"])
    def test_what_has_no_deadline_of_its_own_ends_on_a_disk_that_hangs(
        self, rig, impatient, monkeypatch, call
    ):
        async def story():
            artifact = await rig.saved(Tier.OBJECT)
            vault = rig.vault
            await vault.begin(UID)
            vault.patience = 0.2
            hanging = Hanging(lambda *_: None)
            for name in ("begun.shutil.rmtree", "catalogue.manifests", "drop"):
                monkeypatch.setattr(f"kybernate.checkpoint.vault.{name}", hanging)
            args = {"drop": (artifact, Tier.NVME), "ls": (Tier.NVME,)}.get(call, (UID,))
            try:
                with pytest.raises(DeadlineError):
                    await asyncio.wait_for(getattr(vault, call)(*args), 30)
            finally:
                hanging.go.set()

        run(story())

    def test_one_that_was_given_up_removes_nothing_that_was_begun_since(
        self, rig, impatient, monkeypatch
    ):
        """The disk hangs within a removal, and answers again when a new dump has been asked for."""

        async def story():
            vault = rig.vault
            (await vault.begin(UID) / "old").write_bytes(b"x")
            hanging = Hanging(shutil.rmtree)
            monkeypatch.setattr("kybernate.checkpoint.begun.shutil.rmtree", hanging)
            vault.patience = 0.2
            with pytest.raises(DeadlineError):
                await vault.abandon(UID)
            with pytest.raises(DeadlineError, match="still hangs"):
                await vault.begin(UID)
            vault.patience = 60.0
            beginning = asyncio.ensure_future(vault.begin(UID))
            await asyncio.sleep(0.05)
            assert not beginning.done()
            hanging.go.set()
            images = await beginning
            assert hanging.ended.is_set()
            assert list(images.iterdir()) == []

        run(story())

    def test_of_two_copies_one_stays_though_the_drop_of_the_other_was_given_up(
        self, rig, impatient, monkeypatch
    ):
        async def story():
            artifact, vault = await rig.saved(Tier.OBJECT), rig.vault
            hanging = Hanging(vault._sure)
            monkeypatch.setattr(vault, "_sure", hanging)
            vault.patience = 0.2
            with pytest.raises(DeadlineError):
                await vault.drop(artifact, Tier.NVME)
            vault.patience = 60.0
            dropping = asyncio.ensure_future(vault.drop(artifact, Tier.OBJECT))
            hanging.go.set()
            await dropping
            assert await rig.fetched(artifact) == rig.before
            assert [len(await vault.ls(tier)) for tier in (Tier.NVME, Tier.OBJECT)] == [1, 0]

        run(story())


@pytest.mark.parametrize("match", [MANIFEST, "nothing"])
def test_what_a_killed_agent_had_half_sealed_or_half_dropped_goes_with_the_next(rig, match):
    """Gigabytes that no manifest names, so that nobody else would ever know of them."""
    kept = run(rig.saved())
    images = make_dump(run(rig.vault.begin(PodUid("another"))))
    dying = place(rig.nvme.root, at=1, how="kill-before", match=match)
    blank = draft(7, pod="llama-1")
    attempt(lambda: seal.seal(dying, images, blank, KEYS, Deadline(60)))
    if match == "nothing":
        rig.nvme.delete([layout.manifest_key(blank.id)])
    assert (rig.folder(blank.id) / layout.IMAGES).exists()
    vault = rig.new()
    vault._background.shutdown(wait=True)
    assert not rig.folder(blank.id).parent.exists()
    assert [one.id for one in run(vault.ls(Tier.NVME))] == [kept]
    assert contents(rig.folder(kept) / layout.IMAGES) == rig.before


def test_a_removal_that_failed_half_way_is_gone_on_with(rig, monkeypatch):
    async def story():
        artifact, why = await rig.saved(), "its pod was deleted"
        with monkeypatch.context() as patched:
            patched.setattr("kybernate.checkpoint.raw.seal.shutil.rmtree", raising(eio()))
            with pytest.raises(OSError, match="Input/output"):
                await rig.vault.drop(artifact, Tier.NVME, forget=why)
        await rig.vault.drop(artifact, Tier.NVME, forget=why)
        assert not rig.folder(artifact).exists()

    run(story())


def raising(error):
    def work(*_, **__):
        raise error

    return work
