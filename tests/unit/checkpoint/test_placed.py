"""Copies of packed artifacts beside a node's own: whole or not there, and read before the store."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from kybernate.adapters.objects.objects import LocalObjects
from kybernate.checkpoint.placed import PlacedCopies
from kybernate.checkpoint.places import Place
from kybernate.checkpoint.vault import Vault
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.into import Into
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.deadline import Deadline
from kybernate.types import PodUid, Tier
from tests.kit.clock import until

from .kit import FACTS, KEYS, NOW, BreakingObjects, KilledError, contents, make_dump, place

UID, OTHER = PodUid("5e1f"), PodUid("5e20")
INTO = Into("team-a", UID)
ROOM = 1 << 40


class Nodes:
    """Two nodes with one object store; the second has placed copies."""

    def __init__(self, folder):
        self.folder = folder
        self.store = place(folder / "store")
        self.first = Vault(
            {Tier.NVME: place(folder / "one"), Tier.OBJECT: self.store},
            *(Tier.NVME, KEYS),
            now=lambda: NOW,
        )
        self.beside = place(folder / "two" / ".placed")
        self.copies = PlacedCopies(self.beside, self.store, KEYS)
        self.second = self.vault(self.store)

    def vault(self, store):
        places = {Tier.NVME: place(self.folder / "two"), Tier.OBJECT: store}
        return Vault(places, Tier.NVME, KEYS, beside=self.beside)

    async def packed(self, seed=1):
        images = make_dump(await self.first.begin(UID), seed)
        before = contents(images)
        artifact = await self.first.seal(images, FACTS, 60)
        await self.first.pack(artifact, Tier.OBJECT, 60)
        return artifact, before

    async def fetched(self, artifact, vault=None):
        vault = vault or self.second
        images = await vault.begin(OTHER)
        await vault.fetch(artifact, images, 60, INTO)
        return contents(images)

    def packs(self):
        return {info.key for info in self.beside.objects.scan(layout.PACKS)}


@pytest.fixture
def nodes(tmp_path):
    return Nodes(tmp_path)


def run(story):
    return asyncio.run(story)


def test_a_copy_is_fetched_though_the_store_is_away(nodes):
    async def story():
        artifact, before = await nodes.packed()
        nodes.copies.bring(artifact, ROOM, Deadline(60))
        assert nodes.copies.here() == (artifact,)
        away = BreakingObjects(nodes.store.objects, at=1, how="down")
        away._arrives = lambda _key: (_ for _ in ()).throw(RetryableError("away"))
        vault = nodes.vault(Place("store", away))
        assert await nodes.fetched(artifact, vault) == before

    run(story())


def test_what_lies_there_is_encrypted(nodes):
    async def story():
        artifact, before = await nodes.packed()
        nodes.copies.bring(artifact, ROOM, Deadline(60))
        there = b"".join(bytes(nodes.beside.objects.get(key)) for key in nodes.packs())
        samples = [
            data[:64] for data in before.values() if len(data) >= 64 and data[:64].strip(b"\0")
        ]
        assert samples
        assert not any(sample in there for sample in samples)

    run(story())


def test_a_damaged_copy_is_left_for_the_stores(nodes):
    async def story():
        artifact, before = await nodes.packed()
        nodes.copies.bring(artifact, ROOM, Deadline(60))
        for key in nodes.packs():
            data = bytearray(nodes.beside.objects.get(key))
            data[:] = bytes(len(data))
            nodes.beside.objects.put(key, data)
        assert await nodes.fetched(artifact) == before

    run(story())


def test_by_a_placed_copy_nothing_else_is_dropped(nodes):
    """It may go at any time: it is no reason to let the store's go."""

    async def story():
        artifact, before = await nodes.packed()
        nodes.copies.bring(artifact, ROOM, Deadline(60))
        with pytest.raises(Exception, match="last verified"):
            await nodes.second.drop(artifact, Tier.OBJECT)
        assert await nodes.fetched(artifact) == before

    run(story())


def test_what_has_no_room_is_refused_before_anything_comes(nodes):
    async def story():
        artifact, _ = await nodes.packed()
        with pytest.raises(RetryableError, match="has room for 10 bytes"):
            nodes.copies.bring(artifact, 10, Deadline(60))
        assert nodes.copies.used() == 0
        nodes.copies.bring(artifact, ROOM, Deadline(60))
        # What is here already takes no more.
        nodes.copies.bring(artifact, 0, Deadline(60))

    run(story())


def test_what_several_share_goes_with_the_last_of_them(nodes):
    async def story():
        one, first = await nodes.packed(1)
        two, second = await nodes.packed(1)
        for artifact in (one, two):
            nodes.copies.bring(artifact, ROOM, Deadline(60))
        nodes.copies.drop([one])
        assert nodes.copies.here() == (two,)
        for info in list(nodes.store.objects.scan(layout.PACKS)):
            nodes.store.objects.delete([info.key])
        assert await nodes.fetched(two) == second == first
        nodes.copies.drop([two])
        assert (nodes.copies.here(), nodes.copies.used()) == ((), 0)

    run(story())


def test_progress_is_told(nodes):
    async def story():
        artifact, _ = await nodes.packed()
        told = []
        nodes.copies.bring(artifact, ROOM, Deadline(60), lambda *said: told.append(said))
        assert told[0][0] == 0
        assert told[-1][0] == told[-1][1] == nodes.copies.used()

    run(story())


def test_what_is_not_in_the_store_can_not_be_had(nodes):
    with pytest.raises(NotFoundError, match="is not in"):
        nodes.copies.bring("team-a/llama-0@20260131T120000Z-00000001", ROOM, Deadline(60))


def test_a_call_that_is_cancelled_ends_soon(nodes):
    async def story():
        artifact, _ = await nodes.packed()
        late = Deadline(60)
        late.cancel()
        with pytest.raises(DeadlineError):
            nodes.copies.bring(artifact, ROOM, late)
        assert nodes.copies.here() == ()

    run(story())


@pytest.mark.parametrize("how", ["kill-before", "kill-after", "full", "truncate", "lose", "lie"])
@pytest.mark.parametrize("at", range(1, 9))
def test_half_a_copy_is_none_and_a_second_try_makes_it_whole(nodes, how, at):
    """Whatever goes wrong at whichever call of the disk: no manifest before all that it names."""

    async def story():
        artifact, before = await nodes.packed()
        broken = BreakingObjects(LocalObjects(nodes.folder / "two" / ".placed"), at, how)
        copies = PlacedCopies(Place("beside", broken), nodes.store, KEYS)
        with contextlib.suppress(KilledError, CorruptError, OSError, RetryableError):
            copies.bring(artifact, ROOM, Deadline(60))
        if artifact in nodes.copies.here():
            assert await nodes.fetched(artifact) == before
        nodes.copies.bring(artifact, ROOM, Deadline(60))
        for info in list(nodes.store.objects.scan(layout.PACKS)):
            nodes.store.objects.delete([info.key])
        assert await nodes.fetched(artifact) == before

    run(story())


def test_what_a_killed_agent_has_left_is_swept(nodes):
    async def story():
        artifact, _ = await nodes.packed()

        class Dying(LocalObjects):
            def put(self, key, data, *, create=False):
                if key.startswith(layout.ARTIFACTS):
                    raise KilledError
                super().put(key, data, create=create)

        dying = Place("beside", Dying(nodes.folder / "two" / ".placed"))
        copies = PlacedCopies(dying, nodes.store, KEYS)
        with pytest.raises(KilledError):
            copies.bring(artifact, ROOM, Deadline(60))
        assert nodes.packs()
        nodes.copies.drop(())
        assert nodes.packs() == set()

    run(story())


def test_a_sweep_takes_nothing_of_what_is_just_coming(nodes):
    async def story():
        artifact, before = await nodes.packed()
        begun, go = threading.Event(), threading.Event()

        class Slow(LocalObjects):
            def put(self, key, data, *, create=False):
                super().put(key, data, create=create)
                if key.startswith(layout.ARTIFACTS):
                    return
                begun.set()
                go.wait(10)

        slow = Place("beside", Slow(nodes.folder / "two" / ".placed"))
        copies = PlacedCopies(slow, nodes.store, KEYS)
        coming = asyncio.create_task(asyncio.to_thread(copies.bring, artifact, ROOM, Deadline(60)))
        await asyncio.to_thread(begun.wait, 10)
        copies.drop(())
        go.set()
        await coming
        for info in list(nodes.store.objects.scan(layout.PACKS)):
            nodes.store.objects.delete([info.key])
        assert await nodes.fetched(artifact) == before

    run(story())


class Held(LocalObjects):
    """A place of which a call that puts a pack waits until it may go on."""

    def __init__(self, root):
        super().__init__(root)
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def put(self, key, data, *, create=False):
        super().put(key, data, create=create)
        if not key.startswith(layout.ARTIFACTS):
            self.begun.release()
            self.go.acquire(timeout=10)


def test_two_calls_for_one_copy_do_each_other_no_harm(nodes):
    """One that was cancelled may not have ended when the next begins."""

    async def story():
        artifact, before = await nodes.packed()
        held = Held(nodes.folder / "two" / ".placed")
        copies = PlacedCopies(Place("beside", held), nodes.store, KEYS)
        first = Deadline(60)
        one = asyncio.create_task(asyncio.to_thread(copies.bring, artifact, ROOM, first))
        await asyncio.to_thread(held.begun.acquire, timeout=10)
        two = asyncio.create_task(asyncio.to_thread(copies.bring, artifact, ROOM, Deadline(60)))
        # It has nothing to put where the first has put everything already.
        assert await until(lambda: two.done() or held.begun.acquire(blocking=False), 60)
        first.cancel()
        for _ in range(1000):
            held.go.release()
        with contextlib.suppress(DeadlineError):
            await one
        copies.drop(())
        await two
        assert copies.here() == (artifact,)
        assert await nodes.fetched(artifact) == before

    run(story())


def test_of_a_pack_no_more_is_read_than_it_has(nodes):
    """A rogue node put a larger one under its own pack's name: it must fill nobody's memory."""

    async def story():
        artifact, _ = await nodes.packed()
        for info in list(nodes.store.objects.scan(layout.PACKS)):
            nodes.store.objects.put(info.key, bytes(nodes.store.objects.get(info.key)) * 3)
        read, get = [], nodes.store.objects.get

        def measured(key, start=0, length=None):
            found = get(key, start, length)
            read.append((key, len(found)))
            return found

        nodes.store.objects.get = measured
        with pytest.raises(CorruptError, match="has not the"):
            nodes.copies.bring(artifact, ROOM, Deadline(60))
        packs = [size for key, size in read if key.startswith(layout.PACKS)]
        whole = [info.size for info in nodes.store.objects.scan(layout.PACKS)]
        assert packs
        assert max(packs) <= max(whole) // 3 + 1

    run(story())


def test_a_pack_that_no_release_writes_is_refused_unread(nodes, monkeypatch):
    async def story():
        artifact, _ = await nodes.packed()
        monkeypatch.setattr("kybernate.checkpoint.placed._LARGEST_PACK", 10)
        with pytest.raises(RefusedError, match="which no release writes"):
            nodes.copies.bring(artifact, ROOM, Deadline(60))
        assert nodes.copies.used() == 0

    run(story())


def test_what_was_cut_short_is_known_until_it_is_swept(nodes):
    async def story():
        artifact, _ = await nodes.packed()
        for info in list(nodes.store.objects.scan(layout.PACKS)):
            nodes.store.objects.put(info.key, b"damaged")
        assert nodes.copies.cut_short() == ()
        with pytest.raises(CorruptError):
            nodes.copies.bring(artifact, ROOM, Deadline(60))
        assert nodes.copies.cut_short() == (artifact,)
        nodes.copies.drop(())
        assert nodes.copies.cut_short() == ()

    run(story())
