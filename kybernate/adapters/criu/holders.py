"""Processes of ours that serve a tree's memory, and duplicates of their userfaultfds.

They are known by a lock that they have open under CRIU's number: it lies in a folder of the
agent's, where no container can open it, and it is the same file for an agent of another version.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kybernate.adapters.criu import running
from kybernate.adapters.kernel import smallfile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KIND = "anon_inode:[userfaultfd]"
_GONE = (FileNotFoundError, ProcessLookupError)
_PIDFD_GETFD = 438

_libc = ctypes.CDLL(None, use_errno=True)


def find(lock: Path) -> Iterator[int]:
    """Every process that has it open."""
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and _has(int(name), lock):
                yield int(name)


def kill(pid: int, lock: Path) -> None:
    """Unless it is gone, or another has its number now."""
    with suppress(*_GONE), _at_work(pid, lock) as pidfd:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def duplicates(pid: int, lock: Path) -> Iterator[int]:
    """Its userfaultfds, here; none if it is gone. Raises OSError."""
    with suppress(*_GONE), _at_work(pid, lock) as pidfd:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(*_GONE):
                if os.readlink(f"/proc/{pid}/fd/{name}") == _KIND:
                    yield duplicate(pidfd, int(name))


def descendants(pid: int) -> Iterator[int]:
    """All of a process's descendants; none if it is gone."""
    with suppress(*_GONE):
        for child in smallfile.children("/proc", pid):
            yield child
            yield from descendants(child)


def links(pid: int, proc: Path) -> set[str]:
    """What each of its descriptors leads to; none if it is gone."""
    found: set[str] = set()
    with suppress(*_GONE):
        for name in os.listdir(proc / str(pid) / "fd"):
            with suppress(*_GONE):
                found.add(os.readlink(proc / str(pid) / "fd" / name))
    return found


def has_ended(pid: int) -> bool:
    """Whether nothing of it runs any more."""
    with suppress(*_GONE):
        state = smallfile.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
        return state in "ZX"
    return True


def _has(pid: int, lock: Path) -> bool:
    # By the link first: to look at what others have open there may take for ever.
    link = f"/proc/{pid}/fd/{running.LOCK}"
    ours = os.readlink(link).endswith(f"/{lock.parent.name}/{lock.name}")
    return ours and os.path.samefile(link, lock)


@contextmanager
def _at_work(pid: int, lock: Path) -> Iterator[int]:
    """Its descriptor, if it has the lock. Raises ProcessLookupError, OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        if not _has(pid, lock):
            raise ProcessLookupError(errno.ESRCH, "this process serves nothing of ours")
        yield pidfd
    finally:
        os.close(pidfd)


def duplicate(pidfd: int, descriptor: int) -> int:
    """This descriptor of the process, here; nothing is opened for it. Raises ProcessLookupError if
    either is gone, OSError."""
    made = int(_libc.syscall(_PIDFD_GETFD, pidfd, descriptor, 0))
    if made < 0:
        number = ctypes.get_errno()
        if number == errno.EBADF:
            raise ProcessLookupError(number, "the descriptor was closed meanwhile")
        raise OSError(number, f"pidfd_getfd: {os.strerror(number)}")
    return made
