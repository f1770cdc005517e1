"""Raw files piece by piece, each thread through one buffer of its own.

A new buffer for every piece would cost more than reading it: the kernel clears its pages first.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from kybernate.core.artifacts.manifest import PIECE

if TYPE_CHECKING:
    from pathlib import Path


class PieceReader(threading.local):
    """Reads pieces of files. What a thread has read is good until it reads again."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(PIECE))

    def read(self, path: Path, number: int) -> memoryview:
        """The file's piece of that number, or as much of it as there is. Raises OSError."""
        return self._buffer[: read_into(path, number * PIECE, self._buffer)]


def read_into(path: Path, start: int, data: memoryview) -> int:
    """Fill `data` from the byte `start` of a file on; how many bytes it had. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        at = 0
        while at < len(data):
            step = os.preadv(file, [data[at:]], start + at)
            if not step:
                break
            at += step
        return at
    finally:
        os.close(file)
