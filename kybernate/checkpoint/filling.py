"""Verifies the memory of a raw artifact while CRIU restores from it: what is waited for first.

A piece that isn't
what was saved is put right from another place that has it. Any number of threads, and of calls one
after another, may fill the same folder: each looks at a piece before it says that it is there.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kybernate.checkpoint import marks
from kybernate.checkpoint.copies import is_unreadable
from kybernate.checkpoint.fetch import ChunkReader
from kybernate.checkpoint.ordered import threads
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import WORKERS, read_manifest
from kybernate.core.artifacts.manifest import PIECE
from kybernate.core.artifacts.ranges import ranges
from kybernate.errors import CorruptError, NotFoundError, RefusedError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kybernate.adapters.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.blocks import Pieces
    from kybernate.checkpoint.deadline import Deadline
    from kybernate.checkpoint.places import Place

log = logging.getLogger(__name__)


def fill(folder: Path, pieces: Pieces, mender: Mender, deadline: Deadline) -> None:
    """Say of all memory in the folder that it is there, once it is.

    Raises CorruptError if some of it can't be had from anywhere, which is said to whoever waits for
    it; RetryableError, DeadlineError, OSError: call again.
    """
    with ExitStack() as stack:
        files = [_Filled(path) for path in marks.pages_of(folder)]
        for file in files:
            stack.callback(file.marks.close)
        work = _Filling(_Order(files), pieces, mender, deadline)
        pool = stack.enter_context(threads(WORKERS, "fill"))
        for done in [pool.submit(work.run) for _ in range(WORKERS)]:
            done.result()


class _Filled:
    """One pages file: `left` has a zero for each piece that nobody works on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks = marks.Marks(path)
        self.left = self.marks.states()


class _Order:
    """Gives each piece to one thread: what CRIU waits for, then what follows it."""

    def __init__(self, files: list[_Filled]) -> None:
        self._files = files
        self._at = (0, 0)
        self._lock = threading.Lock()

    def next(self) -> tuple[_Filled, int] | None:
        """The next piece to work on; None if there is none left."""
        with self._lock:
            found = next(self._wanted(), None) or next(self._following(), None)
            if found is None:
                return None
            number, piece = found
            self._files[number].left[piece] = marks.THERE
            self._at = number, piece + 1
            return self._files[number], piece

    def _wanted(self) -> Iterator[tuple[int, int]]:
        for number, file in enumerate(self._files):
            piece = file.marks.wanted()
            if 0 <= piece < len(file.left) and not file.left[piece]:
                yield number, piece

    def _following(self) -> Iterator[tuple[int, int]]:
        number, piece = self._at
        for step in range(len(self._files)):
            other = (number + step) % len(self._files)
            file = self._files[other]
            found = file.left.find(0, 0 if step else piece)
            if found < 0:
                found = file.left.find(0)
            if found >= 0:
                yield other, found


class Mender:
    """Pieces of an artifact from other places than the one where they are wrong, the fastest
    first."""

    def __init__(self, artifact: str, others: Sequence[Place], keys: ArtifactKeys) -> None:
        self._artifact = artifact
        self._others = others
        self._keys = keys

    def piece(self, name: str, number: int, pieces: Pieces) -> bytes:
        """As it was saved. Raises CorruptError if no place has it, RetryableError if one that may
        doesn't answer."""
        away: RetryableError | None = None
        for place in self._others:
            try:
                data = self._read(place, name, number)
                pieces.check(name, number, memoryview(data))
            except (CorruptError, NotFoundError, RefusedError) as error:
                log.warning("a copy is of no use: %s", error)
            except RetryableError as error:
                away = error
            else:
                return data
        raise away or CorruptError(
            f"{name}: piece {number} (1 MiB each) is not what was saved, and no other place has it"
        )

    def _read(self, place: Place, name: str, number: int) -> bytes:
        manifest = read_manifest(place, self._artifact, self._keys)
        file = next((one for one in manifest.files if one.name == name), None)
        if file is None:
            raise CorruptError(f"{manifest.id} in {place.name} has no {name}")
        reader, begin = ChunkReader(place, manifest, self._keys), number * PIECE
        end = min(file.size, begin + PIECE)
        data = bytearray(end - begin)
        touched = [
            one
            for one in reader.chunks(file)
            if one.position < end and one.position + one.chunk.size > begin
        ]
        for wanted in ranges(touched):
            for placed, found in reader.read(wanted):
                low = max(begin, placed.position)
                high = min(end, placed.position + len(found))
                data[low - begin : high - begin] = found[
                    low - placed.position : high - placed.position
                ]
        return bytes(data)


class _Filling:
    """What each of the threads does."""

    def __init__(self, order: _Order, pieces: Pieces, mender: Mender, deadline: Deadline) -> None:
        self._order = order
        self._pieces = pieces
        self._mender = mender
        self._deadline = deadline
        self._reader = PieceReader()

    def run(self) -> None:
        """Until there is nothing left. What is wrong with some of it is raised last: the rest may
        be what is needed. Raises as `fill` does."""
        lost: CorruptError | None = None
        away: RetryableError | OSError | None = None
        while (found := self._order.next()) is not None:
            self._deadline.check()
            file, piece = found
            try:
                self._see_right(file.path, piece)
            except CorruptError as error:
                log.warning("%s", error)
                file.marks.say(piece, marks.LOST)
                lost = error
            except (RetryableError, OSError) as error:
                away = error
            else:
                file.marks.say(piece, marks.THERE)
        if problem := away or lost:
            raise problem

    def _see_right(self, path: Path, piece: int) -> None:
        try:
            self._check(path, piece)
        except (CorruptError, OSError) as error:
            if isinstance(error, OSError) and not is_unreadable(error):
                raise
            log.warning("%s: piece %d: %s; it is taken from another place", path, piece, error)
            _write(path, piece, self._other(path.name, piece, error))
            self._check(path, piece)

    def _check(self, path: Path, piece: int) -> None:
        self._pieces.check(path.name, piece, self._reader.read(path, piece))

    def _other(self, name: str, piece: int, error: CorruptError | OSError) -> bytes:
        """Raises `error`, by which it is known whether it may still be had, if no place has it."""
        try:
            return self._mender.piece(name, piece, self._pieces)
        except CorruptError as lost:
            raise (lost if isinstance(error, CorruptError) else error) from error


def _write(path: Path, piece: int, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        rest, at = memoryview(data), piece * PIECE
        while rest:
            step = os.pwrite(file, rest, at)
            rest, at = rest[step:], at + step
    finally:
        os.close(file)
