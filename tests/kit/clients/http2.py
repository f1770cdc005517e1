"""The least of a client of HTTP/2: what a server says is taken apart, and nothing is hidden."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import hpack

if TYPE_CHECKING:
    from collections.abc import Iterable

    Header = tuple[bytes, bytes]

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


class Frame(NamedTuple):
    """A frame as it came."""

    kind: int
    flags: int
    stream: int
    load: bytes


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def frame(kind: int, flags: int, stream: int, load: bytes = b"") -> bytes:
    """A frame's bytes."""
    return struct.pack(">I", len(load))[1:] + struct.pack(">BBI", kind, flags, stream) + load


def head(pairs: Iterable[Header]) -> bytes:
    """Headers that no later ones refer to."""
    listed = [hpack.NeverIndexedHeaderTuple(*pair) for pair in pairs]
    return hpack.Encoder().encode(listed, huffman=False)


def settings(**values: int) -> bytes:
    """Settings, named by a letter and their numbers: `n4=1000`."""
    pairs = (struct.pack(">HI", int(name[1:]), value) for name, value in values.items())
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def call(
    stream: int,
    path: str,
    body: bytes = b"",
    *more: Header,
    method: str = "POST",
    part: int = 16_384,
) -> bytes:
    """A request."""
    first = head(
        [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            *more,
        ]
    )
    parts = [body[at : at + part] for at in range(0, len(body), part)]
    sent = frame(HEADERS, END_HEADERS | (0 if parts else END_STREAM), stream, first)
    for number, one in enumerate(parts, 1):
        sent += frame(DATA, END_STREAM if number == len(parts) else 0, stream, one)
    return sent


def frames(data: bytes) -> list[Frame]:
    """What the bytes are, which must be whole frames."""
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        load = data[at + 9 : at + 9 + length]
        assert len(load) == length
        kind, flags, stream = struct.unpack_from(">BBI", data, at + 3)
        found.append(Frame(kind, flags, stream, load))
        at += 9 + length
    return found


def answers(found: Iterable[Frame]) -> dict[int, Answer]:
    """The answers that are whole, by stream."""
    headers: dict[int, dict[bytes, bytes]] = {}
    bodies: dict[int, bytes] = {}
    whole: dict[int, Answer] = {}
    reader = hpack.Decoder()
    for one in found:
        assert one.kind != CONTINUATION
        if one.kind == HEADERS:
            headers[one.stream] = dict(reader.decode(one.load, raw=True))
        elif one.kind == DATA:
            bodies[one.stream] = bodies.get(one.stream, b"") + one.load
        if one.kind in (HEADERS, DATA) and one.flags & END_STREAM:
            named = headers[one.stream]
            whole[one.stream] = Answer(int(named[b":status"]), named, bodies.get(one.stream, b""))
    return whole
