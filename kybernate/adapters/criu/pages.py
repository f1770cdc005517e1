"""The processes of CRIU's that serve the memory of lazily restored trees.

Where nobody has a userfaultfd open any more the kernel gives zeros for what is missing. So each
is held here, too, until the server has ended well, and all of the memory is in: if it dies before,
the tree waits, until somebody sees to it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters import smallfile

from . import running

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from .container import Clock

_libc = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438
_KIND = "anon_inode:[userfaultfd]"
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(slots=True)
class Served:
    """One tree's server, and what is held of it."""

    process: asyncio.subprocess.Process
    held: list[int] = field(default_factory=list)

    async def hold(self, clock: Clock) -> int:
        """Its userfaultfds; to be called while the tree has not run. Its exit status if it has
        ended meanwhile, 0 while it serves. Raises OSError, DeadlineError."""
        family = tuple(_family(self.process.pid)) if self.process.returncode is None else ()
        for pid in family:
            self._hold(pid)
        # What it has closed by now is in, unless it died of it.
        if family and not any(_has_ended(pid) for pid in family):
            return 0
        code = await running.ended(self.process, clock, "lazy-pages")
        self.let_go()
        return code

    def _hold(self, pid: int) -> None:
        with suppress(*_GONE):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(*_GONE):
                    if os.readlink(f"/proc/{pid}/fd/{name}") == _KIND:
                        self.held.append(_duplicate(pid, int(name)))

    async def seen_out(self) -> int:
        """Its exit status. Once it has ended well, nothing is held any more."""
        code = await self.process.wait()
        if not code:
            self.let_go()
        return code

    def end(self) -> None:
        """Its tree was never there, or is gone."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.let_go()

    def let_go(self) -> None:
        """All is in, or nobody can see what is missing."""
        while self.held:
            os.close(self.held.pop())


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(*_GONE):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child))


def _has_ended(pid: int) -> bool:
    with suppress(*_GONE):
        state = smallfile.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
        return state in "ZX"
    return True


def _duplicate(pid: int, descriptor: int) -> int:
    """Raises ProcessLookupError if either is gone, OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        made = int(_libc.syscall(_PIDFD_GETFD, pidfd, descriptor, 0))
    finally:
        os.close(pidfd)
    if made < 0:
        number = ctypes.get_errno()
        if number == errno.EBADF:
            raise ProcessLookupError(number, "the descriptor was closed meanwhile")
        raise OSError(number, f"pidfd_getfd: {os.strerror(number)}")
    return made
