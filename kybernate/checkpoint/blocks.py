"""An artifact's bytes as blocks: of raw files, cut by address, or of another place's chunks.

A batch is loaded by whatever thread has time; its blocks follow those of the batch before.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blake3 import blake3

from kybernate.adapters.criuimages import page_maps
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.manifest import PIECE
from kybernate.core.artifacts.pages import cut, cut_plain
from kybernate.errors import CorruptError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.core.artifacts.pages import PageMap

HASH = 32


@dataclass(frozen=True, slots=True)
class Batch:
    """Some blocks that follow each other: `load` gives their bytes, `size` bytes in all."""

    size: int
    load: Callable[[], list[memoryview]]


@dataclass(frozen=True, slots=True)
class Source:
    """A file of an artifact, in batches."""

    name: str
    size: int
    batches: Iterable[Batch]


def image_files(folder: Path) -> list[tuple[str, int]]:
    """Name and size of each file of a dump, sorted. Sockets and pipes in it are passed over.

    Raises RefusedError for what an artifact can't have: folders, links, odd names.
    """
    found = []
    for path in sorted(folder.iterdir()):
        info = path.lstat()
        if stat.S_ISSOCK(info.st_mode) or stat.S_ISFIFO(info.st_mode):
            continue
        if not stat.S_ISREG(info.st_mode) or not layout.is_file(path.name):
            raise RefusedError(
                f"{path} can't be saved: a dump has plain files only, named by letters, digits, "
                "dots, dashes and underlines"
            )
        found.append((path.name, info.st_size))
    if not found:
        raise NotFoundError(f"{folder} holds no dump")
    return found


def raw_sources(folder: Path, pieces: Pieces | None = None) -> Iterator[Source]:
    """The files of a dump. With `pieces`, what is read must be what was hashed."""
    maps = page_maps(folder)
    for name, size in image_files(folder):
        yield Source(name, size, _file_batches(folder / name, size, maps.get(name), pieces))


class Pieces:
    """The hashes of a raw artifact's pieces, as they lie beside its manifest."""

    def __init__(self, manifest: Manifest, data: bytes) -> None:
        """Raises CorruptError unless `data` is what the manifest was signed for."""
        self._hashes: dict[str, bytes] = {}
        at = 0
        for file in manifest.files:
            length = HASH * (-(-file.size // PIECE))
            own = data[at : at + length]
            if len(own) != length or blake3(own).hexdigest() != file.pieces:
                raise CorruptError(f"{manifest.id}: the hashes of {file.name} are not the signed")
            self._hashes[file.name] = own
            at += length

    def check(self, name: str, number: int, data: memoryview) -> None:
        """Raises CorruptError if `data` is not the file's piece of that number."""
        wanted = self._hashes.get(name, b"")[HASH * number : HASH * (number + 1)]
        if blake3(data).digest() != wanted:
            raise CorruptError(f"{name}: piece {number} (1 MiB each) is not what was saved")


def _file_batches(
    path: Path, size: int, pages: PageMap | None, pieces: Pieces | None
) -> Iterator[Batch]:
    """One batch for each piece of the file: the blocks that begin in it."""
    sizes: list[int] = []
    start = at = 0
    for length in cut(pages) if pages else cut_plain(size):
        if at // PIECE > start // PIECE:
            yield _file_batch(path, start, sizes, pieces)
            start, sizes = at, []
        sizes.append(length)
        at += length
    if sizes:
        yield _file_batch(path, start, sizes, pieces)


def _file_batch(path: Path, start: int, sizes: list[int], pieces: Pieces | None) -> Batch:
    return Batch(sum(sizes), lambda: _load(path, start, sizes, pieces))


def _load(path: Path, start: int, sizes: list[int], pieces: Pieces | None) -> list[memoryview]:
    # Pieces begin at whole MiB, blocks don't: what a block of the piece before has is read again.
    first = start // PIECE * PIECE if pieces else start
    end = start + sum(sizes)
    data = memoryview(read_range(path, first, max(end, first + PIECE) if pieces else end))
    if pieces:
        pieces.check(path.name, first // PIECE, data[:PIECE])
    if len(data) < end - first:
        raise CorruptError(f"{path.name} is shorter than when it was saved")
    blocks, at = [], start - first
    for size in sizes:
        blocks.append(data[at : at + size])
        at += size
    return blocks


def read_range(path: Path, start: int, end: int) -> bytes:
    """Bytes `start` to `end` of a file, or as many as it has. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        data = os.pread(file, end - start, start)
        while data and len(data) < end - start:
            more = os.pread(file, end - start - len(data), start + len(data))
            if not more:
                break
            data += more
        return data
    finally:
        os.close(file)
