"""Files that are being fetched, and the folder that they are in."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from kybernate.lib.deadline import Deadline

_MOST = 1024
"""Pieces that the kernel takes in one call."""


@contextmanager
def held(folder: Path, deadline: Deadline) -> Iterator[Path]:
    """A path to the folder that is there now, as long as the block lasts: once a call is given up,
    another folder may come in its place, and whoever hangs in a store or disk then must not go on
    there. Raises DeadlineError, OSError."""
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # What is there after this was there while somebody waited for the call.
        deadline.check()
        yield Path(f"/proc/self/fd/{found}")
    finally:
        os.close(found)


@dataclass(frozen=True, slots=True)
class Target:
    """Written by several threads. `partial`: something of it may have been there already."""

    file: int
    partial: bool

    @classmethod
    def open(cls, path: Path, size: int) -> Self:
        """The file in its full size: what was not there reads as zeros. Raises OSError, also for
        what is linked elsewhere: it is lent, and an artifact's."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
        try:
            there = os.fstat(file)
            _see_own(there, path)
            os.ftruncate(file, size)
        except BaseException:
            os.close(file)
            raise
        return cls(file, there.st_size > 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.file)

    def read(self, size: int, position: int) -> bytes:
        """What is there. Raises OSError."""
        return os.pread(self.file, size, position)

    def write(self, pieces: Sequence[memoryview | bytes], position: int) -> None:
        """All of these, one after another from `position` on. Raises OSError."""
        rest = list(pieces)
        while rest:
            step = os.pwritev(self.file, rest[:_MOST], position)
            position += step
            while rest and step >= len(rest[0]):
                step -= len(rest.pop(0))
            if step:
                rest[0] = memoryview(rest[0])[step:]


def _see_own(file: os.stat_result, path: Path) -> None:
    if file.st_nlink > 1:
        raise OSError(errno.EMLINK, "it is lent, and is not written", path.name)
