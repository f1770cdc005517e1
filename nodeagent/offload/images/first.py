"""The GPUs' pages first in line: what a tree had on its GPUs comes before all else at a restore.

The driver reads all of that before the first answer, and CRIU's server would bring it in page after
page. So right after a dump its pages are marked in the images as ones that don't come later. Which
they are `nodeagent.offload.helper` has noted when the driver put them there; where nobody has,
nothing is marked, as of a tree that was restored and has not been on its GPUs since.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.container.criuimages import put_first
from kybernate.adapters.criu import record
from kybernate.adapters.kernel import smallfile
from kybernate.core.swap.drivermemory import read
from kybernate.errors import CorruptError, NotFoundError, RestoreError, UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from kybernate.core.swap.drivermemory import Grown
    from kybernate.ports import Procs

log = logging.getLogger(__name__)


class Marks:
    """Marks what comes first. `notes`: the folder of the helpers' notes. What can't be marked comes
    later."""

    def __init__(self, pids: Callable[[str], Iterable[int]], procs: Procs, notes: Path) -> None:
        """`pids`: the processes of a tree, by the freezer's handle."""
        self._pids, self._procs, self._notes = pids, procs, notes

    async def put(self, handle: str, images: Path) -> float:
        """Mark the pages of these images, and say how many seconds it took."""
        began = time.monotonic()
        try:
            await asyncio.to_thread(self._mark, handle, images)
        except (CorruptError, RestoreError, OSError) as error:
            log.warning("what was on the GPUs of %s can't be put first: %s", handle, error)
        return time.monotonic() - began

    def _mark(self, handle: str, images: Path) -> None:
        self._forget_dead()
        size = 0
        for pid in self._pids(handle):
            with suppress(NotFoundError):
                note, inner = self._note(pid), self._procs.pid_in_container(pid)
                if note is not None:
                    image = images / f"pagemap-{inner}.img"
                    size += put_first(image, note.private) + note.shared
        if size:
            record.note_first(images, size)

    def _note(self, pid: int) -> Grown | None:
        with suppress(FileNotFoundError):
            return read(smallfile.read(f"{self._notes}/{pid}-{self._procs.start_time(pid)}"))
        return None

    def _forget_dead(self) -> None:
        """Notes of processes that are no more."""
        for note in self._notes.iterdir() if self._notes.is_dir() else ():
            with suppress(ValueError):
                pid, start = map(int, note.name.split("-"))
                if not self._procs.alive(pid, start):
                    note.unlink(missing_ok=True)


def first_of(images: Path) -> int:
    """`Offloading.first`, as the images say."""
    try:
        return record.Record.read(images).first
    except (RestoreError, UnfitError) as error:
        log.warning("nobody knows what comes first: %s", error)
        return 0
