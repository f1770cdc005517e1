"""One connection of HTTP/2 from the server's side: bytes in, requests and bytes out. Pure.

The protocol is the `h2` library's; here requests are put together and answers are sent as the peer
takes them. All of our own flow control is one large window: what a peer may make us keep is bounded
by `most_body` instead.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from h2.events import Event

    Header = tuple[bytes, bytes]

MOST_STREAMS = 128
"""Requests that may be under way on a connection."""

MOST_HEADERS = 1 << 16
"""Bytes of one request's headers."""

_FIRST_WINDOW = 65_535
_WINDOW = (1 << 31) - 1


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
    headers: dict[bytes, bytes]
    parts: list[bytes] = field(default_factory=list)
    received: int = 0
    held: int = 0
    """Bytes of the body that are kept, here or by whoever answers."""
    asked: bool = False
    """The request was given out."""
    ended: bool = False
    """The peer has sent all of it."""
    reset: bool = False
    """The peer wants no answer any more."""
    unsent: bytes | None = None
    """What is left of the answer; None before there is one."""


class Conversation:
    """What is said on one connection. Not thread-safe."""

    def __init__(self, most_body: int) -> None:
        """`most_body` is how many bytes a request's body may have."""
        self.out = bytearray()
        """What is to be sent; whoever sends it empties it."""
        self.left = False
        """Whether the peer was told to open no more streams, or opens none any more."""
        self._most_body = most_body
        self._streams: dict[int, _Stream] = {}
        self._held = 0
        self._last = 0
        self._found: list[Request] = []
        self._peer = _peer()
        self._peer.initiate_connection()
        self._peer.increment_flow_control_window(_WINDOW - _FIRST_WINDOW)
        self._collect()

    @property
    def open(self) -> int:
        """How many streams are under way."""
        return len(self._streams)

    def receive(self, data: bytes) -> list[Request]:
        """The requests that are whole with these bytes. Raises Broken."""
        try:
            for event in self._peer.receive_data(data):
                self._take(event)
        except ProtocolError as error:
            self.left = True
            raise Broken(str(error) or type(error).__name__) from error
        finally:
            self._collect()
        requests, self._found = self._found, []
        return requests

    def respond(self, stream: int, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Answer a request. Nothing happens if the peer doesn't want that any more."""
        one = self._streams.get(stream)
        if one is None or one.reset:
            self._drop(stream)
            return
        self._release(one)
        head = [(b":status", b"%d" % status), *headers]
        try:
            self._peer.send_headers(stream, head, end_stream=not body)
            one.unsent = body
            self._continue(stream, one)
        except ProtocolError:
            self._drop(stream)
        self._collect()

    def leave(self) -> None:
        """Have the peer open no more streams here. Those that are open are answered."""
        if not self.left:
            self.left = True
            # The library's own way to say so ends its side of all streams at once.
            self.out += GoAwayFrame(0, last_stream_id=self._last).serialize()

    def _take(self, event: Event) -> None:
        act = _ACTS.get(type(event))
        if act is not None:
            act(self, event)

    def _on_request(self, event: RequestReceived) -> None:
        stream = event.stream_id
        if self.left:
            self._refuse(stream, ErrorCodes.REFUSED_STREAM)
            return
        self._last = stream
        # Answers are owed for streams that were given up: nobody has us do more at a time by it.
        if len(self._streams) >= MOST_STREAMS:
            self._refuse(stream, ErrorCodes.REFUSED_STREAM)
            return
        one = self._streams[stream] = _Stream(_by_name(event.headers or ()))
        if not event.stream_ended and _declared(one) > self._most_body:
            self._ask(stream, one, whole=False)

    def _on_data(self, event: DataReceived) -> None:
        stream, data = event.stream_id, event.data
        one = self._streams.get(stream)
        self._peer.acknowledge_received_data(event.flow_controlled_length or 0, stream)
        if one is None or one.asked:
            return
        one.received += len(data)
        if one.received > self._most_body:
            self._ask(stream, one, whole=False)
        elif self._held + len(data) > 2 * self._most_body:
            self._refuse(stream, ErrorCodes.ENHANCE_YOUR_CALM)
            self._drop(stream)
        else:
            self._held += len(data)
            one.held += len(data)
            one.parts.append(data)

    def _on_end(self, event: StreamEnded) -> None:
        stream = event.stream_id
        one = self._streams.get(stream)
        if one is not None:
            one.ended = True
            if not one.asked:
                self._ask(stream, one, whole=True)

    def _on_reset(self, event: StreamReset) -> None:
        stream = event.stream_id
        one = self._streams.get(stream)
        if one is not None and one.asked and one.unsent is None:
            one.reset = True
        else:
            self._drop(stream)

    def _on_window(self, _event: WindowUpdated | RemoteSettingsChanged) -> None:
        for stream, one in list(self._streams.items()):
            if one.unsent:
                self._continue(stream, one)

    def _on_goaway(self, _event: ConnectionTerminated) -> None:
        # The library sends nothing any more after that.
        self.left = True
        self._streams.clear()
        self._held = 0

    def _ask(self, stream: int, one: _Stream, *, whole: bool) -> None:
        one.asked = True
        body = b"".join(one.parts) if whole else b""
        one.parts.clear()
        if not whole:
            self._release(one)
        length = len(body) if whole else max(_declared(one), one.received)
        method, path = (one.headers[key].decode("latin-1") for key in (b":method", b":path"))
        self._found.append(Request(stream, method, path, one.headers, body, length))

    def _continue(self, stream: int, one: _Stream) -> None:
        """Send of an answer what the peer's windows let through."""
        while one.unsent:
            room = self._peer.local_flow_control_window(stream)
            size = min(len(one.unsent), self._peer.max_outbound_frame_size, room)
            if size <= 0:
                return
            part, one.unsent = one.unsent[:size], one.unsent[size:]
            self._peer.send_data(stream, part, end_stream=not one.unsent)
        if not one.ended:
            self._refuse(stream, ErrorCodes.NO_ERROR)
        self._drop(stream)

    def _refuse(self, stream: int, code: ErrorCodes) -> None:
        # The peer may have given it up by a later frame of those just read.
        with suppress(StreamClosedError):
            self._peer.reset_stream(stream, code)

    def _drop(self, stream: int) -> None:
        one = self._streams.pop(stream, None)
        if one is not None:
            self._release(one)

    def _release(self, one: _Stream) -> None:
        self._held -= one.held
        one.held = 0
        one.parts.clear()

    def _collect(self) -> None:
        self.out += self._peer.data_to_send()


def _peer() -> H2Connection:
    # What we send ourselves needs no second look.
    config = H2Configuration(
        client_side=False,
        header_encoding=None,
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
    )
    peer = H2Connection(config)
    values = {
        SettingCodes.ENABLE_PUSH: 0,
        SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
        SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
        SettingCodes.MAX_HEADER_LIST_SIZE: MOST_HEADERS,
    }
    peer.local_settings = Settings(client=False, initial_values=values)
    return peer


def _by_name(headers: Iterable[Header]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found[name] = found[name] + b", " + value if name in found else value
    return found


def _declared(one: _Stream) -> int:
    """The length of the body as its headers say it, which the library has checked; or 0."""
    return int(one.headers.get(b"content-length", b"0"))


_ACTS: dict[type, Callable[..., None]] = {
    RequestReceived: Conversation._on_request,  # noqa: SLF001 - of this module
    DataReceived: Conversation._on_data,  # noqa: SLF001
    StreamEnded: Conversation._on_end,  # noqa: SLF001
    StreamReset: Conversation._on_reset,  # noqa: SLF001
    WindowUpdated: Conversation._on_window,  # noqa: SLF001
    RemoteSettingsChanged: Conversation._on_window,  # noqa: SLF001
    ConnectionTerminated: Conversation._on_goaway,  # noqa: SLF001
}
