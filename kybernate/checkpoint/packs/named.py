"""Names of a dump's blocks, made while its files are put on the disk.

To seal a dump waits for the disk, and to pack it reads and names every block once more. So a pod
whose last state was packed has the blocks of its next one named meanwhile: of those that the place
has already nothing is read again.
"""

from __future__ import annotations

import threading
from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.checkpoint.ordered import ordered
from kybernate.checkpoint.packs.blocks import is_zeros, raw_sources
from kybernate.checkpoint.places import WORKERS, cipher_of
from kybernate.core.chunks import leaf
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.cipher import Cipher
    from kybernate.checkpoint.packs.blocks import Batch
    from kybernate.checkpoint.packs.known import Known
    from kybernate.core.artifacts.manifest import DataKey, Manifest
    from kybernate.core.chunks.leaf import Chunk
    from kybernate.lib.deadline import Deadline

_NAME = 32
_ZEROS = bytes(_NAME)
"""Instead of the name of a block that is zero."""
_MOST = 4
"""Pods whose names are remembered: they take 0.5 MB for each GiB of a state."""


@dataclass(frozen=True, slots=True)
class Named:
    """The names of the blocks of `artifact` under `key`, by files: of each batch one behind the
    other. None are there before it is sealed, or of what was packed already."""

    key: DataKey
    cipher: Cipher
    artifact: str = ""
    files: dict[str, list[bytes]] = field(default_factory=dict)

    def name_all(self, folder: Path, pool: Executor, deadline: Deadline) -> None:
        """Name the blocks of a dump. Raises as `raw_sources`; DeadlineError, OSError."""

        def named(batch: Batch) -> bytes:
            deadline.check()
            blocks = batch.load()
            try:
                return b"".join(self._names(blocks))
            finally:
                batch.done()

        for source in raw_sources(folder):
            self.files[source.name] = list(ordered(pool, named, source.batches, 2 * WORKERS))

    def _names(self, blocks: list[memoryview]) -> list[bytes]:
        empty = [is_zeros(block) for block in blocks]
        filled = (block for block, zeros in zip(blocks, empty, strict=True) if not zeros)
        names = iter(self.cipher.names(filled))
        return [_ZEROS if zeros else next(names) for zeros in empty]


def found(known: Known, batch: Batch, names: bytes) -> list[Chunk] | None:
    """Where all blocks of a batch are already; None if one of them is not, or if these are no names
    of this batch."""
    each = [names[at : at + _NAME] for at in range(0, len(names), _NAME)]
    if len(each) != len(batch.sizes):
        return None
    there = iter(known.find([name for name in each if name != _ZEROS]))
    chunks = []
    for name, size in zip(each, batch.sizes, strict=True):
        chunk = leaf.zeros(size) if name == _ZEROS else next(there)
        if chunk is None or chunk.size != size:
            return None
        chunks.append(chunk)
    return chunks


class Names:
    """What is named of pods whose last state was packed. Any thread may use it."""

    def __init__(self) -> None:
        self._of: dict[str, Named] = {}
        self._lock = threading.Lock()

    def next_of(self, uid: str, artifact: str) -> Named | None:
        """What is to name the pod's state that is sealed now; None if its last one was not packed:
        nor will this one be, as far as one can tell."""
        with self._lock:
            last = self._of.get(uid)
            if last is not None and last.artifact:
                del self._of[uid]
                return None
        return Named(last.key, last.cipher, artifact) if last else None

    def sealed(self, uid: str, named: Named) -> None:
        """The pod's newest state is sealed, and its blocks are named."""
        with self._lock:
            self._of[uid] = named

    def of(self, uid: str, artifact: str) -> Named | None:
        """The names of this state of the pod, if they are known."""
        with self._lock:
            named = self._of.get(uid)
        return named if named is not None and named.artifact == artifact else None

    def packed(self, manifest: Manifest, keys: ArtifactKeys) -> None:
        """A state of a pod is packed: its next one is to be named. Raises as `cipher_of`."""
        uid = manifest.facts.pod_uid
        with self._lock:
            last = self._of.get(uid)
        if last is not None and last.artifact not in ("", manifest.id):
            return  # a newer one is sealed already
        same = last is not None and last.key == manifest.key
        cipher = last.cipher if last is not None and same else cipher_of(manifest, keys)
        with self._lock:
            self._of.pop(uid, None)
            self._of[uid] = Named(manifest.key, cipher)
            while len(self._of) > _MOST:
                del self._of[next(iter(self._of))]
