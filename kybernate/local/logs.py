"""What a model's command writes: straight into a file, so that it needs nobody who reads.

The file is cut from time to time: its newest half goes into a second one. Commands write at the
end (O_APPEND), wherever that is.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LIMIT = 4 << 20
"""Bytes of a file that is cut; as many again are kept of what was cut at most."""
_PIECE = 1 << 16
_POLL = 0.2


class Log:
    """One model's. `path` is its newest part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._older = path.with_name(f"{path.name}.1")

    def open(self) -> int:
        """A descriptor that a command may write to."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.path, flags, 0o600)

    def cut(self) -> None:
        """Keep it below its limit; what is written in that moment may be lost. Where its newest
        half can't be kept, as on a full disk, it is lost, too."""
        with suppress(FileNotFoundError):
            size = self.path.stat().st_size
            if size <= LIMIT:
                return
            with suppress(OSError):
                self._keep(size - LIMIT)
            os.truncate(self.path, 0)

    def _keep(self, begin: int) -> None:
        fresh = self._older.with_name(f".{self._older.name}")
        with self.path.open("rb") as old:
            old.seek(begin)
            # No more: a command may write faster than this reads.
            kept = old.read(LIMIT)
        cut = kept.find(b"\n") + 1  # a line that was cut says nothing
        fresh.write_bytes(memoryview(kept)[cut:])
        fresh.rename(self._older)

    async def read(self, *, follow: bool) -> AsyncIterator[bytes]:
        """All that is kept, in pieces; with `follow` also what comes, without end."""
        at = 0
        for path in (self._older, self.path):
            with suppress(FileNotFoundError), path.open("rb") as file:
                at = 0
                while piece := file.read(_PIECE):
                    at += len(piece)
                    yield piece
        while follow:
            await asyncio.sleep(_POLL)
            if self._size() < at:
                at = 0  # it was cut
            while piece := self._from(at):
                at += len(piece)
                yield piece

    def tail(self, size: int) -> bytes:
        """At most the last `size` bytes of the newest part."""
        return self._from(max(0, self._size() - size), size)

    def _size(self) -> int:
        with suppress(FileNotFoundError):
            return self.path.stat().st_size
        return 0

    def _from(self, at: int, size: int = _PIECE) -> bytes:
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(at)
            return file.read(size)
        return b""
