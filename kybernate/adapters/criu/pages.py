"""The processes of CRIU's that serve the memory of lazily restored trees.

Where nobody has a userfaultfd open any more the kernel gives zeros for what is missing. So each
is held here, too, until all of the memory is in: if the server dies, the tree waits.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438
_KIND = "anon_inode:[userfaultfd]"


@dataclass(slots=True)
class Served:
    """One tree's server, and what is held of it."""

    process: asyncio.subprocess.Process
    held: list[int] = field(default_factory=list)

    def hold(self) -> None:
        """Its userfaultfds; to be called while the tree has not run. Raises OSError."""
        for pid in _family(self.process.pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                for entry in os.scandir(f"/proc/{pid}/fd"):
                    if os.readlink(entry.path) == _KIND:
                        self.held.append(_duplicate(pid, int(entry.name)))

    def let_go(self) -> None:
        """All is in, or the tree is gone."""
        while self.held:
            os.close(self.held.pop())


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child))


def _duplicate(pid: int, descriptor: int) -> int:
    pidfd = os.pidfd_open(pid)
    try:
        made = int(_libc.syscall(_PIDFD_GETFD, pidfd, descriptor, 0))
    finally:
        os.close(pidfd)
    if made < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"pidfd_getfd: {os.strerror(number)}")
    return made
