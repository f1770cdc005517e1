"""One table of packet rules in a network namespace, by netlink: no program is run for it.

The table drops TCP from and to others at some local ports, on every interface but loopback, and
counts it. It belongs to the namespace and stays when we end. All calls block, for at most `_ANSWER`
seconds, and are made by a thread that is in the namespace.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kybernate.adapters.arrivals.closing import close_aside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TABLE = "kyb-gate"
_ANSWER = 2.0
_BUFFER = 1 << 16

_NETLINK_NETFILTER = 12
_SUBSYSTEM = 10
_BEGIN, _END = 0x10, 0x11
_NEWTABLE, _GETTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE, _NEWSET, _NEWSETELEM = 0, 1, 2, 3, 6, 9, 12
_GETRULE = 7
_REQUEST, _ACK, _CREATE, _APPEND, _ALL = 1, 4, 0x400, 0x800, 0x300
_ERROR, _DONE = 2, 3
_INET = 1
_NESTED = 0x8000
_HEADER = struct.Struct("=IHHII")
_FAMILY = struct.Struct(">BBH")
_ATTRIBUTE = struct.Struct("=HH")

_LOCAL_IN, _LOCAL_OUT = 1, 3
_RAW_PRIORITY = -300
_PORT_TYPE, _PORT_LENGTH = 13, 2
_IIF, _OIF, _L4PROTO = 4, 5, 16
_LOOPBACK = 1
_TRANSPORT = 2
_REGISTER = 1
_SET = "ports"
_AT_ONCE = 2000
"""Ports in a message: the length of its list is a number of 16 bits."""


def shut(ports: Iterable[int]) -> None:
    """Make the table. Raises OSError; with FileExistsError nothing was changed."""
    with _open() as netlink:
        _batch(netlink, [_create(_NEWTABLE, _text(1, TABLE)), *_set_of(ports), *_chains()])


def is_shut() -> bool:
    """Whether the table is there. Raises OSError."""
    with _open() as netlink:
        try:
            _ask(netlink, _message(_GETTABLE, _text(1, TABLE), _ACK))
        except FileNotFoundError:
            return False
        return True


def dropped() -> int:
    """Packets that the table has dropped; 0 if it isn't there. Raises OSError."""
    with _open() as netlink:
        netlink.send(_message(_GETRULE, _text(1, TABLE), _ALL))
        return sum(_counted(dict(_inside(rule))) for rule in _all(netlink))


def open_again() -> None:
    """Remove the table; idempotent. Raises OSError."""
    with _open() as netlink:
        try:
            _batch(netlink, [_message(_DELTABLE, _text(1, TABLE), _ACK)])
        except FileNotFoundError:
            return


@contextmanager
def _open() -> Iterator[socket.socket]:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    try:
        netlink.settimeout(_ANSWER)
        netlink.bind((0, 0))
        yield netlink
    finally:
        close_aside(netlink)


# --- what is asked for --------------------------------------------------------------------------


def _set_of(ports: Iterable[int]) -> Iterable[bytes]:
    yield _create(
        _NEWSET,
        _text(1, TABLE)
        + _text(2, _SET)
        + _number(4, _PORT_TYPE)
        + _number(5, _PORT_LENGTH)
        + _number(10, 1),
    )
    wanted = sorted(set(ports))
    for at in range(0, max(1, len(wanted)), _AT_ONCE):
        elements = b"".join(
            _nested(1, _nested(1, _attribute(1, struct.pack(">H", port))))
            for port in wanted[at : at + _AT_ONCE]
        )
        yield _create(_NEWSETELEM, _text(1, TABLE) + _text(2, _SET) + _nested(3, elements))


def _chains() -> Iterable[bytes]:
    for name, hook, interface, offset in (
        ("in", _LOCAL_IN, _IIF, 2),
        ("out", _LOCAL_OUT, _OIF, 0),
    ):
        place = _number(1, hook) + _attribute(2, struct.pack(">i", _RAW_PRIORITY))
        yield _create(
            _NEWCHAIN, _text(1, TABLE) + _text(3, name) + _nested(4, place) + _text(7, "filter")
        )
        yield _create(
            _NEWRULE,
            _text(1, TABLE) + _text(2, name) + _nested(4, _drop_at(interface, offset)),
            _APPEND,
        )


def _drop_at(interface: int, offset: int) -> bytes:
    """Not loopback, TCP, a port of the set at this offset of its header: drop."""
    loopback = struct.pack("=I", _LOOPBACK)
    return (
        _meta(interface)
        + _compare(1, loopback)
        + _meta(_L4PROTO)
        + _compare(0, bytes((socket.IPPROTO_TCP,)))
        + _expression(
            "payload",
            _number(1, _REGISTER)
            + _number(2, _TRANSPORT)
            + _number(3, offset)
            + _number(4, _PORT_LENGTH),
        )
        + _expression("lookup", _text(1, _SET) + _number(2, _REGISTER) + _number(4, 1))
        + _expression("counter", b"")
        + _expression("immediate", _number(1, 0) + _nested(2, _nested(2, _number(1, 0))))
    )


def _meta(key: int) -> bytes:
    return _expression("meta", _number(1, _REGISTER) + _number(2, key))


def _compare(operator: int, value: bytes) -> bytes:
    return _expression(
        "cmp", _number(1, _REGISTER) + _number(2, operator) + _nested(3, _attribute(1, value))
    )


def _expression(name: str, data: bytes) -> bytes:
    return _nested(1, _text(1, name) + _nested(2, data))


# --- netlink ------------------------------------------------------------------------------------


def _attribute(kind: int, data: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(data)
    return _ATTRIBUTE.pack(length, kind) + data + bytes(-length % 4)


def _nested(kind: int, data: bytes) -> bytes:
    return _attribute(kind | _NESTED, data)


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack(">I", value))


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _create(kind: int, body: bytes, flags: int = 0) -> bytes:
    return _message(kind, body, _CREATE | _ACK | flags)


def _message(kind: int, body: bytes, flags: int) -> bytes:
    head = _FAMILY.pack(_INET, 0, 0)
    length = _HEADER.size + len(head) + len(body)
    number = (_SUBSYSTEM << 8) | kind
    return _HEADER.pack(length, number, _REQUEST | flags, 1, 0) + head + body


def _edge(kind: int) -> bytes:
    head = _FAMILY.pack(0, 0, _SUBSYSTEM)
    return _HEADER.pack(_HEADER.size + len(head), kind, _REQUEST, 0, 0) + head


def _batch(netlink: socket.socket, messages: Iterable[bytes]) -> None:
    """All of them or none."""
    wanted = list(messages)
    netlink.send(_edge(_BEGIN) + b"".join(wanted) + _edge(_END))
    for _ in wanted:
        _take_answer(netlink)


def _ask(netlink: socket.socket, message: bytes) -> None:
    netlink.send(message)
    _take_answer(netlink)


def _take_answer(netlink: socket.socket) -> bytes:
    """Raises what the kernel says."""
    try:
        data = netlink.recv(_BUFFER)
    except TimeoutError as error:
        raise OSError(errno.ETIMEDOUT, "the kernel's packet filter does not answer") from error
    kind = _HEADER.unpack_from(data)[1]
    if kind == _ERROR:
        code = -int.from_bytes(data[16:20], "little", signed=True)
        if code:
            raise OSError(code, os.strerror(code))
    return data


def _all(netlink: socket.socket) -> Iterator[bytes]:
    """The attributes of each thing that there is."""
    while True:
        data = _take_answer(netlink)
        while data:
            length, kind = _HEADER.unpack_from(data)[:2]
            if kind in (_ERROR, _DONE):
                return
            yield data[_HEADER.size + _FAMILY.size : length]
            data = data[length + -length % 4 :]


def _inside(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind & ~_NESTED, data[_ATTRIBUTE.size : length]
        data = data[length + -length % 4 :]


def _counted(rule: Mapping[int, bytes]) -> int:
    """Packets, if it is one of ours: a kernel may list the rules of others as well."""
    if rule[1] != f"{TABLE}\0".encode():
        return 0
    expressions = [dict(_inside(one)) for _, one in _inside(rule[4])]
    counters = [dict(_inside(one[2])) for one in expressions if one[1] == b"counter\0"]
    return sum(int.from_bytes(one[2], "big") for one in counters)
