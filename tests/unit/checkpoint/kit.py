"""Dumps to save, places that break, and the keys and facts that every test needs."""

from __future__ import annotations

import errno
import os
import random
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kybernate.adapters.keys import artifactkeys
from kybernate.adapters.objects.objects import LocalObjects
from kybernate.checkpoint.packs import fetch, pack
from kybernate.checkpoint.packs.blocks import raw_sources
from kybernate.checkpoint.places import Place, read_manifest
from kybernate.checkpoint.raw import seal
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.chunks.pages import PAGE
from kybernate.errors import KybernateError, RetryableError
from kybernate.lib.deadline import Deadline
from tests.kit.criuimages import write_pages

if TYPE_CHECKING:
    from pathlib import Path

KEYS = artifactkeys.generated()
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
FACTS = {
    "namespace": "team-a",
    "pod": "llama-0",
    "pod_uid": "5e1f",
    "container": "main",
    "image_digest": "sha256:abc",
    "spec_hash": "9f2c",
    "kernel": "6.18.5",
    "criu": "4.2.1",
    "architecture": "x86_64",
    "highest_pid": 312,
    "privileges": {"uids": [0], "gids": [0]},
}


class KilledError(BaseException):
    """The process is gone: nothing it would do any more is done."""


class BreakingObjects:
    """A place in which the call number `at` goes wrong, counted from 1; 0 for none.

    `how`: `kill-before` and `kill-after` end the process there; `full`, `down` are errors of one
    call; `truncate` and `lose` put less than was given, and say nothing; `lie` reads other bytes.
    `slow` answers when `deadline` has passed.
    """

    def __init__(self, inner, at=0, how="kill-before", match="", deadline=None):
        self.inner = inner
        self.at = at
        self.how = how
        self.match = match
        self.deadline = deadline
        self.calls = 0
        self.dead = False
        self._lock = threading.Lock()

    @property
    def root(self):
        return self.inner.root

    def put(self, key, data, *, create=False):
        mine = self._arrives(key)
        if mine and self.how == "truncate":
            data = bytes(data)[: len(data) // 2]
        if not (mine and self.how == "lose"):
            self.inner.put(key, data, create=create)
        self._leaves(mine)

    def get(self, key, start=0, length=None):
        mine = self._arrives(key)
        found = self.inner.get(key, start, length)
        self._leaves(mine)
        if mine and self.how == "lie" and len(found):
            changed = bytearray(found)
            changed[len(changed) // 2] ^= 1
            return memoryview(changed)
        return found[: len(found) // 2] if mine and self.how == "truncate" else found

    def head(self, key):
        mine = self._arrives(key)
        found = self.inner.head(key)
        self._leaves(mine)
        return found

    def scan(self, prefix):
        mine = self._arrives(prefix)
        found = list(self.inner.scan(prefix))
        self._leaves(mine)
        return iter(found[:-1] if mine and self.how in ("lose", "truncate") else found)

    def delete(self, keys):
        mine = self._arrives(" ".join(keys))
        self.inner.delete(keys)
        self._leaves(mine)

    def new_pack(self, namespace):
        return self.inner.new_pack(namespace)

    def expect(self, keys, of):
        self.inner.expect(keys, of)

    def _arrives(self, key):
        with self._lock:
            if self.dead:
                raise KilledError
            self.calls += self.match in key
            mine = self.match in key and self.calls == self.at
            if mine and self.how == "kill-before":
                self.dead = True
                raise KilledError
        if mine and self.how == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if mine and self.how == "slow":
            self.deadline.cancel()
        if mine and self.how == "down":
            raise RetryableError("the store doesn't answer")
        return mine

    def _leaves(self, mine):
        if mine and self.how == "kill-after":
            self.dead = True
            raise KilledError


def place(root: Path, pack_bytes: int = 8 << 20, **breaking) -> Place:
    """A local place, or one that breaks; what it is put is read back as in a store."""
    objects = LocalObjects(root)
    if breaking:
        return Place("broken", BreakingObjects(objects, **breaking), root, pack_bytes=pack_bytes)
    return Place(root.name, objects, root, read_back=False, pack_bytes=pack_bytes)


def make_dump(folder: Path, seed: int = 1, blocks: int = 40) -> Path:
    """Two processes, some zeros, something to compress, and small files."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    rng = random.Random(seed)
    memory = [rng.randbytes(16 * PAGE) for _ in range(blocks)]
    memory[3] = bytes(16 * PAGE)
    memory[4] = b"compress me " * (16 * PAGE // 12) + bytes(4)
    write_pages(folder, 1, [(0x10000000, b"".join(memory))], entry_pages=7)
    write_pages(folder, 2, [(0x20003000, memory[0][: 5 * PAGE]), (0x30000000, bytes(PAGE))])
    (folder / "core-1.img").write_bytes(rng.randbytes(700))
    (folder / "empty.img").write_bytes(b"")
    return folder


def draft(number: int = 1, **facts):
    told = manifests.facts_of({**FACTS, **facts})
    return seal.draft(layout.make_id(told.namespace, told.pod, NOW, number), told, NOW)


def pack_dump(folder: Path, where: Place, number: int = 1, keys=KEYS, **facts):
    return pack.pack(raw_sources(folder), draft(number, **facts), where, keys, Deadline(60))


def fetched(where: Place, artifact: str, folder: Path, keys=KEYS) -> dict[str, bytes]:
    fetch.fetch(where, read_manifest(where, artifact, keys), folder, keys, Deadline(60))
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def stored_bytes(where: Place) -> int:
    return sum(info.size for info in where.objects.scan(layout.PACKS))


def attempt(work) -> BaseException | None:
    """What it raises, if anything: our errors, the disk's, or its own end."""
    try:
        work()
    except (KybernateError, OSError, KilledError) as error:
        return error
    return None


def exists(where: Place, artifact: str) -> bool:
    with suppress(FileNotFoundError):
        return (where.local / layout.manifest_key(artifact)).exists()
    return False


def open_below(folder: Path) -> int:
    """How many files in the folder this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/")
    return found
