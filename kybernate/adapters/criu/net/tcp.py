"""TCP connections and the mode in which CRIU repairs them: in it nothing is sent or received.

CRIU turns it on for a dump, and only its own orderly end, or the end of the process, turns it off.
A connection that is closed in it is gone at once, and its other end hears nothing of that.
"""

from __future__ import annotations

import ctypes
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kybernate.adapters.criu.container import Container

_TCP_REPAIR = 19
_OFF, _ON = 0, 1
_SYS_PIDFD_GETFD = 438

_libc = ctypes.CDLL(None, use_errno=True)


def heal(container: Container) -> int:
    """Turns repair mode off at every connection of the tree; how many there were.

    Raises OSError if the kernel refuses, as without CAP_NET_ADMIN.
    """
    seen: set[str] = set()
    healed: list[socket.socket] = []
    reusing: set[int] = set()
    try:
        for pid in container.pids():
            for one in _sockets(container, pid, seen):
                if _heal(one):
                    healed.append(one)
                    continue
                reusing |= _listener(one)
                one.close()
        # Leaving repair mode forgets SO_REUSEADDR, which connections have from their listener.
        for one in healed:
            if one.getsockname()[1] in reusing:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return len(healed)
    finally:
        for one in healed:
            one.close()


def hush(container: Container) -> None:
    """Turns repair mode on at every connection of what there is of the tree, as far as the kernel
    lets us. Else their ends would be told that they are closed, and their ports stay taken while
    they answer: the same connections could not come back."""
    seen: set[str] = set()
    for pid in container.pids():
        with suppress(OSError):
            for one in _sockets(container, pid, seen):
                with one, suppress(OSError):
                    # Refused of a listener, which has no other end.
                    one.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _ON)


def _heal(one: socket.socket) -> bool:
    if not one.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR):
        return False
    one.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, _OFF)
    return True


def _listener(one: socket.socket) -> set[int]:
    """The port, if it listens there and lets it be used again."""
    if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and one.getsockopt(
        socket.SOL_SOCKET, socket.SO_REUSEADDR
    ):
        return {one.getsockname()[1]}
    return set()


def _sockets(container: Container, pid: int, seen: set[str]) -> list[socket.socket]:
    """Duplicates of the process's TCP sockets; each is given once."""
    found: list[socket.socket] = []
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return found
    try:
        folder = container.proc / str(pid) / "fd"
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                target = os.readlink(folder / name)
                if target.startswith("socket:") and target not in seen:
                    seen.add(target)
                    found += _duplicate(handle, int(name))
    except (FileNotFoundError, ProcessLookupError):
        return found
    finally:
        os.close(handle)
    return found


def _duplicate(pidfd: int, descriptor: int) -> list[socket.socket]:
    copy = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, descriptor, 0)
    if copy < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    one = socket.socket(fileno=copy)
    if one.proto == socket.IPPROTO_TCP and one.type == socket.SOCK_STREAM:
        return [one]
    one.close()
    return []
