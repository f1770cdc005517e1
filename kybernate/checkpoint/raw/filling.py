"""Verifies the memory of a raw artifact while CRIU restores from it: what is waited for first.

A piece that isn't what was sealed is put right from another place that has it. Any number of
threads, and of calls one after another, may fill the same folder: each looks at a piece before it
says that it is there.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import as_completed
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kybernate.checkpoint import marks
from kybernate.checkpoint.copies import is_unreadable
from kybernate.checkpoint.ordered import threads
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import WORKERS
from kybernate.checkpoint.raw.wanted import Filled, Order
from kybernate.core.artifacts.manifest import PIECE
from kybernate.errors import CorruptError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kybernate.checkpoint.packs.blocks import Pieces
    from kybernate.checkpoint.raw.mending import Mender
    from kybernate.checkpoint.raw.wanted import Piece
    from kybernate.lib.deadline import Deadline

log = logging.getLogger(__name__)

AHEAD = max(1, WORKERS // 2)
"""Threads that verify what nobody waits for yet. The restored tree needs the other cores."""


def fill(folder: Path, pieces: Pieces, mender: Mender, deadline: Deadline) -> None:
    """Say of all memory in the folder, which is held, that it is there, once it is.

    Raises CorruptError if some of it can't be had from anywhere, which is said to whoever waits for
    it; RetryableError, DeadlineError, OSError: call again.
    """
    with ExitStack() as stack:
        files = [Filled(path) for path in marks.pages_of(folder)]
        for file in files:
            stack.callback(file.marks.close)
        order, work = Order(files), _Filling(pieces, mender, deadline)
        pool = stack.enter_context(threads(1 + AHEAD, "fill"))
        todo = [order.wanted(deadline), *(order.following() for _ in range(AHEAD))]
        under_way = [pool.submit(work.run, each) for each in todo]
        try:
            lost = [done.result() for done in as_completed(under_way)]
        finally:
            order.stop()
    for error in filter(None, lost):
        raise error


class _Filling:
    """What each of the threads does."""

    def __init__(self, pieces: Pieces, mender: Mender, deadline: Deadline) -> None:
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
            said = self._mender.artifact, path.name, piece, error
            log.warning("%s: %s, piece %d: %s; it is taken from another place", *said)
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
