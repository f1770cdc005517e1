"""Which sockets of a tree CRIU can't dump: kinds that it doesn't know, and ends that lead out."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.criu.checks import descriptors
from kybernate.adapters.criu.net import network
from kybernate.adapters.kernel import smallfile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kybernate.adapters.criu.checks.descriptors import Opened
    from kybernate.adapters.criu.container import Container

_SYS_PIDFD_GETFD = 438
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_SHOW_PEER, _SHOW_ICONS = 4, 8
_UNIX_PEER, _UNIX_ICONS, _UNIX_SHUTDOWN = 2, 3, 6
_BOTH_WAYS = 3
"""Of a shutdown: nothing is sent or received any more, as once the other end is closed."""
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
_MPTCP = 262
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
    by_itself = held if len(held) > FEW and _has_mptcp(container) else unknown
    for place in by_itself.values():
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
        elif is_inet and protocol == _MPTCP:
            yield (
                f"{who} uses MPTCP, which CRIU doesn't know, in place of TCP: switch it off in the "
                "workload (GODEBUG=multipathtcp=0 for Go), or end the container, as it is off in "
                "its pod for whatever starts from now on."
            )
        elif family not in _FAMILIES or (is_inet and protocol not in _PROTOCOLS):
            yield (
                f"{who} has a socket of family {int(family)}, protocol {protocol} open, which CRIU "
                "doesn't know."
            )


def _has_mptcp(container: Container) -> bool:
    """Whether there is any in the namespace. The tables of TCP show such sockets as TCP's."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in smallfile.read(f"{container.proc}/{container.init}/net/protocols").splitlines():
            words = line.split()
            if words[0] in ("MPTCP", "MPTCPv6") and words[2] != "0":
                return True
    return False


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

    One that waits to be accepted has its listener for a peer, or 0 if that is in none of these
    namespaces. One whose other end is closed has none and is left out: it leads nowhere. Empty
    without the right to ask there.
    """
    with suppress(OSError, struct.error):
        return network.inside(container.init, _diag, anywhere=True)
    return {}


def _diag() -> dict[int, int]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as link:  # NETLINK_SOCK_DIAG
        link.settimeout(2.0)
        show = _SHOW_PEER | _SHOW_ICONS
        body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, show, 0, 0)
        head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
        link.sendall(head + body)
        found: dict[int, int] = {}
        waiting: dict[int, int] = {}
        while _read(link.recv(1 << 16), found, waiting):
            pass
        return {inode: peer or waiting.get(inode, 0) for inode, peer in found.items()}


def _read(data: bytes, found: dict[int, int], waiting: dict[int, int]) -> bool:
    """Takes the answers in: peers, and who waits at which listener. False after the last."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind in (_NLMSG_DONE, _NLMSG_ERROR) or length < 16:
            return False
        form, inode = struct.unpack_from("=BxxI", data, at + 17)
        told = dict(_attributes(data[at + 32 : at + length]))
        for (one,) in struct.iter_unpack("=I", told.get(_UNIX_ICONS, b"")):
            waiting[one] = inode
        if _UNIX_PEER in told:
            (peer,) = struct.unpack("=I", told[_UNIX_PEER])
            # A datagram socket has no shutdown of its own when its peer closes.
            closed = form == socket.SOCK_DGRAM or told.get(_UNIX_SHUTDOWN) == bytes((_BOTH_WAYS,))
            if peer or not closed:
                found[inode] = peer
        at += (length + 3) & ~3
    return True


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        size, name = struct.unpack_from("=HH", data, at)
        yield name, data[at + 4 : at + size]
        at += max(4, (size + 3) & ~3)
