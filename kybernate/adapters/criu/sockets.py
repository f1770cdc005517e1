"""Which sockets of a tree CRIU can't dump: kinds that it doesn't know, and ends that lead out."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters import smallfile

from . import descriptors, network

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .container import Container
    from .descriptors import Opened

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
_PING = (socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6)
_INET = (socket.AF_INET, socket.AF_INET6)

FEW = 256
"""Up to so many sockets each is looked at by itself: 20 µs. To read the kernel's table of TCP takes
one or two milliseconds even if it is empty."""

_libc = ctypes.CDLL(None, use_errno=True)


def of(container: Container, opened: Opened | None = None) -> dict[int, tuple[int, int]]:
    """Each socket of the tree's by its inode: a process and a descriptor that hold it. `opened`:
    what the tree has open, if it was read before."""
    found: dict[int, tuple[int, int]] = {}
    for pid, links in (descriptors.of(container) if opened is None else opened).items():
        for descriptor, link in links.items():
            if link.startswith("socket:["):
                found[int(link[8:-1])] = (pid, descriptor)
    return found


def problems(container: Container, held: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    """Sentences; `held` is each socket's inode with a process and a descriptor that hold it."""
    unknown, tables, connects = dict(held), tuple(_INODE_COLUMN), True
    if len(held) <= FEW:
        families = {_family_of(*place) for place in held.values()}
        tables = ("netlink",) if socket.AF_NETLINK in families else ()
        connects = not families.isdisjoint((socket.AF_UNIX, None))
    for table in tables:
        for inode, words in _rows(container, table):
            if unknown.pop(inode, None) is not None:
                yield from _row_problem(container, table, words, held[inode][0])
    for place in unknown.values():
        yield from _kind_problem(container, *place)
    if connects:
        yield from _outward(container, held)


def _family_of(pid: int, descriptor: int) -> int | None:
    with suppress(OSError), duplicate(pid, descriptor) as one:
        return one.family
    return None


def _row_problem(container: Container, table: str, words: list[str], pid: int) -> Iterator[str]:
    if table in _UNDUMPABLE:
        yield f"{_who(container, pid)} has a {_UNDUMPABLE[table]} socket open."
    elif table == "netlink" and words[4] != "0":
        yield f"{_who(container, pid)} has not read all that its netlink socket has received."


def _kind_problem(container: Container, pid: int, descriptor: int) -> Iterator[str]:
    """Of a socket by itself, which need not be bound yet."""
    with suppress(OSError):
        with duplicate(pid, descriptor) as one:
            family, kind, protocol = one.family, one.type, one.proto
        who, is_inet = _who(container, pid), family in _INET
        if is_inet and (kind == socket.SOCK_RAW or protocol in _PING):
            yield f"{who} has a {'raw' if kind == socket.SOCK_RAW else 'ping'} socket open."
        elif family not in _FAMILIES or (is_inet and protocol not in _PROTOCOLS):
            yield (
                f"{who} has a socket of family {int(family)}, protocol {protocol} open, which CRIU "
                "doesn't know."
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


def duplicate(pid: int, descriptor: int) -> socket.socket:
    """The socket at this place, which must be closed soon. Raises OSError."""
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
        return network.inside(container.init, _diag, looks=True)
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
