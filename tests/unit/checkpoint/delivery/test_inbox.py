"""What came from another node is believed, and may come, only as far as it was looked at."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kybernate.checkpoint.delivery import inbox as inboxes
from kybernate.checkpoint.delivery import incoming as incoming_
from kybernate.checkpoint.delivery import room as rooms
from kybernate.checkpoint.delivery.inbox import Inbox
from kybernate.checkpoint.delivery.room import Room
from kybernate.checkpoint.places import open_place, read_manifest
from kybernate.checkpoint.raw import seal
from kybernate.checkpoint.raw.stream import COPY, Same, Seen, Whole, Written, whole_files
from kybernate.checkpoint.verify import verify
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.errors import CorruptError, DeadlineError, NotFoundError, RefusedError
from kybernate.lib.deadline import Deadline
from kybernate.types import PodRef, PodUid
from tests.unit.checkpoint.kit import KEYS, KilledError, draft, exists, make_dump, open_below
from tests.unit.checkpoint.test_power import Disk

HERE = PodUid("1b2c")
POD = PodRef("team-a", "llama-0", PodUid("5e1f"))
LIMIT = 60.0


class Sent:
    """A state that is sealed on the one node, and the other node's place and inbox."""

    def __init__(self, tmp_path, there=None) -> None:
        self.source = open_place(str(tmp_path / "source"))
        self.there = open_place(str(there or tmp_path / "there"))
        dump = make_dump(self.source.local / ".begun" / "x")
        self.manifest = seal.seal(self.source, dump, draft(), KEYS, Deadline(LIMIT))
        self.artifact = self.manifest.id
        self.signed = bytes(self.source.objects.get(layout.manifest_key(self.artifact)))
        self.restart()

    def restart(self) -> None:
        """The other node's agent, or the node."""
        self.inbox = Inbox(self.there, KEYS, Seen())

    def send(self, names=None) -> None:
        names = names or [file.name for file in self.manifest.files]
        incoming = self.inbox.receiving(HERE, "")
        try:
            images = seal.images_of(self.source, self.manifest)
            for part in whole_files(images, iter(names), Deadline(LIMIT)):
                incoming.take(part)
        finally:
            incoming.close()

    def accept(self, pod=POD):
        return self.inbox.accept(pod, HERE, self.artifact, self.signed)

    def delivered(self) -> None:
        self.send()
        assert self.accept() == ()

    @property
    def home(self):
        return self.there.local / layout.folder(self.artifact)

    def see_whole(self) -> None:
        verify(self.there, read_manifest(self.there, self.artifact, KEYS), KEYS, Deadline(LIMIT))


@pytest.fixture
def sent(tmp_path):
    return Sent(tmp_path)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "empty file": lambda home: (home / "images" / "pages-1.img").write_bytes(b""),
    "one bit": lambda home: flip(home / "images" / "pages-1.img"),
    "no file": lambda home: (home / "images" / "core-1.img").unlink(),
    "no hashes": lambda home: (home / "pieces").unlink(),
    "other hashes": lambda home: flip(home / "pieces"),
    "empty manifest": lambda home: (home / "manifest").write_bytes(b""),
    "other manifest": lambda home: flip(home / "manifest"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_a_power_cut_left_of_a_state_is_sent_again(sent, damage):
    sent.delivered()
    damage(sent.home)
    sent.restart()
    assert set(sent.accept()) == {file.name for file in sent.manifest.files}
    assert not sent.home.exists()
    sent.delivered()
    sent.see_whole()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_a_power_cut_left_of_a_state_is_not_here(sent, damage):
    sent.delivered()
    assert sent.inbox.is_here(sent.artifact)
    damage(sent.home)
    sent.restart()
    with pytest.raises((CorruptError, RefusedError)):
        sent.inbox.see_whole(sent.artifact)
    assert sent.home.exists(), "who only looks removes nothing"
    assert not sent.inbox.is_here(sent.artifact)
    assert not sent.home.exists()
    with pytest.raises(NotFoundError):
        sent.inbox.see_whole(sent.artifact)


def test_a_state_that_is_whole_is_read_once_by_each_process(sent, monkeypatch):
    sent.delivered()
    real, read = inboxes.verify_raw, []
    monkeypatch.setattr(inboxes, "verify_raw", lambda *a: (read.append(1), real(*a)))
    assert sent.inbox.is_here(sent.artifact)
    assert read == [], "its pieces were hashed as they came"
    sent.restart()
    assert sent.inbox.is_here(sent.artifact)
    assert sent.accept() == ()
    assert sent.inbox.is_here(sent.artifact)
    assert read == [1]


def test_reading_a_whole_state_has_a_deadline(sent):
    sent.delivered()
    slow = Inbox(sent.there, KEYS, Seen(), patience=0.0)
    with pytest.raises(DeadlineError):
        slow.is_here(sent.artifact)
    assert sent.home.exists()


def test_no_file_is_synced_while_somebody_waits(sent, monkeypatch):
    real, synced = os.fsync, []

    def fsync(file):
        synced.append(stat.S_ISREG(os.fstat(file).st_mode))
        real(file)

    sent.send()
    monkeypatch.setattr(os, "fsync", fsync)
    assert sent.accept() == ()
    assert not any(synced)
    sent.inbox.sync(sent.artifact)
    assert sum(synced) == len(sent.manifest.files) + 2


def test_power_fails_at_any_sync_of_what_was_delivered(tmp_path, monkeypatch):
    lost, at, over = 0, 0, False
    while not over:
        at += 1
        disk = Disk(tmp_path / f"there-{at}", monkeypatch)
        sent = Sent(tmp_path / f"{at}", disk.root)
        sent.delivered()
        disk.at = disk.syncs + at
        try:
            sent.inbox.sync(sent.artifact)
            over = True
        except KilledError:
            pass
        sent.there = disk.after(tmp_path / f"after-{at}")
        if exists(sent.there, sent.artifact):
            sent.see_whole()
        else:
            assert not over, "it was told to be on the disk"
            lost += 1
    assert lost > 5


# --- whose it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pod", [("team-a", "other"), ("team-b", "5e1f")])
def test_a_state_of_another_pod_is_not_kept(sent, pod):
    sent.send()
    with pytest.raises(RefusedError, match="is a state of pod team-a/5e1f"):
        sent.accept(PodRef(pod[0], "x", PodUid(pod[1])))
    assert not sent.home.exists()


# --- how much may come ----------------------------------------------------------------------------


def test_more_than_nvme_has_room_for_is_refused(sent):
    total = sent.manifest.total
    sent.inbox.room.limit = total - 1
    with pytest.raises(RefusedError, match="nvme_bytes"):
        sent.send()
    came = sum(path.stat().st_size for path in (sent.there.local / ".arriving").rglob("*.img"))
    assert came < total
    sent.inbox.room.limit = total
    sent.delivered()
    assert sent.inbox.room._taken == {True: 0, False: 0}


def test_references_count_like_the_bytes_that_they_stand_for(sent):
    sent.inbox.room.limit = 3 << 20
    staged = sent.inbox.receiving(HERE, "team-a/a@20260131T120000Z-00000001")
    staged.take(Written("pages-1.img", 0, bytes(1 << 20)))
    staged.close()
    incoming = sent.inbox.receiving(HERE, "")
    for at in range(3):
        incoming.take(Same("pages-1.img", at << 20, "pages-1.img", 0, 1 << 20))
    with pytest.raises(RefusedError, match="nvme_bytes"):
        incoming.take(Same("pages-1.img", 3 << 20, "pages-1.img", 0, 1 << 20))
    incoming.close()
    sent.inbox.drop(HERE)
    assert sent.inbox.room._taken == {True: 0, False: 0}


def test_a_stream_that_begins_anew_is_not_counted_twice(sent):
    sent.inbox.room.limit = sent.manifest.total
    sent.send()
    sent.delivered()


def test_files_are_counted(sent, monkeypatch):
    monkeypatch.setattr(rooms, "MOST_FILES", 3)
    incoming = sent.inbox.receiving(HERE, "")
    for number in range(3):
        incoming.take(Whole(f"core-{number}.img", 0))
    with pytest.raises(RefusedError, match="3 files at most"):
        incoming.take(Whole("core-3.img", 0))
    with pytest.raises(RefusedError, match="is no name"):
        incoming.take(Whole("c" * 201, 0))
    incoming.close()


def test_files_that_are_all_there_are_closed(sent):
    incoming = sent.inbox.receiving(HERE, "")
    before = open_below(sent.there.local)
    for number in range(50):
        incoming.take(Written(f"core-{number}.img", 0, b"x"))
        incoming.take(Whole(f"core-{number}.img", 1))
    assert open_below(sent.there.local) < before + 25
    incoming.close()


def test_of_files_that_grow_together_a_few_are_open(sent, monkeypatch):
    """A dump has a file of memory for each process, and whoever sends may end none of them."""
    monkeypatch.setattr(incoming_, "_MOST_OPEN", 4, raising=False)
    names = [f"pages-{number}.img" for number in range(40)]
    staged = sent.inbox.receiving(HERE, "team-a/a@20260131T120000Z-00000001")
    before = open_below(sent.there.local)
    for name in names:
        staged.take(Written(name, 0, name.encode()))
    assert before < open_below(sent.there.local) < before + 25
    staged.close()
    incoming = sent.inbox.receiving(HERE, "")
    for at in range(3):
        for name in names:
            size = len(name)
            if at == 1:
                incoming.take(Same(name, size, name, 0, size))
            else:
                incoming.take(Written(name, at * size, name.encode()))
    assert before < open_below(sent.there.local) < before + 25
    for name in names:
        incoming.take(Whole(name, 3 * len(name)))
    incoming.close()
    images = sent.there.local / ".arriving" / HERE / "images"
    assert {path.name: path.read_text() for path in images.iterdir()} == {
        name: 3 * name for name in names
    }
    for file in incoming._files.values():
        file.digests()  # a thread that hashes one has it open meanwhile
    assert open_below(sent.there.local) <= before


def test_a_file_that_can_not_begin_is_closed(sent, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    incoming = sent.inbox.receiving(HERE, "")
    before = open_below(sent.there.local)
    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(OSError, match="No space"):
        incoming.take(Written("core-1.img", 0, b"x"))
    assert open_below(sent.there.local) == before
    incoming.close()


def test_a_manifest_of_no_files_is_none(sent):
    """Signed by a node that is trusted, and sent without any part."""
    body, _ = KEYS.opened(sent.signed, "a manifest")
    bare = manifests.encode(replace(manifests.decode(body), files=(), total=0, stored=0))
    sent.signed = KEYS.sign(bare)
    with pytest.raises(CorruptError, match="files are none"):
        sent.accept()


def test_some_of_the_disk_is_left_for_others(tmp_path, monkeypatch):
    disk = SimpleNamespace(f_blocks=1 << 20, f_frsize=4096, f_bavail=1 << 20)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    room = Room(tmp_path)
    room.see(HERE, "a", COPY, staged=False)
    disk.f_bavail = (1 << 20) // 50
    room.see(HERE, "a", 2 * COPY, staged=False)
    with pytest.raises(RefusedError, match="stay free for others"):
        room.see(HERE, "a", 20 * COPY, staged=False)
    room.see(HERE, "a", 0, staged=False)
    with pytest.raises(RefusedError, match="below 0"):
        room.see(HERE, "a", -1, staged=False)
