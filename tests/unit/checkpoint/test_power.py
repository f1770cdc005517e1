"""Power fails: what was not synced by then is lost, and what was told to be there is there."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from kybernate.checkpoint.places import read_manifest
from kybernate.checkpoint.raw import seal
from kybernate.checkpoint.verify import verify
from kybernate.lib.deadline import Deadline

from .kit import KEYS, KilledError, attempt, contents, draft, exists, make_dump, pack_dump, place

SMALL = 300 << 10
_REAL = os.fsync


class Disk:
    """What a disk below `root` has for certain: names as of their folder's last sync, bytes as of
    their file's. Power fails at the sync number `at`, 0 for never; from then on nothing is synced.
    """

    def __init__(self, root, monkeypatch):
        self.root = root
        self.at = self.syncs = 0
        self._folders, self._files = {}, {}
        self._lock = threading.Lock()
        root.mkdir()
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, file):
        with self._lock:
            self.syncs += 1
            if self.at and self.syncs >= self.at:
                raise KilledError
            _REAL(file)
            found = os.fstat(file)
            if stat.S_ISDIR(found.st_mode):
                listed = os.scandir(file)
                with listed:
                    self._folders[found.st_ino] = {e.name: (e.inode(), e.is_dir()) for e in listed}
            else:
                with open(f"/proc/self/fd/{file}", "rb") as data:
                    self._files[found.st_ino] = data.read()

    def after(self, where):
        """The place as it is when power is back."""
        self._bring_back(self.root.stat().st_ino, where)
        return place(where)

    def _bring_back(self, folder, where):
        where.mkdir()
        for name, (inode, is_dir) in self._folders.get(folder, {}).items():
            if is_dir:
                self._bring_back(inode, where / name)
            else:
                (where / name).write_bytes(self._files.get(inode, b""))


@pytest.fixture
def disk(tmp_path, monkeypatch):
    def made(name):
        return Disk(tmp_path / name, monkeypatch)

    return made


def see_whole(where, artifact):
    verify(where, read_manifest(where, artifact, KEYS), KEYS, Deadline(60))


def test_power_fails_at_any_sync_of_a_seal(disk, tmp_path):
    lost, at, over = 0, 0, False
    while not over:
        at += 1
        one = disk(f"place-{at}")
        dump = make_dump(one.root / ".begun" / "uid", blocks=5)
        before, blank = contents(dump), draft(at)
        one.at = at
        where = place(one.root)
        over = attempt(lambda: seal.seal(where, dump, blank, KEYS, Deadline(60))) is None  # noqa: B023
        after = one.after(tmp_path / f"after-{at}")
        if exists(after, blank.id):
            see_whole(after, blank.id)
            found = seal.images_of(after, read_manifest(after, blank.id, KEYS))
            assert contents(found) == before
        else:
            assert not over, "it was told to be there"
            lost += 1
    assert lost > 8


def test_power_fails_at_any_sync_of_a_pack(disk, tmp_path):
    first, second = make_dump(tmp_path / "a", 1, 8), make_dump(tmp_path / "b", 2, 8)
    lost, at, over = 0, 0, False
    while not over:
        at += 1
        one = disk(f"place-{at}")
        made = pack_dump(first, place(one.root, SMALL), 1)
        one.at = one.syncs + at
        over = attempt(lambda: pack_dump(second, place(one.root, SMALL), 2)) is None  # noqa: B023
        after = one.after(tmp_path / f"after-{at}")
        see_whole(after, made.id)
        if exists(after, draft(2).id):
            see_whole(after, draft(2).id)
        else:
            assert not over, "it was told to be there"
            lost += 1
    assert lost > 3
