"""Connections to a seat's server: a request out, its answer back, as HTTP/1.1.

aiohttp's client takes a third of the CPU that a request costs the proxy, and 2 µs for each event of
a stream; here httptools parses, and pieces that came together are passed on together.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httptools
from multidict import CIMultiDict

from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_MOST_HEAD = 64 * 1024
"""Bytes of an answer's headers; and of what comes before they are whole."""
_MOST_HEADERS = 256
_MOST_UNREAD = 512 * 1024
"""Bytes that wait for a slow client before its seat's connection isn't read any more."""
_NO_BODY = frozenset({204, 304})


class SeatError(KybernateError):
    """The seat's server broke off, or was silent for too long."""


class BadHeadError(KybernateError):
    """A request whose path or headers can't be written."""


def head(method: str, path: str, address: str, headers: CIMultiDict[str]) -> bytes:
    """A request up to its body. Raises BadHeadError if a line of it would be two."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    text = "\r\n".join(lines)
    breaks = len(lines) - 1
    if text.count("\n") != breaks or text.count("\r") != breaks or lines[0].count(" ") != 2:
        raise BadHeadError("its path or a header has a line's end or a space within")
    return f"{text}\r\n\r\n".encode(errors="surrogateescape")


class Line(asyncio.Protocol):
    """One connection; one answer at a time, read by one reader. `over` is called once it is lost.

    `status`, `reason` and `headers` are the answer's after `begun`.
    """

    def __init__(self, silence: float, over: Callable[[Line], None]) -> None:
        """`silence`: seconds without a byte of an answer after which it counts as broken off."""
        self._loop = asyncio.get_running_loop()
        self._silence, self._over = silence, over
        self._transport: asyncio.Transport
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._asked = self._paused = self._lost = False
        self._reset("")

    def _reset(self, method: str) -> None:
        self._bodiless = method == "HEAD"
        self.status, self.reason = 0, ""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self._head, self._unread = 0, 0
        self._whole = self._until_end = False
        self._error: SeatError | None = None
        self.reusable = True

    @property
    def usable(self) -> bool:
        """Whether it may have another request: of the last answer nothing is left, which would be
        read as the beginning of the next, whoever asks for that."""
        over = self._whole and not self._parts
        return over and self.reusable and not self._lost and not self._transport.is_closing()

    @property
    def length(self) -> int | None:
        """Bytes of the answer's body, if it says so."""
        said = self.headers.get("Content-Length")
        return int(said) if said else None

    async def ask(
        self, method: str, head: bytes, body: bytearray | AsyncIterator[memoryview]
    ) -> None:
        """Send a request, and wait until its answer begins. Raises SeatError."""
        self._reset(method)
        self._asked, self._heard = True, self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._silence, self._listen)
        if isinstance(body, bytearray):
            self._transport.writelines((head, body)) if body else self._transport.write(head)
        else:
            self._transport.write(head)
            self._sending = self._loop.create_task(self._send(body))
        while not self.status:
            await self._more()

    async def _send(self, pieces: AsyncIterator[memoryview]) -> None:
        async for piece in pieces:
            self._heard = self._loop.time()
            self._transport.write(piece)
            if self._writable is not None:
                await self._writable
            if self._lost:
                return
        self._heard = self._loop.time()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The answer's body as it comes. Raises SeatError if it breaks off."""
        while piece := await self.piece():
            yield piece

    async def piece(self) -> bytes:
        """All that has come of the body since, at least a byte; b"" at its end. Raises
        SeatError."""
        while not self._parts:
            if self._whole:
                return b""
            await self._more()
        parts = self._parts
        piece = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._unread = 0
        if self._paused and not self._lost:
            self._paused, self._heard = False, self._loop.time()
            self._transport.resume_reading()
        return piece

    async def read(self, most: int) -> bytes:
        """The body, of which no more than `most` bytes are kept. Raises SeatError."""
        body = await self.piece()
        while len(body) < most and (more := await self.piece()):
            body += more
        return body[:most]

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def rest(self) -> None:
        """The answer was read, or is given up: then the connection is closed."""
        self._asked = False
        if self._sending is not None:
            self.reusable = self.reusable and self._sending.done()
            self._sending.cancel()
            self._sending = None
        if not self.usable:
            self.close()

    def close(self) -> None:
        """Close it, whatever of an answer is still to come."""
        self._stop_listening()
        self._transport.abort()

    def _stop_listening(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _listen(self) -> None:
        """Whether the answer comes. Looks again rather than be set by each byte."""
        self._timer = None
        if not self._asked:
            return
        left = self._heard + self._silence - self._loop.time()
        if self._paused or left > 0:
            self._timer = self._loop.call_later(
                self._silence if self._paused else left, self._listen
            )
            return
        self._fail(f"it sent nothing for {self._silence:g} s")

    def _fail(self, why: str) -> None:
        if not self._whole:
            self._error = self._error or SeatError(why)
        self.reusable = False
        self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- asyncio's ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._lost = True
        self._stop_listening()
        if not self._whole:
            self._error = self._error or SeatError(str(exc or "it closed the connection"))
        self.resume_writing()
        self._wake()
        self._over(self)

    def eof_received(self) -> None:
        """See `asyncio.Protocol`. An answer without a length ends so."""
        if self.status and self._until_end:
            self._whole = True

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if not self._asked or self._whole:
            self._fail("it said more than its answer")
            return
        self._heard = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"its answer isn't HTTP ({error.__context__ or error})")
            return
        self._unread += len(data)
        if not self.status and self._unread > 2 * _MOST_HEAD:
            self._fail(f"its headers are longer than {_MOST_HEAD} bytes")
            return
        if self._unread > _MOST_UNREAD and not self._whole and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    # --- httptools' -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Raises ValueError if nobody asked for another answer."""
        if self._whole:
            raise ValueError("another answer after the first")
        self.reason = ""
        self.headers.clear()

    def on_status(self, reason: bytes) -> None:
        """A part of the reason."""
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Raises ValueError if there are too many. Those after the body are left out."""
        self._head += len(name) + len(value)
        if self._head > _MOST_HEAD or len(self.headers) >= _MOST_HEADERS:
            raise ValueError(f"its headers are over {_MOST_HEAD} bytes or {_MOST_HEADERS} lines")
        if not self.status:
            self.headers.add(name.decode("latin-1"), value.decode(errors="surrogateescape"))

    def on_headers_complete(self) -> None:
        """The answer begins, unless it is a word before it (100 Continue). Raises ValueError for a
        change of protocols, which nobody asked for."""
        status = self._parser.get_status_code()
        if status == 101:
            raise ValueError("it changes protocols unasked")
        if status < 200:
            return
        coding = ",".join(self.headers.getall("Transfer-Encoding", ())).lower()
        chunked = coding.rpartition(",")[2].strip() == "chunked"
        self._until_end = not (
            chunked or (not coding and "Content-Length" in self.headers) or status in _NO_BODY
        )
        self.reusable = self._parser.should_keep_alive() and not self._until_end
        if self._bodiless:
            self._whole, self.reusable = True, False
        self.status = status

    def on_message_complete(self) -> None:
        """The answer is whole, if it has begun."""
        if self.status:
            self._whole = True
