"""Sockets of a tree that comes back in another pod, whose address is another.

CRIU binds each socket to the address that it had. So the old address stands on lo for the restore;
then connections to others are ended there and then, as the other side can't be reached from here,
and the address goes, unless something listens on it. Loopback connections aren't touched.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters import smallfile

from . import network, sockets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from .container import Container

    _Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NEW_ADDRESS, _DELETE_ADDRESS, _GET_ADDRESS = 20, 21, 22
_DESTROY = 21
_REQUEST, _ACK, _EXCLUSIVE, _CREATE, _DUMP = 0x1, 0x4, 0x200, 0x400, 0x300
_ERROR, _DONE = 2, 3
_ADDRESS, _LOCAL = 1, 2
_LO = 1
_LISTEN = "0A"
_SOCK_DIAG = 4
_TIMEOUT = 2.0
_TABLES = ("tcp", "tcp6", "udp", "udp6")


def used(container: Container, held: Mapping[int, tuple[int, int]]) -> tuple[str, ...]:
    """Addresses that these sockets are bound to, but for loopback and "any"; `held` as in
    `sockets.of`."""
    found = _of_each(held) if len(held) <= sockets.FEW else _of_tables(container, held)
    return tuple(sorted({str(one) for one in found if not (one.is_loopback or one.is_unspecified)}))


def _of_each(held: Mapping[int, tuple[int, int]]) -> Iterator[_Address]:
    for place in held.values():
        with suppress(OSError), sockets.duplicate(*place) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                yield _plain(ipaddress.ip_address(one.getsockname()[0].partition("%")[0]))


def _of_tables(container: Container, held: Collection[int]) -> Iterator[_Address]:
    for table in _TABLES:
        for words in _rows(container, table):
            if int(words[9]) in held:
                yield _address(words[1])


def lend(container: Container, addresses: Collection[str]) -> tuple[str, ...]:
    """Puts those that the container's network hasn't got on lo; which they were. Blocks."""
    if not addresses:
        return ()

    def put() -> tuple[str, ...]:
        with _link(socket.NETLINK_ROUTE) as link:
            missing = tuple(one for one in addresses if one not in _present(link))
            for one in missing:
                _change(link, _NEW_ADDRESS, one)
            return missing

    return network.inside(container.init, put)


def take_back(container: Container, lent: Collection[str]) -> None:
    """Ends connections from these addresses, and removes those that nothing is bound to. Blocks."""
    if lent:
        network.inside(container.init, lambda: _take_back(container, lent))


def _take_back(container: Container, lent: Collection[str]) -> None:
    kept = set()
    with _link(_SOCK_DIAG) as diag:
        for table in _TABLES:
            for words in _rows(container, table):
                address = str(_address(words[1]))
                if address in lent and (words[3] == _LISTEN or table.startswith("udp")):
                    kept.add(address)
                elif address in lent:
                    _destroy(diag, words)
    with _link(socket.NETLINK_ROUTE) as link:
        for one in set(lent) - kept:
            _change(link, _DELETE_ADDRESS, one)


def _rows(container: Container, table: str) -> Iterator[list[str]]:
    with suppress(FileNotFoundError, ProcessLookupError):
        text = smallfile.read(f"{container.proc}/{container.init}/net/{table}")
        for line in text.splitlines()[1:]:
            yield line.split()


def _address(text: str) -> _Address:
    """Of "0100007F:1F90": words in the machine's byte order."""
    size = len(text.partition(":")[0]) // 2
    return _plain(ipaddress.ip_address(_raw(text)[:size]))


def _plain(found: _Address) -> _Address:
    """An IPv4 address as such, also where a socket of IPv6 has it."""
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _raw(text: str) -> bytes:
    """The same as bytes, padded to an IPv6 address's."""
    words = text.partition(":")[0]
    pieces = [struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8)]
    return b"".join(pieces).ljust(16, b"\0")


def _link(protocol: int) -> socket.socket:
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    link.settimeout(_TIMEOUT)
    return link


def _present(link: socket.socket) -> frozenset[str]:
    body = struct.pack("=BBBBI", socket.AF_UNSPEC, 0, 0, 0, 0)
    link.send(_message(_GET_ADDRESS, _REQUEST | _DUMP, body))
    found: set[str] = set()
    while True:
        data = link.recv(1 << 16)
        for kind, message in _messages(data):
            if kind in (_DONE, _ERROR):
                return frozenset(found)
            attributes = dict(_attributes(message[24:]))
            raw = attributes.get(_LOCAL) or attributes.get(_ADDRESS, b"")
            if len(raw) in (4, 16):
                found.add(str(ipaddress.ip_address(raw)))


def _change(link: socket.socket, kind: int, address: str) -> None:
    packed = ipaddress.ip_address(address).packed
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    body = struct.pack("=BBBBI", family, 8 * len(packed), 0, 0, _LO)
    for name in (_LOCAL, _ADDRESS):
        body += struct.pack("=HH", 4 + len(packed), name) + packed
    flags = _REQUEST | _ACK | (_CREATE | _EXCLUSIVE if kind == _NEW_ADDRESS else 0)
    link.send(_message(kind, flags, body))
    _acknowledged(link, (errno.EEXIST, errno.EADDRNOTAVAIL))


def _destroy(diag: socket.socket, words: list[str]) -> None:
    family = socket.AF_INET if len(words[1].partition(":")[0]) == 8 else socket.AF_INET6
    ports = [int(words[at].rpartition(":")[2], 16) for at in (1, 2)]
    body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    body += struct.pack(">HH", *ports) + _raw(words[1]) + _raw(words[2])
    body += struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
    diag.send(_message(_DESTROY, _REQUEST | _ACK, body))
    _acknowledged(diag, (errno.ENOENT,))


def _acknowledged(link: socket.socket, fine: Collection[int]) -> None:
    for kind, message in _messages(link.recv(1 << 16)):
        if kind == _ERROR:
            code = -struct.unpack_from("=i", message, 16)[0]
            if code and code not in fine:
                raise OSError(code, "the address of a tree from another pod can't be lent")


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 16:
        length, kind = struct.unpack_from("=IH", data)
        yield kind, data[:length]
        data = data[max(16, (length + 3) & ~3) :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind, data[4:length]
        data = data[max(4, (length + 3) & ~3) :]
