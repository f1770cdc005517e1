"""As much of HTTP/2 (RFC 9113) as gRPC health probes need, without I/O.

Nobody but the kubelet's probe speaks here, so every call is taken for grpc.health.v1.Health/Check
and its headers aren't decoded; ours are literals without indexing, which need no state.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
SERVING, NOT_SERVING = 1, 2
FRAME_LIMIT = 16384
"""Bytes of payload in a frame, the protocol's own default."""


class ProtocolError(Exception):
    """The peer speaks something else."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; `raw` are its bytes with the header."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    raw: bytes

    @property
    def ends(self) -> bool:
        """Whether the sender says no more on this stream."""
        ending = self.kind in (DATA, HEADERS) and bool(self.flags & END_STREAM)
        return ending or self.kind == RST_STREAM

    @property
    def data(self) -> bytes:
        """The payload of a DATA frame without its padding."""
        if not self.flags & PADDED or not self.payload:
            return self.payload
        return self.payload[1 : len(self.payload) - self.payload[0]]


class Splitter:
    """Cuts a byte stream into frames; bytes may come in any pieces."""

    def __init__(self, preface: bytes = b"") -> None:
        self._preface = preface
        self._bytes = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now. Raises ProtocolError; the stream is lost then."""
        self._bytes += data
        if self._preface:
            if not self._bytes.startswith(self._preface[: len(self._bytes)]):
                raise ProtocolError("this is not HTTP/2")
            if len(self._bytes) < len(self._preface):
                return []
            self._bytes, self._preface = self._bytes[len(self._preface) :], b""
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        if len(self._bytes) < 9:
            return None
        length = int.from_bytes(self._bytes[:3], "big")
        if length > FRAME_LIMIT:
            raise ProtocolError(f"a frame of {length} bytes")
        if len(self._bytes) < 9 + length:
            return None
        kind, flags, stream = struct.unpack_from(">BBI", self._bytes, 3)
        raw, self._bytes = self._bytes[: 9 + length], self._bytes[9 + length :]
        return Frame(kind, flags, stream & 0x7FFFFFFF, raw[9:], raw)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame's bytes."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def headers(*pairs: tuple[str, str]) -> bytes:
    """A header block of literals without indexing; names and values below 127 bytes."""
    return b"".join(
        bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in pairs
    )


def answer(stream: int, status: int) -> bytes:
    """A whole response to Check on this stream."""
    message = bytes((0, 0, 0, 0, 2, 8, status))
    first = headers((":status", "200"), ("content-type", "application/grpc"))
    last = headers(("grpc-status", "0"))
    return b"".join(
        (
            frame(HEADERS, END_HEADERS, stream, first),
            frame(DATA, 0, stream, message),
            frame(HEADERS, END_HEADERS | END_STREAM, stream, last),
        )
    )


def status_in(message: bytes) -> int | None:
    """The status of a HealthCheckResponse behind its gRPC prefix, None while it isn't whole."""
    if len(message) < 5 or len(message) < 5 + int.from_bytes(message[1:5], "big"):
        return None
    body = message[5:]
    if message[0] or not body:
        return 0
    return body[1] if len(body) >= 2 and body[0] == 8 else 0


class Server:
    """The server's side of a connection on which health is asked. `opened`: settings are sent."""

    def __init__(self) -> None:
        self._splitter = Splitter(PREFACE)
        self._asked: list[int] = []
        self._to_acknowledge: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take in what the client sent. Raises ProtocolError."""
        for one in self._splitter.feed(data):
            if one.kind == SETTINGS and not one.flags & ACK:
                self._to_acknowledge.append(frame(SETTINGS, ACK, 0))
            elif one.kind == PING and not one.flags & ACK:
                self._to_acknowledge.append(frame(PING, ACK, 0, one.payload))
            elif one.stream and one.ends and one.kind != RST_STREAM:
                self._asked.append(one.stream)

    def answered(self, stream: int) -> None:
        """Somebody else has answered on this stream."""
        if stream in self._asked:
            self._asked.remove(stream)

    def forget_acknowledgements(self) -> None:
        """Somebody else has sent them."""
        self._to_acknowledge.clear()

    def greeting(self) -> bytes:
        """Our settings, which come before all else."""
        return frame(SETTINGS, 0, 0)

    def reply(self, status: int) -> bytes:
        """What is to be sent now, if health has this status."""
        out = b"".join(self._to_acknowledge)
        out += b"".join(answer(stream, status) for stream in self._asked)
        self._to_acknowledge.clear()
        self._asked.clear()
        return out
