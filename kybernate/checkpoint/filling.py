"""Verifies the memory of a raw artifact while CRIU restores from it: what is waited for first.

A piece that isn't what was saved is put right from another place that has it. Any number of
threads, and of calls one after another, may fill the same folder: each looks at a piece before it
says that it is there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import as_completed
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

AHEAD = max(1, WORKERS // 2)
"""Threads that verify what nobody waits for yet. The restored tree needs the other cores."""
_POLL = 0.001


def fill(folder: Path, pieces: Pieces, mender: Mender, deadline: Deadline) -> None:
    """Say of all memory in the folder that it is there, once it is.

    Raises CorruptError if some of it can't be had from anywhere, which is said to whoever waits for
    it; RetryableError, DeadlineError, OSError: call again.
    """
    with ExitStack() as stack:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, held)
        files = [_Filled(path) for path in marks.pages_of(folder)]
        for file in files:
            stack.callback(file.marks.close)
        order, work = _Order(files), _Filling(held, pieces, mender, deadline)
        pool = stack.enter_context(threads(1 + AHEAD, "fill"))
        todo = [order.wanted(deadline), *(order.following() for _ in range(AHEAD))]
        under_way = [pool.submit(work.run, each) for each in todo]
        try:
            lost = [done.result() for done in as_completed(under_way)]
        finally:
            order.stop()
    for error in filter(None, lost):
        raise error


class _Filled:
    """One pages file: `left` has a zero for each piece that nobody works on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks = marks.Marks(path)
        self.left = self.marks.states()


Piece = tuple[_Filled, int]


class _Order:
    """Gives each piece to one thread."""

    def __init__(self, files: list[_Filled]) -> None:
        self._files = files
        self._at = (0, 0)
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Nothing more is given."""
        self._stopped = True

    def wanted(self, deadline: Deadline) -> Iterator[Piece]:
        """What CRIU waits for, as soon as it does; until nothing is left. Raises DeadlineError."""
        while self._any_left():
            deadline.check()
            with self._lock:
                found = self._given(next(self._asked_for(), None))
            if found is None:
                time.sleep(_POLL)
            else:
                yield found

    def following(self) -> Iterator[Piece]:
        """What comes behind the last one that was given; until nothing is left."""
        while not self._stopped:
            with self._lock:
                found = self._given(next(self._next(), None))
            if found is None:
                return
            yield found

    def _given(self, found: tuple[int, int] | None) -> Piece | None:
        if found is None:
            return None
        number, piece = found
        self._files[number].left[piece] = marks.THERE
        self._at = number, piece + 1
        return self._files[number], piece

    def _any_left(self) -> bool:
        return not self._stopped and any(file.left.find(0) >= 0 for file in self._files)

    def _asked_for(self) -> Iterator[tuple[int, int]]:
        for number, file in enumerate(self._files):
            piece = file.marks.wanted()
            if 0 <= piece < len(file.left) and not file.left[piece]:
                yield number, piece

    def _next(self) -> Iterator[tuple[int, int]]:
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
    """What each of the threads does. `held`: the folder itself, in whose place another one may be
    once this was given up."""

    def __init__(self, held: int, pieces: Pieces, mender: Mender, deadline: Deadline) -> None:
        self._held = held
        self._pieces = pieces
        self._mender = mender
        self._deadline = deadline
        self._reader = PieceReader()

    def run(self, todo: Iterator[Piece]) -> CorruptError | None:
        """To the end: the rest may be what is needed. What may yet be had is raised then, what is
        lost is returned: it is told last. Raises as `fill` does."""
        lost: CorruptError | None = None
        away: RetryableError | OSError | None = None
        for file, piece in todo:
            self._deadline.check()
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
        if away is not None:
            raise away
        return lost

    def _see_right(self, path: Path, piece: int) -> None:
        try:
            self._check(path, piece)
        except (CorruptError, OSError) as error:
            if isinstance(error, OSError) and not is_unreadable(error):
                raise
            log.warning("%s: piece %d: %s; it is taken from another place", path, piece, error)
            _write(self._held, path.name, piece, self._other(path.name, piece, error))
            self._check(path, piece)

    def _check(self, path: Path, piece: int) -> None:
        self._pieces.check(path.name, piece, self._reader.read(path, piece))

    def _other(self, name: str, piece: int, error: CorruptError | OSError) -> bytes:
        """Raises `error`, by which it is known whether it may still be had, if no place has it."""
        try:
            return self._mender.piece(name, piece, self._pieces)
        except CorruptError as lost:
            raise (lost if isinstance(error, CorruptError) else error) from error


def _write(folder: int, name: str, piece: int, data: bytes) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    try:
        rest, at = memoryview(data), piece * PIECE
        while rest:
            step = os.pwrite(file, rest, at)
            rest, at = rest[step:], at + step
    finally:
        os.close(file)
