"""How much may come from other nodes, so that none of them fills this node's disk."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kybernate.types import PodUid

MOST_FILES = 1 << 16
"""Files of one state, which has a few for each of its threads."""
_LOOK_EVERY = 64 << 20
_SPARE = 1 << 30
_SPARE_SHARE = 50


class Room:
    """What all states that arrive take together below `folder`; any thread may ask.

    `limit`: bytes that they may have, and those of before that were sent in advance as many again.
    Of the file system a little is left for others, whatever the limit says.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.limit = sys.maxsize
        self._lock = threading.Lock()
        self._files: dict[tuple[PodUid, bool], dict[str, int]] = {}
        self._taken = {True: 0, False: 0}
        self._unlooked = _LOOK_EVERY

    def see(self, successor: PodUid, name: str, size: int, *, staged: bool) -> None:
        """A file of what comes for the successor is to have that many bytes from now on.

        Raises RefusedError if that is too much, OSError; then it has as many as before.
        """
        with self._lock:
            files = self._files.setdefault((successor, staged), {})
            if size < 0 or (name not in files and len(files) >= MOST_FILES):
                raise RefusedError(f"a state has {MOST_FILES} files at most, none below 0 bytes")
            more = size - files.get(name, 0)
            if more > 0:
                self._see_limit(more, staged=staged)
                self._see_disk(more)
            files[name] = size
            self._taken[staged] += more

    def found(self, successor: PodUid, staged: Mapping[str, int]) -> None:
        """These files were sent for it in advance, to another process; they are there whatever the
        limit says."""
        with self._lock:
            known = self._files.setdefault((successor, True), {})
            for name in staged.keys() - known.keys():
                known[name] = staged[name]
                self._taken[True] += staged[name]

    def left(self, successor: PodUid) -> int:
        """Bytes that a state may have which comes for the successor from its beginning. Raises
        OSError."""
        with self._lock:
            free, spare = self._disk()
            own = sum(self._files.get((successor, False), {}).values())
            return own + min(self.limit - self._taken[False], free - spare)

    def of(self, successor: PodUid) -> int:
        """Bytes of the state that came for it, without what was sent in advance."""
        with self._lock:
            return sum(self._files.get((successor, False), {}).values())

    @property
    def taken(self) -> int:
        """Bytes of all that came, also in advance."""
        return sum(self._taken.values())

    def drop(self, successor: PodUid) -> None:
        """Nothing of what came for it is there any more."""
        with self._lock:
            for staged in (True, False):
                files = self._files.pop((successor, staged), {})
                self._taken[staged] -= sum(files.values())

    def _see_limit(self, more: int, *, staged: bool) -> None:
        if self._taken[staged] + more > self.limit:
            raise RefusedError(
                f"NVMe has room here for {max(0, self.limit)} bytes that come from other nodes; "
                "delete artifacts (kybernate artifacts rm), or give the agent more (nvme_bytes)"
            )

    def _see_disk(self, more: int) -> None:
        self._unlooked += more
        if self._unlooked < _LOOK_EVERY:
            return
        left, spare = self._disk()
        if left < spare + more:
            raise RefusedError(
                f"{left} bytes are left on the disk of {self._folder}, and {spare} stay free for "
                "others; make room there"
            )
        self._unlooked = 0

    def _disk(self) -> tuple[int, int]:
        """Bytes that its file system has left, and how many of them stay free for others; the
        folder itself is made when something comes."""
        there = next(one for one in (self._folder, *self._folder.parents) if one.exists())
        disk = os.statvfs(there)
        spare = min(_SPARE, disk.f_blocks * disk.f_frsize // _SPARE_SHARE)
        return disk.f_bavail * disk.f_frsize, spare
