"""Duplicates of another process's sockets, and what can be read from one without taking anything.

They need CAP_SYS_PTRACE and no namespace. A descriptor's facts cost about 15 µs.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import socket
import struct
import termios
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.arrivals.sockdiag import LISTEN, InetRow, address, tcp_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Place = tuple[int, int]
    """Process and descriptor."""

SLICE = 64
"""Sockets that are handled before the event loop may do something else."""

_PIDFD_GETFD = 438
_SO_COOKIE = 57
_INFO_SIZE = 256
_LINGER = struct.Struct("=ii")
"""Whether, and for how many seconds."""
_GONE = (errno.ENOENT, errno.ESRCH)
_CLOSED = (errno.ESRCH, errno.EBADF)

_libc = ctypes.CDLL(None, use_errno=True)


class Duplicator:
    """Makes duplicates; keeps a handle of each process until it is closed."""

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}

    def duplicate(self, place: Place) -> socket.socket | None:
        """The socket there, or None if it, or its process, is gone. Raises OSError."""
        pid, number = place
        try:
            if pid not in self._pidfds:
                self._pidfds[pid] = os.pidfd_open(pid)
            descriptor = self._get(self._pidfds[pid], number)
        except OSError as error:
            if error.errno in _CLOSED:
                return None
            raise
        try:
            return socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            return None

    def close(self) -> None:
        """Let go of the processes."""
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()

    def _get(self, pidfd: int, number: int) -> int:
        descriptor = int(_libc.syscall(_PIDFD_GETFD, pidfd, number, 0))
        if descriptor < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"pidfd_getfd: {os.strerror(code)}")
        return descriptor


def let_go(one: socket.socket, place: Place) -> None:
    """Close a duplicate of what is, or was, at this place.

    Whoever closes a socket last waits for as long as its owner wanted its close to wait for the
    peer (SO_LINGER): once the owner is gone, that would be us, and nobody wants it any more.
    """
    if _lingers(one) and not _is_at(place, one):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(0, 0))
    one.close()


def _lingers(one: socket.socket) -> bool:
    wanted = one.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.size)
    return all(_LINGER.unpack(wanted))


def _is_at(place: Place, one: socket.socket) -> bool:
    pid, number = place
    try:
        target = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return False
    return target == f"socket:[{os.fstat(one.fileno()).st_ino}]"


async def places_of(pids: Sequence[int], most: int) -> tuple[dict[int, Place], int]:
    """Where each socket of these processes is, by inode, and how many beyond `most` were left out.

    Only the descriptors of each process's leader are seen.
    """
    found: dict[int, Place] = {}
    beyond = 0
    for count, (inode, place) in enumerate(_descriptors(pids, Path("/proc"))):
        if len(found) < most or inode in found:
            found.setdefault(inode, place)
        else:
            beyond += 1
        if count % SLICE == SLICE - 1:
            await asyncio.sleep(0)
    return found, beyond


def row_of(one: socket.socket, inode: int) -> InetRow | None:
    """What the kernel knows of a TCP or UDP socket; None for any other."""
    if one.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        if one.type == socket.SOCK_DGRAM:
            return _udp(one, inode)
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
        listens = info[0] == LISTEN
        queues = (0, 0) if listens else _queues(one)
        name = _name(one, connected=not listens)
    except OSError:
        return None
    return tcp_row((one.family, one.proto), name, info, queues, inode)


def _udp(one: socket.socket, inode: int) -> InetRow:
    name = _name(one, connected=False)
    return InetRow(
        family=one.family,
        protocol=one.proto,
        state=0,
        name=name,
        local=address(one.family, name[4:20], name[0:2]),
        peer=(b"", 0),
        unread=_queues(one)[0],
        unsent=0,
        inode=inode,
    )


def _queues(one: socket.socket) -> tuple[int, int]:
    """Bytes that wait to be read, and to be acknowledged. Raises OSError."""
    queues = (termios.FIONREAD, termios.TIOCOUTQ)
    unread, unsent = (fcntl.ioctl(one.fileno(), queue, bytes(4)) for queue in queues)
    return int.from_bytes(unread, "little"), int.from_bytes(unsent, "little")


def _name(one: socket.socket, *, connected: bool) -> bytes:
    """The kernel's struct inet_diag_sockid."""
    local = one.getsockname()
    peer = one.getpeername() if connected else ("", 0)
    scope = local[3] if len(local) > 3 else 0
    cookie = one.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8)
    ports = struct.pack(">HH", local[1], peer[1])
    ends = _packed(one.family, local[0]) + _packed(one.family, peer[0])
    return ports + ends + struct.pack("=I", scope) + cookie


def _packed(family: int, host: str) -> bytes:
    raw = socket.inet_pton(family, host.partition("%")[0]) if host else b""
    return raw.ljust(16, b"\0")


def _descriptors(pids: Sequence[int], proc: Path) -> Iterator[tuple[int, Place]]:
    for pid in pids:
        try:
            # Read piece by piece: a process may have a million of them.
            with os.scandir(proc / str(pid) / "fd") as entries:
                for entry in entries:
                    target = _target(entry.path)
                    if target.startswith("socket:["):
                        yield int(target[8:-1]), (pid, int(entry.name))
        except OSError as error:
            if error.errno not in _GONE:
                raise


def _target(path: str) -> str:
    """Empty if it was closed meanwhile."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return ""
