"""NETLINK_SOCK_DIAG: what the kernel knows of the sockets of one network namespace.

A netlink socket belongs to the namespace in which it was made, and keeps it alive: hold one only
for as long as it is needed. All calls block, for at most the deadline that `open_diag` was given
per answer; each takes microseconds, a listing about a millisecond and 5 µs per connection.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ESTABLISHED = 1
CLOSE_WAIT = 8
LISTEN = 10

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_DESTROY = 21
_ERROR = 2
_DONE = 3
_REQUEST = 1
_ACK = 4
_DUMP = 0x300
_INFO = 2
"""INET_DIAG_INFO, the attribute that carries struct tcp_info."""
_PEER = 2
_PENDING = 3
_SHOW_PEER = 4
_SHOW_PENDING = 8
_ANY_COOKIE = b"\xff" * 8
_BUFFER = 1 << 17

_HEADER = struct.Struct("=IHHII")
_INET_REQUEST = struct.Struct("=BBBBI48s")
_INET_ROW = struct.Struct("=BBBB48sIIIII")
_UNIX_REQUEST = struct.Struct("=BBHIII8s")
_UNIX_ROW = struct.Struct("=BBBBI8s")
_ATTRIBUTE = struct.Struct("=HH")
_INFO_AGES = struct.Struct("=44xI4xI")
_INFO_BYTES = struct.Struct("=128xQ64xQ")
_QUEUED = struct.Struct("=24xI")
"""In struct tcp_info of a listener: how many connections wait to be accepted."""

Address = tuple[bytes, int]
"""4 or 16 bytes and a port; an IPv4 address that is mapped into IPv6 is given as IPv4."""


@dataclass(frozen=True, slots=True)
class InetRow:
    """A TCP or UDP socket. `inode` is 0 for a connection that nobody has accepted yet.

    `name` is the kernel's identification of it, for `ask_again` and `end`. Of a listener `unread`
    is the length of its queue. Ages in seconds, sizes in bytes; 0 for UDP and listeners.
    """

    family: int
    protocol: int
    state: int
    name: bytes
    local: Address
    peer: Address
    unread: int
    unsent: int
    inode: int
    received: int = 0
    sent: int = 0
    since_received: float = 0.0
    since_sent: float = 0.0


@dataclass(frozen=True, slots=True)
class UnixRow:
    """A Unix socket: inode of its peer (0 if none), inodes of those waiting to be accepted."""

    peer: int
    pending: tuple[int, ...]


class Diag:
    """Asks through a netlink socket, which it owns. Raises OSError, TimeoutError."""

    def __init__(self, netlink: socket.socket) -> None:
        self._netlink = netlink

    def close(self) -> None:
        """Let go of the namespace; idempotent."""
        self._netlink.close()

    def inet(self, protocol: int, states: Iterable[int] = ()) -> list[InetRow]:
        """All IPv4 and IPv6 sockets of the protocol in these states, or in any."""
        mask = sum(1 << state for state in states) or 0xFFFFFFFF
        rows = []
        for family in (socket.AF_INET, socket.AF_INET6):
            extensions = 1 << (_INFO - 1) if protocol == socket.IPPROTO_TCP else 0
            request = _INET_REQUEST.pack(family, protocol, extensions, 0, mask, bytes(48))
            rows += [_inet_row(protocol, body) for body in self._ask(_BY_FAMILY, _DUMP, request)]
        return rows

    def ask_again(self, row: InetRow) -> InetRow | None:
        """Exactly this TCP socket as it is now, or None if it is gone."""
        request = _INET_REQUEST.pack(
            row.family, row.protocol, 1 << (_INFO - 1), 0, 0xFFFFFFFF, row.name
        )
        body = self._one(_BY_FAMILY, request)
        return _inet_row(row.protocol, body) if body else None

    def end(self, row: InetRow) -> bool:
        """Abort the connection: both ends see a reset. False if it is gone already.

        Raises OSError with EOPNOTSUPP if the kernel was built without INET_DIAG_DESTROY.
        """
        request = _INET_REQUEST.pack(row.family, row.protocol, 0, 0, 0xFFFFFFFF, row.name)
        try:
            list(self._ask(_DESTROY, _ACK, request))
        except FileNotFoundError:
            return False
        return True

    def unix(self, inode: int) -> UnixRow | None:
        """A Unix socket by its inode; None if it is gone, or the kernel can't tell."""
        show = _SHOW_PEER | _SHOW_PENDING
        body = self._one(
            _BY_FAMILY,
            _UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, inode, show, _ANY_COOKIE),
        )
        return _unix_row(body) if body else None

    def _one(self, kind: int, request: bytes) -> bytes | None:
        try:
            return next(iter(list(self._ask(kind, 0, request))), None)
        except FileNotFoundError:
            return None

    def _ask(self, kind: int, flags: int, request: bytes) -> Iterator[bytes]:
        length = _HEADER.size + len(request)
        self._netlink.send(_HEADER.pack(length, kind, _REQUEST | flags, 1, 0) + request)
        while True:
            for answer, body in _messages(self._netlink.recv(_BUFFER)):
                if answer == _DONE:
                    return
                if answer == _ERROR:
                    code = -int.from_bytes(body[:4], "little", signed=True)
                    if code:
                        raise OSError(code, os.strerror(code))
                    return
                yield body
                if not flags:
                    return


def open_diag(deadline: float) -> Diag:
    """For the network namespace of the calling thread; `deadline` seconds per answer."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    netlink.settimeout(deadline)
    return Diag(netlink)


def cannot_end(error: OSError) -> bool:
    """Whether `Diag.end` failed since this kernel can't, or this process may not."""
    return error.errno in (errno.EOPNOTSUPP, errno.EPERM)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind = _HEADER.unpack_from(data, at)[:2]
        yield kind, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def _inet_row(protocol: int, body: bytes) -> InetRow:
    family, state, _, _, name, _, unread, unsent, _, inode = _INET_ROW.unpack_from(body)
    if state == CLOSE_WAIT:
        # The kernel counts the peer's end of the stream as one byte.
        unread = max(0, unread - 1)
    info = dict(_attributes(body[_INET_ROW.size :])).get(_INFO, b"")
    return tcp_row((family, protocol), name, bytes((state,)) + info[1:], (unread, unsent), inode)


def tcp_row(
    kind: tuple[int, int], name: bytes, info: bytes, queues: tuple[int, int], inode: int
) -> InetRow:
    """From struct tcp_info, which begins with the state.

    `kind`: family and protocol. `queues`: bytes unread and unsent, as for the row.
    """
    (family, protocol), (unread, unsent), state = kind, queues, info[0]
    received = sent = 0
    since_received = since_sent = 0.0
    if state == LISTEN and len(info) >= _QUEUED.size:
        unread, unsent = _QUEUED.unpack_from(info)[0], 0
    elif len(info) >= _INFO_BYTES.size:
        sent_ms, received_ms = _INFO_AGES.unpack_from(info)
        received, sent = _INFO_BYTES.unpack_from(info)
        since_received, since_sent = received_ms / 1000, sent_ms / 1000
    if state == CLOSE_WAIT:
        received = max(0, received - 1)
    return InetRow(
        family=family,
        protocol=protocol,
        state=state,
        name=name,
        local=address(family, name[4:20], name[0:2]),
        peer=address(family, name[20:36], name[2:4]),
        unread=unread,
        unsent=unsent,
        inode=inode,
        received=received,
        sent=sent,
        since_received=since_received,
        since_sent=since_sent,
    )


def address(family: int, host: bytes, port: bytes) -> Address:
    """From the 16 bytes and 2 bytes of a sockid."""
    mapped = family != socket.AF_INET and host[:12] == bytes(10) + b"\xff\xff"
    if family == socket.AF_INET:
        host = host[:4]
    elif mapped:
        host = host[12:]
    return host, int.from_bytes(port, "big")


def _unix_row(body: bytes) -> UnixRow:
    attributes = dict(_attributes(body[_UNIX_ROW.size :]))
    peer, pending = attributes.get(_PEER, b""), attributes.get(_PENDING, b"")
    return UnixRow(
        int.from_bytes(peer[:4], "little"),
        tuple(int.from_bytes(pending[at : at + 4], "little") for at in range(0, len(pending), 4)),
    )
