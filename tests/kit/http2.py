"""The least of a client of HTTP/2: what a server says is taken apart, and nothing is hidden."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from kybernate.runtime.http2 import hpack
from kybernate.runtime.http2.conversation import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.runtime.http2.hpack import Header

GREETING = PREFACE + b"\0\0\0\4\0\0\0\0\0"


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
    head = hpack.write(
        [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":path", path.encode()),
            (b":authority", b"localhost"),
            *more,
        ]
    )
    parts = [body[at : at + part] for at in range(0, len(body), part)]
    sent = frame(HEADERS, END_HEADERS | (0 if parts else END_STREAM), stream, head)
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
        found.append(Frame(*struct.unpack_from(">BBI", data, at + 3), load))
        at += 9 + length
    return found


def answers(found: Iterable[Frame]) -> dict[int, Answer]:
    """The answers that are whole, by stream."""
    headers: dict[int, dict[bytes, bytes]] = {}
    bodies: dict[int, bytes] = {}
    whole: dict[int, Answer] = {}
    reader = hpack.Reader(1 << 20)
    for one in found:
        assert one.kind != CONTINUATION
        if one.kind == HEADERS:
            headers[one.stream] = dict(reader.read(one.load))
        elif one.kind == DATA:
            bodies[one.stream] = bodies.get(one.stream, b"") + one.load
        if one.kind in (HEADERS, DATA) and one.flags & END_STREAM:
            head = headers[one.stream]
            whole[one.stream] = Answer(int(head[b":status"]), head, bodies.get(one.stream, b""))
    return whole
