"""The files of a packed artifact, as they are brought into a directory.

Blocks that the directory has already are not asked for: a fetch that was cut short continues. What
is zero is not written at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from blake3 import blake3

from kybernate.checkpoint import marks
from kybernate.checkpoint.ordered import ordered
from kybernate.checkpoint.packs.target import Target
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import WORKERS
from kybernate.core.artifacts.manifest import PIECE, File
from kybernate.core.chunks.ranges import Placed, jobs, ranges
from kybernate.dataclass import dataclass
from kybernate.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from kybernate.checkpoint.cipher import Cipher
    from kybernate.core.chunks.ranges import Range
    from kybernate.lib.deadline import Deadline

_AHEAD = 8
"""Jobs of a file that are under way, or wait for the one before."""
_RUN = 16
"""Chunks that are written at once, at most."""


class Chunks(Protocol):
    """The chunks of the artifact: `fetch.ChunkReader` is one."""

    cipher: Cipher

    def chunks(self, file: File) -> Iterator[Placed]:
        """All chunks of a file, in its order. Raises CorruptError."""
        ...

    def read(self, wanted: Range) -> Iterator[tuple[Placed, memoryview | bytes]]:
        """Each chunk of the range, opened. Raises CorruptError."""
        ...


class Files:
    """Brings one after another into a folder that is held, by threads of `pool`. `hashers`: what
    they hold is read back and hashed; None where nobody asks what that is. `progress` hears of
    bytes done."""

    def __init__(
        self,
        folder: Path,
        reader: Chunks,
        deadline: Deadline,
        pool: Executor,
        hashers: Executor | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._folder = folder
        self._reader = reader
        self._deadline = deadline
        self._pool = pool
        self._hashers = hashers
        self._progress = progress
        self._done = 0
        self._empty: set[str] = set()
        self._marked: dict[str, marks.Marks] = {}

    def lay_out(self, file: File) -> None:
        """It has its size, and marks that tell of nothing yet. Raises DeadlineError, OSError."""
        path = self._folder / file.name
        self._deadline.check()
        with Target.open(path, file.size) as target:
            marks.make(path, file.size)
            self._marked[file.name] = marks.Marks(path)
            if not target.partial:
                self._empty.add(file.name)

    def lose(self) -> None:
        """Whoever waits for what was laid out is told that the rest never comes."""
        marks.lose(self._marked.values())

    def close(self) -> None:
        """Nothing is said any more of what was laid out."""
        for one in self._marked.values():
            one.close()

    def bring(self, file: File, *, right: bool = False) -> File:
        """All of it is there when this returns: the file as it is then. With `right` that has to
        be what the manifest says, and what was laid out is marked. Raises CorruptError,
        DeadlineError, OSError."""
        path = self._folder / file.name
        self._deadline.check()
        with Target.open(path, file.size) as target:
            if file.name in self._empty:
                # Nobody but this has written there: nothing of it needs to be looked at.
                target = replace(target, partial=False)  # noqa: PLW2901 - the same file
            work = _Fetching(self._reader, target, self._deadline)
            todo = jobs(self._reader.chunks(file))
            sizes = map(self._count, ordered(self._pool, work.bring, todo, _AHEAD))
            pieces = self._pieces(path, _whole(sizes))
            marked = self._marked.get(file.name) if right else None
            return _read(file, pieces, marked, hashed=self._hashers is not None, right=right)

    def _count(self, size: int) -> int:
        self._done += size
        if self._progress:
            self._progress(self._done)
        return size

    def _pieces(self, path: Path, whole: Iterator[int]) -> Iterator[bytes]:
        """The hash of each piece, read back as soon as all of it is there; nothing of it where
        nobody asks."""
        if self._hashers is None:
            return (b"" for _ in whole)
        reader = PieceReader()

        def hashed(number: int) -> bytes:
            return blake3(reader.read(path, number)).digest()

        return ordered(self._hashers, hashed, whole, 4 * WORKERS)


def _whole(sizes: Iterable[int]) -> Iterator[int]:
    """The numbers of pieces, each once all of it is there."""
    at = 0
    for size in sizes:
        before, at = at, at + size
        yield from range(before // PIECE, at // PIECE)
    if at % PIECE:
        yield at // PIECE


def _read(
    file: File, pieces: Iterator[bytes], marked: marks.Marks | None, *, hashed: bool, right: bool
) -> File:
    """The last piece is marked once the file is known to be right."""
    last, own = -(-file.size // PIECE) - 1, blake3()
    for number, piece in enumerate(pieces):
        own.update(piece)
        if marked and number < last:
            marked.say(number, marks.THERE)
    there = File(file.name, file.size, own.hexdigest()) if hashed else file
    if right and there.pieces != file.pieces:
        raise CorruptError(f"{file.name} is not what was recorded when it was saved")
    if marked and last >= 0:
        marked.say(last, marks.THERE)
    return there


@dataclass(frozen=True, slots=True)
class _Fetching:
    reader: Chunks
    target: Target
    deadline: Deadline

    def bring(self, group: list[Placed]) -> int:
        """Any thread: what these chunks cover is right in the file; how many bytes that is."""
        self.deadline.check()
        missing = [placed for placed in group if not self._there(placed)]
        for wanted in ranges(missing):
            self._write(self.reader.read(wanted))
        return sum(placed.chunk.size for placed in group)

    def _write(self, read: Iterable[tuple[Placed, memoryview | bytes]]) -> None:
        """Neighbours together: writers of one file wait for each other."""
        start = end = 0
        run: list[memoryview | bytes] = []
        for placed, data in read:
            if run and (placed.position != end or len(run) == _RUN):
                self.target.write(run, start)
                run = []
            if not run:
                start = placed.position
            run.append(data)
            end = placed.position + len(data)
        if run:
            self.target.write(run, start)

    def _there(self, placed: Placed) -> bool:
        if not self.target.partial:
            return False
        data = self.target.read(placed.chunk.size, placed.position)
        if placed.chunk.pack:
            return self.reader.cipher.name(data) == placed.chunk.name
        if data.strip(b"\0"):
            self.target.write((bytes(placed.chunk.size),), placed.position)
        return True
