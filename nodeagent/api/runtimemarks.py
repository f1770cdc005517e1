"""Which containers the runtime must not checkpoint by itself: a file for each, named by its ID.

`kyb-runtime` looks for the file, and holds a lock on it for as long as an image is being taken; so
does whatever it becomes, also while no agent runs.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from kybernate.errors import NotFoundError
from kybernate.types import PodUid, SeatState
from nodeagent.seat.parts.tree import Process
from nodeagent.seat.parts.wishes import HELD

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.ports import Procs
    from nodeagent.seat.record import Seat

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


class Cgroups(Protocol):
    """Whether a container is paused."""

    def paused(self, handle: str) -> bool:
        """Whether the container that this tree is in is frozen as a whole."""
        ...


class Containers(Protocol):
    """Which container a process is in."""

    def container_id_of(self, pid: int) -> str | None:
        """The runtime's ID of the process's container. Raises NotFoundError."""
        ...

    def share_ipc(self, pid: int, other: int) -> bool:
        """Whether both processes are in one IPC namespace. Raises NotFoundError."""
        ...


class Imaging:
    """Implements `World.imaging`: whether the runtime takes an image of a seat that stands parked
    for that. `held`: those that this agent has let it take one of."""

    def __init__(
        self, marks: Marks, cgroups: Cgroups, containers: Containers, procs: Procs
    ) -> None:
        self._marks = marks
        self._cgroups = cgroups
        self._containers = containers
        self._procs = procs
        self.held: set[PodUid] = set()

    def __call__(self, seat: Seat) -> bool:
        """Quick."""
        held, init = seat.wishes.leave == HELD or seat.uid in self.held, seat.tree.init
        if not held or seat.state is not SeatState.PARKED or init is None:
            return False
        try:
            container = self._containers.container_id_of(init.pid)
        except NotFoundError:
            return False
        if container is None or not self._procs.alive(init.pid, init.start):
            return False
        return self._marks.busy(container) or self._cgroups.paused(seat.tree.handle)
