"""An artifact's bytes as blocks: of raw files, cut by address, or of another place's chunks.

A batch is loaded by whatever thread has time; its blocks follow those of the batch before.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from blake3 import blake3

from kybernate.adapters.container.criuimages import page_maps
from kybernate.checkpoint.pieces import read_into
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.manifest import PIECE
from kybernate.core.chunks.pages import BLOCK, cut, cut_plain
from kybernate.dataclass import dataclass
from kybernate.errors import CorruptError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.core.chunks.pages import PageMap

HASH = 32
_ZEROS = bytes(BLOCK)
_USUAL = PIECE + BLOCK


def _nothing() -> None:
    """`Batch.done` where nothing is to be given back."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some blocks that follow each other: `load` gives their bytes, `size` bytes in all, which are
    good until `done`. `sizes`: of each block, where that is known before it is loaded."""

    size: int
    load: Callable[[], list[memoryview]]
    done: Callable[[], None] = _nothing
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A file of an artifact, in batches."""

    name: str
    size: int
    batches: Iterable[Batch]


def is_zeros(data: memoryview) -> bool:
    """Whether a block is nothing but zeros."""
    return not data[0] and not data[-1] and bytes(data) == _ZEROS[: len(data)]


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
    maps, buffers = page_maps(folder), _Buffers()
    for name, size in image_files(folder):
        cutter = _Cutter(folder / name, pieces, buffers)
        yield Source(name, size, cutter.batches(size, maps.get(name)))


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
            raise CorruptError(f"{name}: piece {number} (1 MiB each) is not what was sealed")


class _Buffers:
    """Memory that is read into again and again: of new memory the kernel clears every page first,
    which takes longer than to read it. Any thread may take and give."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """At least `size` bytes, with whatever they held."""
        while self._free:
            try:
                found = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if len(found) >= size:
                return found
        return bytearray(max(size, _USUAL))

    def give(self, buffer: bytearray) -> None:
        """Nobody looks at it any more."""
        self._free.append(buffer)


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Reads one raw file in batches."""

    path: Path
    pieces: Pieces | None
    buffers: _Buffers

    def batches(self, size: int, pages: PageMap | None) -> Iterator[Batch]:
        """One for each piece of the file: the blocks that begin in it."""
        sizes: list[int] = []
        start = at = 0
        for length in cut(pages) if pages else cut_plain(size):
            if at // PIECE > start // PIECE:
                yield self._batch(start, sizes)
                start, sizes = at, []
            sizes.append(length)
            at += length
        if sizes:
            yield self._batch(start, sizes)

    def _batch(self, start: int, sizes: list[int]) -> Batch:
        used: list[bytearray] = []

        def done() -> None:
            while used:
                self.buffers.give(used.pop())

        return Batch(sum(sizes), lambda: self._load(start, sizes, used), done, tuple(sizes))

    def _load(self, start: int, sizes: list[int], used: list[bytearray]) -> list[memoryview]:
        # Pieces begin at whole MiB, blocks don't: what a block of the piece before has is read
        # again.
        first = start // PIECE * PIECE if self.pieces else start
        end = start + sum(sizes)
        wanted = (max(end, first + PIECE) if self.pieces else end) - first
        used.append(self.buffers.take(wanted))
        data = memoryview(used[-1])[:wanted]
        data = data[: read_into(self.path, first, data)]
        if self.pieces:
            self.pieces.check(self.path.name, first // PIECE, data[:PIECE])
        if len(data) < end - first:
            raise CorruptError(f"{self.path.name} is shorter than when it was saved")
        blocks, at = [], start - first
        for size in sizes:
            blocks.append(data[at : at + size])
            at += size
        return blocks
