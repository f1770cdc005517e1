"""The few nf_tables messages that the gate before a parked pod needs, spoken to the kernel itself.

No program is run: the container's could be anybody's, and the agent's image has none.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TABLE = "kybernate"
SET = "ports"
_NETFILTER = 12
_SUBSYSTEM = 10
_FAMILY_INET = 1
_PRIORITY = -400
"""Before connection tracking: what is dropped here leaves no trace there."""

_NEW_TABLE, _GET_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 1, 2, 3, 6
_GET_RULE, _NEW_SET, _NEW_ELEMENTS, _GET_ELEMENTS = 7, 9, 12, 13
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_REQUEST, _ACK, _DUMP, _CREATE, _APPEND = 0x1, 0x4, 0x300, 0x400, 0x800
_ERROR, _DONE = 2, 3
_NESTED = 0x8000
_HOOKS = {"in": 1, "out": 3}
_INTERFACE = {"in": 4, "out": 5}
"""Keys of "meta": by which interface it came, by which it goes."""
_PORT_OFFSET = {"in": 2, "out": 0}
"""Of the container's own port in the TCP header."""
_LOOPBACK = 1
"""Number of lo in every network namespace."""
_TYPE_PORT = 13
_MOST_ELEMENTS = 1000
"""In one message, whose attributes are at most 64 KiB long."""


class Gate:
    """The table in the network namespace in which this was made; close it soon."""

    def __init__(self, timeout: float) -> None:
        self._link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
        self._link.settimeout(timeout)
        self._link.bind((0, 0))
        self._sequence = 0

    def close(self) -> None:
        """Let go of it; the table stays."""
        self._link.close()

    def ports(self) -> frozenset[int] | None:
        """The ports for which TCP is dropped; None if there is no table. Raises OSError."""
        body = _text(1, TABLE) + _text(2, SET)
        try:
            answers = self._ask(_GET_ELEMENTS, body, _REQUEST | _DUMP | _ACK)
        except FileNotFoundError:
            return None
        found = set()
        for answer in answers:
            for element in _children(_find(answer[20:], 3)):
                (port,) = struct.unpack_from(">H", _find(_find(element, 1), 1))
                found.add(port)
        return frozenset(found)

    def shut(self, ports: Iterable[int]) -> None:
        """Drop and count TCP of these ports, and of those before. Raises OSError."""
        messages = [] if self.ports() is not None else list(_table())
        left = sorted(ports)
        while left:
            some, left = left[:_MOST_ELEMENTS], left[_MOST_ELEMENTS:]
            elements = [_nested(1, _nested(1, _attribute(1, struct.pack(">H", p)))) for p in some]
            body = _text(1, TABLE) + _text(2, SET) + _nested(3, b"".join(elements))
            messages.append((_NEW_ELEMENTS, body, _CREATE))
        self._batch(messages)

    def open(self) -> None:
        """Drop nothing any more; idempotent. Raises OSError."""
        try:
            self._batch([(_DELETE_TABLE, _text(1, TABLE), 0)])
        except FileNotFoundError:
            return

    def dropped(self) -> int:
        """Packets dropped since it was shut. Raises OSError."""
        body = _text(1, TABLE)
        total = 0
        for answer in self._ask(_GET_RULE, body, _REQUEST | _DUMP | _ACK):
            for expression in _children(_find(answer[20:], 4)):
                if _find(expression, 1).rstrip(b"\0") == b"counter":
                    (count,) = struct.unpack(">Q", _find(_find(expression, 2), 2))
                    total += count
        return total

    def _message(self, kind: int, body: bytes, flags: int) -> bytes:
        self._sequence += 1
        general = struct.pack(">BBH", _FAMILY_INET, 0, 0)
        return _envelope(_SUBSYSTEM << 8 | kind, flags, self._sequence, general + body)

    def _ask(self, kind: int, body: bytes, flags: int) -> list[bytes]:
        self._link.send(self._message(kind, body, flags))
        return self._answers(1)

    def _batch(self, messages: list[tuple[int, bytes, int]]) -> None:
        if not messages:
            return
        general = struct.pack(">BBH", 0, 0, _SUBSYSTEM)
        packet = _envelope(_BATCH_BEGIN, _REQUEST, 0, general)
        for kind, body, flags in messages:
            packet += self._message(kind, body, _REQUEST | _ACK | flags)
        self._link.send(packet + _envelope(_BATCH_END, _REQUEST, 0, general))
        self._answers(len(messages))

    def _answers(self, ends: int) -> list[bytes]:
        """Everything up to so many acknowledgements. Raises OSError with the kernel's number."""
        found: list[bytes] = []
        while ends:
            data = self._link.recv(1 << 18)
            while len(data) >= 16:
                length, kind = struct.unpack_from("=IH", data)
                message, data = data[:length], data[(length + 3) & ~3 :]
                if kind in (_ERROR, _DONE):
                    (code,) = struct.unpack_from("=i", message, 16)
                    if code:
                        raise OSError(-code, _words(-code))
                    ends -= 1
                else:
                    found.append(message)
        return found


def _words(number: int) -> str:
    if number in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT):
        return "this kernel has no nf_tables: load it, or choose a kernel that has it"
    return f"nf_tables: {os.strerror(number)}"


def _table() -> Iterator[tuple[int, bytes, int]]:
    yield _NEW_TABLE, _text(1, TABLE), _CREATE
    key = _number(4, _TYPE_PORT) + _number(5, 2)
    yield _NEW_SET, _text(1, TABLE) + _text(2, SET) + _number(3, 0) + key + _number(10, 1), _CREATE
    for name, hook in _HOOKS.items():
        place = _number(1, hook) + _attribute(2, struct.pack(">i", _PRIORITY))
        chain = _text(1, TABLE) + _text(3, name) + _nested(4, place) + _text(7, "filter")
        yield _NEW_CHAIN, chain, _CREATE
        rule = _text(1, TABLE) + _text(2, name) + _nested(4, b"".join(_rule(name)))
        yield _NEW_RULE, rule, _CREATE | _APPEND


def _rule(name: str) -> Iterator[bytes]:
    """TCP, not by loopback, of a port in the set: counted and dropped."""
    yield _expression("meta", _number(1, 1) + _number(2, 16))
    yield _compare(0, bytes([socket.IPPROTO_TCP]))
    yield _expression("meta", _number(1, 1) + _number(2, _INTERFACE[name]))
    yield _compare(1, struct.pack("=I", _LOOPBACK))
    place = _number(2, 2) + _number(3, _PORT_OFFSET[name]) + _number(4, 2)
    yield _expression("payload", _number(1, 1) + place)
    yield _expression("lookup", _text(1, SET) + _number(2, 1))
    yield _expression("counter", b"")
    verdict = _nested(2, _number(1, 0))
    yield _expression("immediate", _number(1, 0) + _nested(2, verdict))


def _compare(operation: int, value: bytes) -> bytes:
    return _expression(
        "cmp", _number(1, 1) + _number(2, operation) + _nested(3, _attribute(1, value))
    )


def _expression(name: str, body: bytes) -> bytes:
    return _nested(1, _text(1, name) + _nested(2, body))


def _envelope(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    head = struct.pack("=HH", 4 + len(value), kind)
    return head + value + bytes(-len(value) % 4)


def _nested(kind: int, value: bytes) -> bytes:
    return _attribute(kind | _NESTED, value)


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack(">I", value))


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & ~_NESTED, data[4:length]
        data = data[(length + 3) & ~3 :]


def _children(data: bytes) -> list[bytes]:
    return [value for _, value in _parts(data)]


def _find(data: bytes, wanted: int) -> bytes:
    return next((value for kind, value in _parts(data) if kind == wanted), b"")
