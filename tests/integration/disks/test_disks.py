"""What was acknowledged is there after a crash, or its failure was told: on a disk that loses what
was not synced, whose fsync fails once and then says that all is well, and that gets full."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from contextlib import suppress
from random import Random

import pytest

from kybernate.adapters.files.journal import FileJournal
from kybernate.adapters.objects.objects import LocalObjects, make_folder
from kybernate.checkpoint.delivery.inbox import Inbox
from kybernate.checkpoint.places import open_place, read_manifest
from kybernate.checkpoint.raw.stream import Seen
from kybernate.checkpoint.vault import Vault
from kybernate.checkpoint.verify import verify
from kybernate.core.artifacts import layout
from kybernate.errors import ConflictError, KybernateError, RetryableError
from kybernate.lib.deadline import Deadline
from kybernate.types import PodUid, Tier
from registry.database import Database
from registry.pods import Pods
from tests.kit.breaks import lossyfs
from tests.unit.checkpoint.kit import FACTS, KEYS, contents, make_dump

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(lossyfs.why_not()), reason=lossyfs.why_not() or "-"),
]

UID = PodUid("5e1f")
STORIES = 8


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    with lossyfs.disk(tmp_path_factory.mktemp("lossy")) as one:
        yield one


def misfortune(disk, random, *patterns):
    """Perhaps something goes wrong next."""
    disk.full(None)
    chance = random.random()
    if chance < 0.3:
        disk.fails(random.choice(patterns))
    elif chance < 0.45:
        disk.full(random.randrange(3000))


class TestTheDiskItself:
    def test_what_is_not_synced_is_lost_and_a_second_sync_brings_nothing_back(self, disk):
        path = disk.path / "file"
        with path.open("wb") as file:
            file.write(b"kept")
            file.flush()
            os.fsync(file.fileno())
            self.sync(disk.path)
            file.write(b" lost")
            file.flush()
            disk.fails("/file")
            with pytest.raises(OSError, match="Input/output error"):
                os.fsync(file.fileno())
            os.fsync(file.fileno())
            (disk.path / "unnamed").touch()
        assert path.read_bytes() == b"kept lost"
        disk.crash()
        assert path.read_bytes() == b"kept\0\0\0\0\0"
        assert not (disk.path / "unnamed").exists()

    def sync(self, folder):
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


@pytest.mark.parametrize("seed", range(STORIES))
def test_the_journal(disk, seed):
    random, folder = Random(seed), disk.path / f"journal-{seed}"
    name = f"/{folder.name}"
    told: dict[str, int] = {}
    tried: dict[str, set[int]] = {}

    async def story() -> FileJournal:
        journal = FileJournal(folder / "journal", "boot-1", rewrite_at=random.choice((8, 4096)))
        journal.load()
        for number in range(40):
            misfortune(disk, random, f"{name}/journal", f"{name}/journal.new", name)
            key = f"k{random.randrange(4)}"
            tried.setdefault(key, set()).add(number)
            with suppress(OSError):
                await journal.put(key, {"n": number}, synced=True)
                told[key] = number
        return journal

    folder.mkdir()
    sync_up(folder)
    journal = asyncio.run(story())
    disk.full(None)
    disk.crash()
    with suppress(OSError):
        journal.close()
    after = FileJournal(folder / "journal", "boot-1")
    found = {key: record["n"] for key, record in after.load().items()}
    after.close()
    assert told
    for key, number in told.items():
        assert found[key] >= number, key
        assert found[key] in tried[key]


def sync_up(folder):
    TestTheDiskItself().sync(folder.parent)


def leases(disk, folder, seed):
    """Tokens that were told, by pod."""
    random, name, told = Random(seed), f"/{folder.name}", {}
    database = Database(f"sqlite:///{folder}/registry.db", limit_s=2.0, threads=2)
    database.prepare()
    pods = Pods(database, 600.0)
    for number in range(40):
        misfortune(disk, random, f"{name}/registry.db-wal", f"{name}/registry.db", name)
        with suppress(RetryableError):
            told[f"p{number % 7}"] = pods.lease(("ns", f"p{number % 7}"), "n1", 60.0).token
        if random.random() < 0.2:
            with suppress(Exception), database._engine.connect() as connection:
                connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(RESTART)")
    return told


def killed_after(work):
    """What it returns, in a process that closes nothing: what it has mapped goes with the disk."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    with os.fdopen(reading) as said:
        found = said.read()
    os.waitpid(child, 0)
    return json.loads(found)


@pytest.mark.parametrize("seed", range(STORIES))
def test_the_registry_on_sqlite(disk, seed):
    folder = disk.path / f"registry-{seed}"
    folder.mkdir()
    sync_up(folder)
    told = killed_after(lambda: leases(disk, folder, seed))
    disk.full(None)
    disk.crash()

    def found():
        after = Database(f"sqlite:///{folder}/registry.db", limit_s=2.0)
        after.prepare()
        return {uid: Pods(after, 600.0).get(("ns", uid)).token for uid in told}

    assert told
    for uid, token in killed_after(found).items():
        assert token >= told[uid]


@pytest.mark.parametrize("seed", range(STORIES))
def test_a_saved_state(disk, seed):
    random, folder = Random(seed), disk.path / f"states-{seed}"
    name = f"/{folder.name}"
    folder.mkdir()
    sync_up(folder)
    near, far = open_place(str(folder / "near"), "near"), open_place(str(folder / "far"), "far")
    vault = Vault({Tier.NVME: near, Tier.OBJECT: far}, Tier.NVME, KEYS)
    sealed, packed, dropped = {}, set(), set()

    async def story():
        for number in range(8):
            misfortune(disk, random, f"{name}*", f"{name}/near/*", f"{name}/far/*", f"{name}/*s")
            with suppress(KybernateError, OSError):
                images = make_dump(await vault.begin(UID), number, blocks=6)
                saved = contents(images)
                artifact = await vault.seal(images, FACTS, 60)
                sealed[artifact] = saved
            for one in sorted(sealed.keys() - packed):
                misfortune(disk, random, f"{name}/far*", f"{name}/far/*")
                with suppress(KybernateError, OSError):
                    await vault.pack(one, Tier.OBJECT, 60)
                    packed.add(one)
                    await vault.drop(one, Tier.NVME)
                    dropped.add(one)

    asyncio.run(story())
    disk.full(None)
    vault.close()
    disk.crash()
    assert sealed
    for artifact in sealed.keys() - packed:
        verify(near, read_manifest(near, artifact, KEYS), KEYS, Deadline(60))
    for artifact in packed:
        verify(far, read_manifest(far, artifact, KEYS), KEYS, Deadline(60))


@pytest.mark.parametrize("fails", ["", "/packs", "/packs/team-a", "/packs/team-a/*"])
def test_an_object_whose_folder_was_not_synced_at_first(disk, fails):
    folder = disk.path / f"objects-{fails.count('/')}{len(fails)}"
    folder.mkdir()
    sync_up(folder)
    disk.fails(f"/{folder.name}{fails}")
    key = "packs/team-a/0"
    with pytest.raises(OSError, match="Input/output error"):
        LocalObjects(folder).put(key, b"data", create=True)
    with suppress(ConflictError):
        LocalObjects(folder).put(key, b"data", create=True)
    disk.crash()
    assert bytes(LocalObjects(folder).get(key)) == b"data"


def test_an_object_whose_folder_was_made_by_who_was_killed(disk):
    folder = disk.path / "made"
    (folder / "packs" / "team-a").mkdir(parents=True)
    LocalObjects(folder).put("packs/team-a/0", b"data")
    disk.crash()
    assert bytes(LocalObjects(folder).get("packs/team-a/0")) == b"data"


@pytest.mark.parametrize("what", ["images/pages-1.img", "pieces", "manifest", "images"])
def test_a_state_that_came_from_another_node(disk, tmp_path, what):
    home = open_place(str(tmp_path / "home"), "home")
    vault = Vault({Tier.NVME: home}, Tier.NVME, KEYS)

    async def sealed():
        return await vault.seal(make_dump(await vault.begin(UID), blocks=6), FACTS, 60)

    artifact = asyncio.run(sealed())
    vault.close()
    folder = disk.path / f"inbox-{what.replace('/', '-')}"
    folder.mkdir()
    sync_up(folder)
    there = open_place(str(folder), "there")
    make_folder(folder / layout.folder(artifact))
    shutil.copytree(
        tmp_path / "home" / layout.ARTIFACTS, folder / layout.ARTIFACTS, dirs_exist_ok=True
    )
    inbox = Inbox(there, KEYS, Seen())
    disk.fails(f"*/{layout.folder(artifact)}{what}")
    with pytest.raises(OSError, match="Input/output error"):
        inbox.sync(artifact)
    inbox.sync(artifact)
    disk.crash()
    verify(there, read_manifest(there, artifact, KEYS), KEYS, Deadline(60))
