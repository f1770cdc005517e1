"""How fast a folder's disk writes and reads, by one file that is removed again."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 256 << 20
PIECE = 8 << 20


def measure(folder: Path, size: int = SIZE) -> tuple[float, float]:
    """Bytes per second of writing with sync, and of reading what no cache holds. Raises OSError.

    What is written can't be compressed.
    """
    piece = os.urandom(min(PIECE, size))
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.monotonic()
        for _ in range(max(1, size // len(piece))):
            file.write(piece)
        os.fsync(file.fileno())
        written = time.monotonic()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began_reading = time.monotonic()
        while file.read(len(piece)):
            pass
        ended, total = time.monotonic(), os.fstat(file.fileno()).st_size
    return total / max(written - began, 1e-6), total / max(ended - began_reading, 1e-6)
