"""Which containers the runtime must not checkpoint by itself: a file for each, named by its ID.

`kyb-runtime` looks for the file, and holds a lock on it for as long as an image is being taken; so
does whatever it becomes, also while no agent runs.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeagent.seat.parts.tree import Process

if TYPE_CHECKING:
    from pathlib import Path

_ID = re.compile(r"[0-9a-f]{64}")


class Marks:
    """The files. All calls are small writes to a memory file system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, container: str, init: Process) -> None:
        """The container has run as a seat: it may hold GPU memory. Idempotent."""
        path = self._path(container)
        if path is None:
            return
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        if not path.exists():  # who replaced it would lose sight of the lock
            part.write_text(f"{init.pid} {init.start}\n")
            part.rename(path)

    def remove(self, container: str) -> None:
        """The container has ended. Idempotent."""
        path = self._path(container)
        if path is not None:
            path.unlink(missing_ok=True)

    def all(self) -> dict[str, Process]:
        """Process 1 of each container that has a file."""
        found: dict[str, Process] = {}
        with suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                with suppress(OSError, ValueError):
                    pid, start = path.read_text().split()
                    found[path.name] = Process(int(pid), int(start))
        return found

    def busy(self, container: str) -> bool:
        """Whether somebody takes an image of the container right now."""
        path = self._path(container)
        if path is None:
            return False
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def _path(self, container: str) -> Path | None:
        return self._folder / container if _ID.fullmatch(container) else None
