"""Sockets of a tree that comes back in another pod, whose address is another.

CRIU binds each socket to the address that it had. So the old address stands on lo for the restore;
then connections to others are ended there and then, as the other side can't be reached from here,
and the address goes, unless something listens on it. Loopback connections aren't touched.

CRIU also connects each socket, which sends nothing but needs a route. Where nothing but loopback is
up, as around a debug clone, one to everywhere leads to lo meanwhile: nothing gets out by it.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.criu.net import network, sockets
from kybernate.adapters.kernel import smallfile
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from kybernate.adapters.criu.container import Container

    _Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_GET_LINK = 18
_NEW_ADDRESS, _DELETE_ADDRESS, _GET_ADDRESS = 20, 21, 22
_NEW_ROUTE, _DELETE_ROUTE = 24, 25
_DESTROY = 21
_REQUEST, _ACK, _EXCLUSIVE, _CREATE, _DUMP = 0x1, 0x4, 0x200, 0x400, 0x300
_ERROR, _DONE = 2, 3
_ADDRESS, _LOCAL = 1, 2
_OUT_BY = 4
_AT_ONCE = 0x2
"""IFA_F_NODAD: an address of IPv6 can be bound without a look whether others have it."""
_LO = 1
_UP = 0x1
_MAIN, _BOOT, _TO_LINK, _TO_HOST = 254, 3, 253, 254
_UNICAST, _LOCALLY = 1, 2
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


@dataclass(frozen=True, slots=True)
class Lent:
    """What a container's network has for a restore only: addresses on lo, and the families of
    those for which everything is routed there."""

    addresses: tuple[str, ...] = ()
    routes: tuple[int, ...] = ()


def lacking(container: Container, wanted: Collection[str]) -> Lent:
    """What the container's network must be lent to have these addresses. Blocks. Raises OSError."""
    return network.inside(container.init, lambda: _lacking(wanted), anywhere=True)


def _lacking(wanted: Collection[str]) -> Lent:
    with _link(socket.NETLINK_ROUTE) as link:
        up = _up(link)
        present = _present(link, up)
        missing = tuple(one for one in wanted if one not in present)
        routes = () if up - {_LO} else tuple(sorted({_family(one) for one in wanted}))
        return Lent(missing, routes)


def lend(container: Container, lent: Lent) -> None:
    """Puts the addresses on lo, and the routes. Blocks; an error may leave a part there. Raises
    OSError, RefusedError on the node's own network."""
    network.inside(container.init, lambda: _lend(lent))


def _lend(lent: Lent) -> None:
    with _link(socket.NETLINK_ROUTE) as link:
        for one in lent.addresses:
            _change(link, _NEW_ADDRESS, one)
        for family in lent.routes:
            _route(link, _NEW_ROUTE, family)


def _remove(link: socket.socket, lent: Lent) -> None:
    for family in lent.routes:
        _route(link, _DELETE_ROUTE, family)
    for one in lent.addresses:
        _change(link, _DELETE_ADDRESS, one)


def take_back(container: Container, lent: Lent) -> None:
    """Ends connections from these addresses, and removes those that nothing is bound to, and the
    routes; what is gone already is no error. Blocks. Raises OSError."""
    # Also on the node's network: older releases lent there.
    network.inside(container.init, lambda: _take_back(container, lent), anywhere=True)


def _take_back(container: Container, lent: Lent) -> None:
    kept = set()
    with _link(_SOCK_DIAG) as diag:
        for table in _TABLES:
            for words in _rows(container, table):
                address = str(_address(words[1]))
                if address in lent.addresses and (words[3] == _LISTEN or table.startswith("udp")):
                    kept.add(address)
                elif address in lent.addresses:
                    _destroy(diag, words)
    with _link(socket.NETLINK_ROUTE) as link:
        gone = tuple(one for one in lent.addresses if one not in kept)
        _remove(link, Lent(gone, lent.routes))


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


def _answers(link: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    """Each message of a table of the kernel's, without its header."""
    link.send(_message(kind, _REQUEST | _DUMP, body))
    while True:
        for found, message in _messages(link.recv(1 << 16)):
            if found in (_DONE, _ERROR):
                return
            yield message[16:]


def _up(link: socket.socket) -> frozenset[int]:
    """Numbers of the interfaces that are up."""
    answers = _answers(link, _GET_LINK, bytes(16))
    heads = (struct.unpack_from("=BBHiI", answer) for answer in answers)
    return frozenset(index for _, _, _, index, flags in heads if flags & _UP)


def _present(link: socket.socket, up: Collection[int]) -> frozenset[str]:
    """Addresses of these interfaces: what another has can't be bound."""
    found: set[str] = set()
    for answer in _answers(link, _GET_ADDRESS, struct.pack("=BBBBI", *(0, 0, 0, 0, 0))):
        attributes = dict(_attributes(answer[8:]))
        raw = attributes.get(_LOCAL) or attributes.get(_ADDRESS, b"")
        if len(raw) in (4, 16) and struct.unpack_from("=I", answer, 4)[0] in up:
            found.add(str(ipaddress.ip_address(raw)))
    return frozenset(found)


def _family(address: str) -> int:
    is_old = ipaddress.ip_address(address).version == 4
    return int(socket.AF_INET if is_old else socket.AF_INET6)


def _change(link: socket.socket, kind: int, address: str) -> None:
    packed = ipaddress.ip_address(address).packed
    body = struct.pack("=BBBBI", _family(address), 8 * len(packed), _AT_ONCE, 0, _LO)
    for name in (_LOCAL, _ADDRESS):
        body += struct.pack("=HH", 4 + len(packed), name) + packed
    flags = _REQUEST | _ACK | (_CREATE | _EXCLUSIVE if kind == _NEW_ADDRESS else 0)
    link.send(_message(kind, flags, body))
    _acknowledged(link, (errno.EEXIST, errno.EADDRNOTAVAIL))


def _route(link: socket.socket, kind: int, family: int) -> None:
    """To everywhere, by lo. One of IPv6 is there only if it says that everywhere is here."""
    scope, sort = (_TO_LINK, _UNICAST) if family == socket.AF_INET else (_TO_HOST, _LOCALLY)
    body = struct.pack("=BBBBBBBBI", *(family, 0, 0, 0, _MAIN, _BOOT, scope, sort, 0))
    body += struct.pack("=HHI", 8, _OUT_BY, _LO)
    flags = _REQUEST | _ACK | (_CREATE | _EXCLUSIVE if kind == _NEW_ROUTE else 0)
    link.send(_message(kind, flags, body))
    _acknowledged(link, (errno.EEXIST, errno.ESRCH))


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
