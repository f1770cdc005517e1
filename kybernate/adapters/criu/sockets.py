"""Which sockets of a tree CRIU can't dump: kinds that it doesn't know, and ends that lead out."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters import smallfile

from . import network

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .container import Container

_SYS_PIDFD_GETFD = 438
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_SHOW_PEER = 4
_UNIX_PEER = 2
_NLMSG_DONE, _NLMSG_ERROR = 3, 2
_FAMILIES = {
    socket.AF_UNIX,
    socket.AF_INET,
    socket.AF_INET6,
    socket.AF_PACKET,
    socket.AF_NETLINK,
}
_PROTOCOLS = {0, socket.IPPROTO_TCP, socket.IPPROTO_UDP, 136}
"""TCP, UDP and UDP-Lite."""
_INODE_COLUMN = {
    **dict.fromkeys(("tcp", "tcp6", "udp", "udp6", "udplite", "udplite6"), 9),
    **dict.fromkeys(("raw", "raw6", "icmp", "icmp6"), 9),
    "unix": 6,
    "netlink": 9,
    "packet": 8,
}
_UNDUMPABLE = {"raw": "raw", "raw6": "raw", "icmp": "ping", "icmp6": "ping"}

_libc = ctypes.CDLL(None, use_errno=True)


def of(container: Container) -> dict[int, tuple[int, int]]:
    """Each socket of the tree's by its inode: a process and a descriptor that hold it."""
    found: dict[int, tuple[int, int]] = {}
    for pid in container.pids():
        folder = container.proc / str(pid) / "fd"
        with suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):
                    target = os.readlink(folder / name)
                    if target.startswith("socket:["):
                        found[int(target[8:-1])] = (pid, int(name))
    return found


def problems(container: Container, held: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    """Sentences; `held` is each socket's inode with a process and a descriptor that hold it."""
    unknown = set(held)
    for table in _INODE_COLUMN:
        for inode, words in _rows(container, table):
            if inode in held:
                unknown.discard(inode)
                yield from _row_problem(container, table, words, held[inode][0])
    for inode in unknown:
        yield from _kind_problem(container, *held[inode])
    yield from _outward(container, held)


def _row_problem(container: Container, table: str, words: list[str], pid: int) -> Iterator[str]:
    if table in _UNDUMPABLE:
        yield f"{_who(container, pid)} has a {_UNDUMPABLE[table]} socket open."
    elif table == "netlink" and words[4] != "0":
        yield f"{_who(container, pid)} has not read all that its netlink socket has received."


def _kind_problem(container: Container, pid: int, descriptor: int) -> Iterator[str]:
    """Of a socket that no table shows: one that isn't bound yet, or of a family without table."""
    with suppress(OSError):
        one = _duplicate(pid, descriptor)
        family, protocol = one.family, one.proto
        one.close()
        is_inet = family in (socket.AF_INET, socket.AF_INET6)
        if family not in _FAMILIES or (is_inet and protocol not in _PROTOCOLS):
            yield (
                f"{_who(container, pid)} has a socket of family {int(family)}, protocol "
                f"{protocol} open, which CRIU doesn't know."
            )


def _outward(container: Container, held: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    """Unix sockets of the tree's whose other end is no process of the tree's."""
    for inode, peer in _unix_peers(container).items():
        if inode in held and peer not in held:
            yield (
                f"{_who(container, held[inode][0])} is connected over a unix socket to a process "
                "outside its own tree; let it connect by TCP, or only while it works."
            )


def _rows(container: Container, table: str) -> Iterator[tuple[int, list[str]]]:
    with suppress(FileNotFoundError, ProcessLookupError):
        text = smallfile.read(f"{container.proc}/{container.init}/net/{table}")
        for line in text.splitlines()[1:]:
            words = line.split()
            column = _INODE_COLUMN[table]
            if len(words) > column and words[column].isdigit():
                yield int(words[column]), words


def _who(container: Container, pid: int) -> str:
    name = "".join(one for one in container.name(pid) if one.isprintable())
    return f"Process {pid} ({name})"


def _duplicate(pid: int, descriptor: int) -> socket.socket:
    handle = os.pidfd_open(pid)
    try:
        copy = _libc.syscall(_SYS_PIDFD_GETFD, handle, descriptor, 0)
    finally:
        os.close(handle)
    if copy < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return socket.socket(fileno=copy)


def _unix_peers(container: Container) -> dict[int, int]:
    """Inode of each connected unix socket in the container's network namespace → its peer's.

    Empty without the right to ask there.
    """
    with suppress(OSError, struct.error):
        return network.inside(container.init, _diag)
    return {}


def _diag() -> dict[int, int]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as link:  # NETLINK_SOCK_DIAG
        link.settimeout(2.0)
        body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_PEER, 0, 0)
        head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
        link.sendall(head + body)
        found: dict[int, int] = {}
        while True:
            data = link.recv(1 << 16)
            if not _read(data, found):
                return found


def _read(data: bytes, found: dict[int, int]) -> bool:
    """Takes the answers in; False after the last."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind in (_NLMSG_DONE, _NLMSG_ERROR) or length < 16:
            return False
        inode = struct.unpack_from("=I", data, at + 20)[0]
        attribute, end = at + 32, at + length
        while attribute + 4 <= end:
            size, name = struct.unpack_from("=HH", data, attribute)
            if name == _UNIX_PEER:
                found[inode] = struct.unpack_from("=I", data, attribute + 4)[0]
            attribute += max(4, (size + 3) & ~3)
        at += (length + 3) & ~3
    return True
