"""One table of packet rules in a network namespace, by netlink: no program is run for it.

The table drops TCP from and to others at some local ports, on every interface but loopback, and
counts it. What opens a connection is queued before, for whoever holds it (`held`); while nobody
does it is dropped as well. The table belongs to the namespace and stays when we end. All calls
block, for at most `_ANSWER` seconds, and are made by a thread that is in the namespace.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kybernate.adapters.arrivals.closing import close_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

TABLE = "kyb-gate"
_ANSWER = 2.0
_BUFFER = 1 << 16

_NETLINK_NETFILTER = 12
_SUBSYSTEM = 10
_BEGIN, _END = 0x10, 0x11
_NEWTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE, _NEWSET, _NEWSETELEM = 0, 2, 3, 6, 9, 12
_GETRULE, _DELRULE = 7, 8
_REQUEST, _ACK, _CREATE, _APPEND, _ALL = 1, 4, 0x400, 0x800, 0x300
_ERROR, _DONE = 2, 3
_INET = 1
_NESTED = 0x8000
_HEADER = struct.Struct("=IHHII")
_FAMILY = struct.Struct(">BBH")
_ATTRIBUTE = struct.Struct("=HH")

_LOCAL_IN, _LOCAL_OUT = 1, 3
_RAW_PRIORITY = -300
"""The queue comes right before: what is let go from it continues with the next chain."""
_PORT_TYPE, _PORT_LENGTH = 13, 2
_IIF, _OIF, _L4PROTO = 4, 5, 16
_LOOPBACK = 1
_TRANSPORT = 2
_REGISTER = 1
_SET = "ports"
_TCP_FLAGS, _SYN, _ACKNOWLEDGED = 13, 0x02, 0x10
_AT_ONCE = 2000
"""Ports in a message: the length of its list is a number of 16 bits."""
QUEUE = 0x6B79
"""Of its namespace: a number that no program of the pod's is likely to take."""


def shut(ports: Iterable[int]) -> None:
    """Make the table again. Raises OSError; nothing was changed then."""
    table = [*_removed(), _created(), *_set_of(frozenset(ports))]
    for way in tuple(_ways):
        with opened() as netlink:
            try:
                _batch(netlink, [*table, *_first_packets(way()), *_chains()])
            except FileNotFoundError:
                # Each try takes 20 ms; a kernel that hasn't got it is not asked again.
                with suppress(ValueError):
                    _ways.remove(way)
            else:
                return
    with opened() as netlink:
        _batch(netlink, [*table, *_chains()])


def is_shut() -> bool:
    """Whether the table is there, and drops. Raises OSError."""
    with opened() as netlink:
        return bool(_rules(netlink))


def dropped(netlink: socket.socket) -> int:
    """Packets that the table has dropped; 0 if it isn't there. Raises OSError."""
    return sum(_counted(rule) for rule in _rules(netlink))


def open_again(let_go: Callable[[], object] | None = None) -> int:
    """Remove the table, and return how many packets it has dropped, as far as that can be told;
    idempotent. Raises OSError. `let_go` is called while the table is there without rules: with the
    table the kernel drops what is held."""
    count = 0
    # Closed together, in the end: a close waits for all that was removed, and the next change for
    # that close.
    with opened() as looking, opened() as netlink:
        with suppress(OSError):  # a number for people holds nobody back
            count = dropped(looking)
        if let_go is not None:
            _batch(netlink, [_created(), _message(_DELRULE, _text(1, TABLE), _ACK)])
            let_go()
        _batch(netlink, _removed())
    return count


@contextmanager
def opened() -> Iterator[socket.socket]:
    """A way to the kernel's packet filter in the calling thread's namespace. Raises OSError."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    try:
        netlink.settimeout(_ANSWER)
        netlink.bind((0, 0))
        yield netlink
    finally:
        close_aside(netlink)


# --- what is asked for --------------------------------------------------------------------------


def _created() -> bytes:
    return _create(_NEWTABLE, _text(1, TABLE))


def _removed() -> Iterable[bytes]:
    """No table. It is made first: of one that isn't there the kernel takes 14 ms to say so."""
    return _created(), _message(_DELTABLE, _text(1, TABLE), _ACK)


def _set_of(ports: Iterable[int]) -> Iterable[bytes]:
    yield _create(
        _NEWSET,
        _text(1, TABLE)
        + _text(2, _SET)
        + number(4, _PORT_TYPE)
        + number(5, _PORT_LENGTH)
        + number(10, 1),
    )
    wanted = sorted(set(ports))
    for at in range(0, max(1, len(wanted)), _AT_ONCE):
        elements = b"".join(
            _nested(1, _nested(1, attribute(1, struct.pack(">H", port))))
            for port in wanted[at : at + _AT_ONCE]
        )
        yield _create(_NEWSETELEM, _text(1, TABLE) + _text(2, _SET) + _nested(3, elements))


def _by_queue() -> bytes:
    """Queue it; where nobody holds it, continue. The packet filter's own, which not every kernel
    has."""
    some = struct.pack(">H", QUEUE), struct.pack(">H", 1), struct.pack(">H", 1)
    return _expression("queue", b"".join(attribute(at, one) for at, one in enumerate(some, 1)))


def _by_target() -> bytes:
    """The same by an extension of older packet filters."""
    info = attribute(3, struct.pack("=HHH", QUEUE, 1, 1))
    return _expression("target", _text(1, "NFQUEUE") + number(2, 3) + info)


_ways = [_by_queue, _by_target]


def _first_packets(queue: bytes) -> Iterable[bytes]:
    """What opens a connection from others."""
    opens = (
        _loaded(_TCP_FLAGS, 1)
        + _expression(
            "bitwise",
            number(1, _REGISTER)
            + number(2, _REGISTER)
            + number(3, 1)
            + _nested(4, attribute(1, bytes((_SYN | _ACKNOWLEDGED,))))
            + _nested(5, attribute(1, bytes(1))),
        )
        + _compare(0, bytes((_SYN,)))
    )
    return _chain("first", _LOCAL_IN, _RAW_PRIORITY - 1, _matched(_IIF, 2) + opens + queue)


def _chains() -> Iterable[bytes]:
    drop = _expression("counter", b"") + _expression(
        "immediate", number(1, 0) + _nested(2, _nested(2, number(1, 0)))
    )
    yield from _chain("in", _LOCAL_IN, _RAW_PRIORITY, _matched(_IIF, 2) + drop)
    yield from _chain("out", _LOCAL_OUT, _RAW_PRIORITY, _matched(_OIF, 0) + drop)


def _chain(name: str, hook: int, priority: int, rule: bytes) -> Iterable[bytes]:
    place = number(1, hook) + attribute(2, struct.pack(">i", priority))
    yield _create(
        _NEWCHAIN, _text(1, TABLE) + _text(3, name) + _nested(4, place) + _text(7, "filter")
    )
    yield _create(_NEWRULE, _text(1, TABLE) + _text(2, name) + _nested(4, rule), _APPEND)


def _matched(interface: int, offset: int) -> bytes:
    """Not loopback, TCP, a port of the set at this offset of its header."""
    loopback = struct.pack("=I", _LOOPBACK)
    return (
        _meta(interface)
        + _compare(1, loopback)
        + _meta(_L4PROTO)
        + _compare(0, bytes((socket.IPPROTO_TCP,)))
        + _loaded(offset, _PORT_LENGTH)
        + _expression("lookup", _text(1, _SET) + number(2, _REGISTER) + number(4, 1))
    )


def _loaded(offset: int, length: int) -> bytes:
    """Bytes of the TCP header."""
    place = number(2, _TRANSPORT) + number(3, offset) + number(4, length)
    return _expression("payload", number(1, _REGISTER) + place)


def _meta(key: int) -> bytes:
    return _expression("meta", number(1, _REGISTER) + number(2, key))


def _compare(operator: int, value: bytes) -> bytes:
    return _expression(
        "cmp", number(1, _REGISTER) + number(2, operator) + _nested(3, attribute(1, value))
    )


def _expression(name: str, data: bytes) -> bytes:
    return _nested(1, _text(1, name) + _nested(2, data))


# --- netlink ------------------------------------------------------------------------------------


def attribute(kind: int, data: bytes) -> bytes:
    """As netlink has it: length, kind, data."""
    length = _ATTRIBUTE.size + len(data)
    return _ATTRIBUTE.pack(length, kind) + data + bytes(-length % 4)


def _nested(kind: int, data: bytes) -> bytes:
    return attribute(kind | _NESTED, data)


def number(kind: int, value: int) -> bytes:
    """32 bits, big end first."""
    return attribute(kind, struct.pack(">I", value))


def _text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def _create(kind: int, body: bytes, flags: int = 0) -> bytes:
    return _message(kind, body, _CREATE | _ACK | flags)


def _message(kind: int, body: bytes, flags: int) -> bytes:
    return message((_SUBSYSTEM << 8) | kind, _FAMILY.pack(_INET, 0, 0) + body, flags)


def message(kind: int, body: bytes, flags: int = _ACK) -> bytes:
    """`kind`: subsystem and what it is to do; `body` begins with a family."""
    return _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0) + body


def _edge(kind: int) -> bytes:
    return message(kind, _FAMILY.pack(0, 0, _SUBSYSTEM), 0)


def _batch(netlink: socket.socket, messages: Iterable[bytes]) -> None:
    """All of them or none."""
    wanted = list(messages)
    netlink.send(_edge(_BEGIN) + b"".join(wanted) + _edge(_END))
    for _ in wanted:
        _take_answer(netlink)


def ask(netlink: socket.socket, message: bytes) -> None:
    """Send what is to be acknowledged. Raises what the kernel says, OSError."""
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


def _rules(netlink: socket.socket) -> list[Mapping[int, bytes]]:
    """Ours: a kernel may list those of others as well."""
    netlink.send(_message(_GETRULE, _text(1, TABLE), _ALL))
    found = [dict(_inside(rule)) for rule in _all(netlink)]
    return [rule for rule in found if rule[1] == f"{TABLE}\0".encode()]


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
    """Packets."""
    expressions = [dict(_inside(one)) for _, one in _inside(rule[4])]
    counters = [dict(_inside(one[2])) for one in expressions if one[1] == b"counter\0"]
    return sum(int.from_bytes(one[2], "big") for one in counters)
