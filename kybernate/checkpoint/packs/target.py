"""A file that is being fetched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self

_MOST = 1024
"""Pieces that the kernel takes in one call."""


@dataclass(frozen=True, slots=True)
class Target:
    """Written by several threads. `partial`: something of it may have been there already."""

    file: int
    partial: bool

    @classmethod
    def open(cls, path: Path, size: int) -> Self:
        """The file in its full size: what was not there reads as zeros. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
        partial = os.fstat(file).st_size > 0
        os.ftruncate(file, size)
        return cls(file, partial)

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
