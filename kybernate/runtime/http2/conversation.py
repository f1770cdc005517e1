"""One connection of HTTP/2 from the server's side: bytes in, requests and bytes out. Pure.

A peer that errs in a stream has that stream reset; one that errs about the connection gets a GOAWAY
and `Broken` is raised. Bodies are kept until they are whole. All of our own flow control is one
large window: what a peer may make us keep is bounded by `most_body` instead.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from . import hpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .hpack import Header

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_STREAMS = 128
"""Requests that may be under way on a connection."""

MOST_HEADERS = 1 << 16
"""Bytes of one request's headers."""

FRAME = 1 << 20
"""Bytes of a frame that we take, and the most that we send."""

_LOW_BITS = (1 << 31) - 1
"""Of a number of four bytes, whose first bit means nothing."""

_WINDOW = _LOW_BITS
_FIRST_WINDOW = 65_535
_FIRST_FRAME = 16_384

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 3
FRAME_SIZE_ERROR, REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 7, 9, 11

_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
_OURS = {2: 0, 3: MOST_STREAMS, _MAX_FRAME_SIZE: FRAME, 6: MOST_HEADERS}
"""Our settings by their numbers: no push; streams; size of a frame; size of headers."""

_HOPS = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}


_NO_BLOCK = (0, 0, bytearray())
"""What stands for headers that are half here where none are: stream, whether it ended, and them."""


class Broken(Exception):  # noqa: N818 - it is the connection that is
    """The peer's bytes can't be followed any further; what is left to send says why."""


class Request(NamedTuple):
    """A request with its body. If that is larger than may be, `body` is empty and `length`, in
    bytes, says how large it is, as far as that is known."""

    stream: int
    method: str
    path: str
    headers: Mapping[bytes, bytes]
    body: bytes
    length: int


@dataclass(slots=True)
class _Stream:
    window: int
    headers: dict[bytes, bytes]
    declared: int | None
    parts: list[bytes] = field(default_factory=list)
    received: int = 0
    asked: bool = False
    """The request was given out."""
    ended: bool = False
    """The peer has sent all of it."""
    reset: bool = False
    """The peer wants no answer any more."""
    unsent: bytes = b""


class Conversation:
    """What is said on one connection. Not thread-safe."""

    def __init__(self, most_body: int) -> None:
        """`most_body` is how many bytes a request's body may have."""
        self.out = bytearray()
        """What is to be sent; whoever sends it empties it."""
        self.left = False
        """Whether the peer was told to open no more streams."""
        self._most_body = most_body
        self._input = bytearray()
        self._greeted = False
        self._headers = hpack.Reader(MOST_HEADERS)
        self._block = _NO_BLOCK
        self._streams: dict[int, _Stream] = {}
        self._last = 0
        self._held = 0
        self._unacknowledged = 0
        self._window = _FIRST_WINDOW
        self._stream_window = _FIRST_WINDOW
        self._frame = _FIRST_FRAME
        self._found: list[Request] = []
        window = min(_WINDOW, most_body + FRAME)
        settings = {**_OURS, _INITIAL_WINDOW_SIZE: window}
        packed = b"".join(struct.pack(">HI", *one) for one in settings.items())
        self._send(SETTINGS, 0, 0, packed)
        self._send(UPDATE, 0, 0, struct.pack(">I", _WINDOW - _FIRST_WINDOW))

    @property
    def open(self) -> int:
        """How many streams are under way."""
        return len(self._streams)

    def receive(self, data: bytes) -> list[Request]:
        """The requests that are whole with these bytes. Raises Broken."""
        self._input += data
        if not self._greeted and not self._greet():
            return []
        at, found = 0, self._input
        while len(found) - at >= 9:
            length = int.from_bytes(found[at : at + 3], "big")
            if length > FRAME:
                self._break(FRAME_SIZE_ERROR, "a frame is too large")
            if len(found) - at < 9 + length:
                break
            kind, flags, stream = struct.unpack_from(">BBI", found, at + 3)
            self._take(kind, flags, stream & _LOW_BITS, bytes(found[at + 9 : at + 9 + length]))
            at += 9 + length
        del found[:at]
        requests, self._found = self._found, []
        return requests

    def respond(self, stream: int, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Answer a request. Nothing happens if the peer doesn't want that any more."""
        one = self._streams.get(stream)
        if one is None or one.reset:
            self._drop(stream)
            return
        head = [(b":status", b"%d" % status), *headers]
        flags = END_HEADERS | (0 if body else END_STREAM)
        self._send(HEADERS, flags, stream, hpack.write(head))
        one.unsent = body
        self._go_on(stream, one)

    def leave(self) -> None:
        """Have the peer open no more streams here. Those that are open are answered."""
        if not self.left:
            self.left = True
            self._send(GOAWAY, 0, 0, struct.pack(">II", self._last, NO_ERROR))

    def _greet(self) -> bool:
        have = bytes(self._input[: len(PREFACE)])
        if have != PREFACE[: len(have)]:
            self._break(PROTOCOL_ERROR, "this is no HTTP/2")
        if len(have) < len(PREFACE):
            return False
        del self._input[: len(PREFACE)]
        self._greeted = True
        return True

    def _take(self, kind: int, flags: int, stream: int, load: bytes) -> None:
        if self._block is not _NO_BLOCK and (kind, stream) != (CONTINUATION, self._block[0]):
            self._break(PROTOCOL_ERROR, "a request's headers were interrupted")
        act = self._acts.get(kind)
        if act is not None:
            act(self, flags, stream, load)

    def _on_data(self, flags: int, stream: int, load: bytes) -> None:
        self._acknowledge(len(load))
        one = self._streams.get(stream)
        if one is None or one.asked or one.ended:
            if not 0 < stream <= self._last:
                self._break(PROTOCOL_ERROR, "data came for no stream")
            return
        if flags & PADDED:
            load = self._unpadded(load)
        one.received += len(load)
        if one.received > self._most_body:
            self._ask(stream, one, whole=False)
            return
        if self._held + len(load) > 2 * self._most_body:
            self._reset(stream, ENHANCE_YOUR_CALM)
            return
        self._held += len(load)
        one.parts.append(load)
        if flags & END_STREAM:
            self._end(stream, one)

    def _on_headers(self, flags: int, stream: int, load: bytes) -> None:
        if not stream & 1:
            self._break(PROTOCOL_ERROR, "a client's streams have odd numbers")
        if flags & PADDED:
            load = self._unpadded(load)
        if flags & WITH_PRIORITY:
            load = load[5:]
        self._block = stream, flags & END_STREAM, bytearray(load)
        if flags & END_HEADERS:
            self._open()

    def _on_continuation(self, flags: int, stream: int, load: bytes) -> None:
        if self._block is _NO_BLOCK:
            self._break(PROTOCOL_ERROR, "there are no headers to continue")
        self._block[2].extend(load)
        if len(self._block[2]) > MOST_HEADERS:
            self._break(ENHANCE_YOUR_CALM, "a request's headers are too large")
        if flags & END_HEADERS:
            self._open()

    def _open(self) -> None:
        """All of a request's headers are here, or of what may follow its body."""
        stream, ended, block = self._block
        self._block = _NO_BLOCK
        try:
            headers = self._headers.read(bytes(block))
        except hpack.HpackError as error:
            self._break(COMPRESSION_ERROR, str(error))
        if stream <= self._last:
            self._trail(stream, ended)
            return
        if self.left:
            return
        self._last = stream
        known = _checked(headers)
        if known is None:
            self._send(RESET, 0, stream, struct.pack(">I", PROTOCOL_ERROR))
        elif len(self._streams) >= MOST_STREAMS:
            self._send(RESET, 0, stream, struct.pack(">I", REFUSED_STREAM))
        else:
            self._begin(stream, known, ended)

    def _begin(self, stream: int, headers: dict[bytes, bytes], ended: int) -> None:
        length = headers.get(b"content-length")
        declared = None if length is None else int(length)
        one = self._streams[stream] = _Stream(self._stream_window, headers, declared)
        if ended:
            self._end(stream, one)
        elif declared is not None and declared > self._most_body:
            self._ask(stream, one, whole=False)

    def _trail(self, stream: int, ended: int) -> None:
        one = self._streams.get(stream)
        if one is None or one.asked:
            return
        if not ended:
            self._break(PROTOCOL_ERROR, "a request has headers twice")
        self._end(stream, one)

    def _end(self, stream: int, one: _Stream) -> None:
        one.ended = True
        if one.declared not in (None, one.received):
            self._reset(stream, PROTOCOL_ERROR)
        else:
            self._ask(stream, one, whole=True)

    def _ask(self, stream: int, one: _Stream, *, whole: bool) -> None:
        one.asked = True
        body = b"".join(one.parts) if whole else b""
        self._held -= sum(map(len, one.parts))
        one.parts.clear()
        length = len(body) if whole else max(one.declared or 0, one.received)
        method, path = (one.headers[key].decode("latin-1") for key in (b":method", b":path"))
        self._found.append(Request(stream, method, path, one.headers, body, length))

    def _on_reset(self, _flags: int, stream: int, _load: bytes) -> None:
        one = self._streams.get(stream)
        if one is not None and one.asked and not one.unsent:
            # It counts until it is answered: nobody has us do more at a time by giving up.
            one.reset = True
        else:
            self._drop(stream)

    def _on_settings(self, flags: int, _stream: int, load: bytes) -> None:
        if flags & ACK:
            return
        if len(load) % 6:
            self._break(FRAME_SIZE_ERROR, "settings are six bytes each")
        for number, value in struct.iter_unpack(">HI", load):
            if number == _INITIAL_WINDOW_SIZE:
                self._set_window(value)
            elif number == _MAX_FRAME_SIZE:
                self._frame = min(max(_FIRST_FRAME, value), FRAME)
        self._send(SETTINGS, ACK, 0, b"")

    def _set_window(self, value: int) -> None:
        if value > _WINDOW:
            self._break(FLOW_CONTROL_ERROR, "a window is too large")
        for one in self._streams.values():
            one.window += value - self._stream_window
        self._stream_window = value
        self._go_on_with_all()

    def _on_ping(self, flags: int, _stream: int, load: bytes) -> None:
        if len(load) != 8:
            self._break(FRAME_SIZE_ERROR, "a ping has eight bytes")
        if not flags & ACK:
            self._send(PING, ACK, 0, load)

    def _on_update(self, _flags: int, stream: int, load: bytes) -> None:
        more = int.from_bytes(load, "big") & _LOW_BITS
        if len(load) != 4 or not more:
            self._break(PROTOCOL_ERROR, "a window grows by nothing")
        one = self._streams.get(stream)
        if not stream:
            self._window += more
        elif one is not None:
            one.window += more
        if max(self._window, one.window if one else 0) > _WINDOW:
            self._break(FLOW_CONTROL_ERROR, "a window is too large")
        self._go_on_with_all()

    def _on_goaway(self, _flags: int, _stream: int, _load: bytes) -> None:
        self.left = True

    def _on_push(self, _flags: int, _stream: int, _load: bytes) -> None:
        self._break(PROTOCOL_ERROR, "clients push nothing")

    _acts: Mapping[int, Callable[[Conversation, int, int, bytes], None]] = {
        DATA: _on_data,
        HEADERS: _on_headers,
        RESET: _on_reset,
        SETTINGS: _on_settings,
        PUSH: _on_push,
        PING: _on_ping,
        GOAWAY: _on_goaway,
        UPDATE: _on_update,
        CONTINUATION: _on_continuation,
    }

    def _go_on_with_all(self) -> None:
        for stream, one in list(self._streams.items()):
            if one.unsent:
                self._go_on(stream, one)

    def _go_on(self, stream: int, one: _Stream) -> None:
        """Send of an answer what the peer's windows let through."""
        while one.unsent:
            size = min(len(one.unsent), self._frame, self._window, one.window)
            if size <= 0:
                return
            part, one.unsent = one.unsent[:size], one.unsent[size:]
            self._window -= size
            one.window -= size
            self._send(DATA, 0 if one.unsent else END_STREAM, stream, part)
        if not one.ended:
            self._send(RESET, 0, stream, struct.pack(">I", NO_ERROR))
        self._drop(stream)

    def _acknowledge(self, size: int) -> None:
        """Let the peer send as much again, now and then."""
        self._unacknowledged += size
        if self._unacknowledged > _WINDOW // 2:
            self._send(UPDATE, 0, 0, struct.pack(">I", self._unacknowledged))
            self._unacknowledged = 0

    def _unpadded(self, load: bytes) -> bytes:
        if not load or load[0] >= len(load):
            self._break(PROTOCOL_ERROR, "a frame is all padding")
        return load[1 : len(load) - load[0]]

    def _reset(self, stream: int, code: int) -> None:
        self._send(RESET, 0, stream, struct.pack(">I", code))
        self._drop(stream)

    def _drop(self, stream: int) -> None:
        one = self._streams.pop(stream, None)
        if one is not None:
            self._held -= sum(map(len, one.parts))

    def _break(self, code: int, why: str) -> NoReturn:
        self._send(GOAWAY, 0, 0, struct.pack(">II", self._last, code) + why.encode())
        self.left = True
        raise Broken(why)

    def _send(self, kind: int, flags: int, stream: int, load: bytes) -> None:
        self.out += struct.pack(">HBBBI", len(load) >> 8, len(load) & 255, kind, flags, stream)
        self.out += load


def _checked(headers: Iterable[Header]) -> dict[bytes, bytes] | None:
    """The headers by name, or None if they are not a request's."""
    found: dict[bytes, bytes] = {}
    plain = False
    for name, value in headers:
        pseudo = name.startswith(b":")
        plain = plain or not pseudo
        if (pseudo and (plain or name in found)) or name in _HOPS or name != name.lower():
            return None
        found[name] = found[name] + b", " + value if name in found else value
    length = found.get(b"content-length", b"0")
    complete = found.get(b":method") and found.get(b":path") and length.isdigit()
    return found if complete and len(length) < 20 else None
