"""Passing one request on to a seat, and its answer back, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import orjson
from aiohttp import web
from multidict import CIMultiDict

from kybernate.errors import KybernateError
from kybernate.lib.retry import Pauses, quietly, retry
from proxy.openai import ApiError, rename_model
from proxy.relay.lines import BadHeadError, SeatError, head
from proxy.relay.traces import NO_TRACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Set
    from contextlib import AbstractAsyncContextManager

    from multidict import CIMultiDictProxy

    from proxy.actions import Outlook, SeatInfo, Serve
    from proxy.desk import Flight
    from proxy.relay.asking import Asking, Shape
    from proxy.relay.lines import Line
    from proxy.relay.pools import Pool, Pools
    from proxy.relay.traces import Trace

REQUEST_ID = "X-Request-Id"
SEAT = "X-Kyb-Seat"
WAKE_MS = "X-Kyb-Wake-Ms"
WAIT_MS = "X-Kyb-Wait-Ms"
PRIORITY = "X-Kyb-Priority"
PROGRESS = "X-Kyb-Progress"

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OURS = {name.lower() for name in (SEAT, WAKE_MS, WAIT_MS, PRIORITY, PROGRESS, REQUEST_ID)}
NOT_TO_SEAT = _HOP_BY_HOP | _OURS | {"host", "content-length", "content-encoding", "expect"}
_NOT_TO_CLIENT = _HOP_BY_HOP | _OURS | {"content-length"}
_PAUSES = Pauses(0.01, 0.25)
"""Between tries to connect: a server may need a moment to listen again after a wake."""
_AGAIN = frozenset({"GET", "HEAD", "OPTIONS"})
"""Asked again where a connection turns out to be closed that had rested."""
_PIECE = 256 * 1024
_WHOLE = 64 * 1024
"""Answers up to this many bytes are read before the first byte is passed on: one write."""


class ClientLeftError(KybernateError):
    """The client closed its connection in mid-answer; nobody is left to be told."""


class Exchange:
    """One request to a seat and its answer.

    `response` is set as soon as anything was sent to the client; before that, an error can still
    be answered in full.
    """

    def __init__(
        self,
        request: web.Request,
        asking: Asking,
        request_id: str,
        ours: Set[str] = frozenset(),
        trace: Trace = NO_TRACE,
        sent: Callable[[], None] = lambda: None,
    ) -> None:
        """`ours`: more headers that the seat must not see, in lower case. `sent` is called once a
        large body is no more in memory. A small one counts until the end: what a seat leaves unread
        of it lies in the socket's buffer, however soon it answers."""
        self.response: web.StreamResponse | None = None
        self._trace, self._sent = trace, sent
        self._request = request
        self._asking = asking
        self._body = asking.body
        self._request_id = request_id
        self._not_to_seat = NOT_TO_SEAT | ours

    async def run(self, flight: Flight, pools: Pools, connect_limit: float) -> web.StreamResponse:
        """Do it.

        Raises ApiError (502) if the seat doesn't answer, or stops in mid-answer, (400) if the model
        can't be given the seat's name for it, and ClientLeftError.
        """
        seat = flight.serve.seat
        named = self._asking.named
        if named and named != seat.model:
            rename_model(self._body, named, seat.model)
        pool = pools.pool(seat.uid, seat.address)
        line = await self._open(pool, seat, connect_limit)
        self._trace.begins(line.status)
        try:
            response = await self._pass_on(line, flight.serve)
        except SeatError as error:
            raise ApiError(
                502, "upstream_failed", f"{seat.model} broke off its answer: {error}."
            ) from error
        finally:
            pool.give(line)
        flight.answered = True
        return response

    async def tell(self, outlook: Outlook) -> None:
        """Tell a client that waits how it stands, in a comment between events: the answer begins
        with it. Raises ClientLeftError."""
        with _client_side():
            if self.response is None:
                headers = {REQUEST_ID: self._request_id, "Content-Type": "text/event-stream"}
                self.response = web.StreamResponse(headers=headers)
                await self.response.prepare(self._request)
            await self.response.write(b": kyb " + orjson.dumps(_progress(outlook)) + b"\n\n")

    async def _open(self, pool: Pool, seat: SeatInfo, limit: float) -> Line:
        headers = self._to_seat()
        self._trace.asks(headers)
        headers["Content-Length"] = str(len(self._body))
        method = self._asking.method or self._request.method
        try:
            first = head(method, self._asking.path, seat.address, headers)
        except BadHeadError as error:
            raise ApiError(
                400, "invalid_request", f"The request can't be sent: {error}."
            ) from error
        try:
            async with within(self._asking.begin_limit):
                return await self._ask(pool, method, first, limit)
        except (OSError, SeatError) as error:
            raise unreachable(seat, error) from error

    async def _ask(self, pool: Pool, method: str, first: bytes, limit: float) -> Line:
        if (line := pool.take()) is not None:
            try:
                return await self._begun(pool, line, method, first)
            except SeatError:
                if method not in _AGAIN or self._body:
                    raise
        until = asyncio.get_running_loop().time() + limit
        line = await retry(pool.connect, quietly, on=OSError, pauses=_PAUSES, until=until)
        return await self._begun(pool, line, method, first)

    async def _begun(self, pool: Pool, line: Line, method: str, first: bytes) -> Line:
        try:
            await line.ask(method, first, self._payload())
        except BaseException:
            pool.give(line)
            raise
        return line

    def _payload(self) -> bytearray | AsyncIterator[memoryview]:
        """The body. A large one goes in pieces: as a whole it would lie in the socket's buffer,
        too, until the seat has read it."""
        return self._pieces() if len(self._body) > _PIECE else self._body

    async def _pieces(self) -> AsyncIterator[memoryview]:
        view = memoryview(self._body)
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]
        # A connection that was refused asks for none, so that nobody will ask for them again.
        self._body = bytearray()
        self._sent()

    async def _pass_on(self, line: Line, serve: Serve) -> web.StreamResponse:
        if self.response is not None:
            return await self._continue(line, self.response)
        headers = without(line.headers, _NOT_TO_CLIENT)
        headers.extend(kyb_headers(self._request_id, serve))
        if (shape := self._asking.shape) is not None:
            return await self._reshape(line, shape, headers)
        length = line.length
        if length is not None and length <= _WHOLE:
            body = await line.read(_WHOLE)
            return web.Response(status=line.status, reason=line.reason, headers=headers, body=body)
        response = web.StreamResponse(status=line.status, reason=line.reason, headers=headers)
        if length is not None:
            response.content_length = length
        return await self._stream(response, line.pieces())

    async def _continue(self, line: Line, response: web.StreamResponse) -> web.StreamResponse:
        """The answer to a client that was told how it stands: its status and headers are sent."""
        if _is_events(line):
            return await self._stream(response, line.pieces())

        async def event() -> AsyncIterator[bytes]:
            yield b"data: "
            async for chunk in line.pieces():
                yield chunk.replace(b"\n", b"\ndata: ")
            yield b"\n\n"

        return await self._stream(response, event())

    async def _reshape(
        self, line: Line, shape: Shape, headers: CIMultiDict[str]
    ) -> web.StreamResponse:
        for name in ("Content-Type", "Content-Encoding", "Etag"):
            headers.popall(name, None)
        if line.status != 200:
            said = await line.read(_WHOLE)
            body = shape.refused(said)
            headers["Content-Type"] = "application/json"
            return web.Response(status=line.status, headers=headers, body=body)
        headers["Content-Type"] = shape.content_type

        async def pieces() -> AsyncIterator[bytes]:
            async for chunk in line.pieces():
                if made := shape.more(chunk):
                    yield made
            yield shape.end()

        return await self._stream(web.StreamResponse(headers=headers), pieces())

    async def _stream(
        self, response: web.StreamResponse, pieces: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        self.response = response
        with _client_side():
            await response.prepare(self._request)  # nothing, if it has begun
        async for piece in pieces:
            with _client_side():
                await response.write(piece)
        with _client_side():
            await response.write_eof()
        return response

    def _to_seat(self) -> CIMultiDict[str]:
        headers = without(self._request.headers, self._not_to_seat)
        headers[REQUEST_ID] = self._request_id
        if self.response is not None:
            # Its headers are sent, and name no encoding.
            headers["Accept-Encoding"] = "identity"
        headers.update(self._asking.headers)
        return headers


def within(seconds: float | None) -> AbstractAsyncContextManager[object]:
    """Raises TimeoutError in what takes longer. asyncio's own costs as much without a limit."""
    return contextlib.nullcontext() if seconds is None else asyncio.timeout(seconds)


@contextlib.contextmanager
def _client_side() -> Iterator[None]:
    # Without this a client's reset would look like one of the seat.
    try:
        yield
    except ConnectionError as error:
        raise ClientLeftError("the client closed its connection") from error


def _progress(outlook: Outlook) -> dict[str, object]:
    left = outlook.left
    return {
        "waited_ms": round(outlook.waited * 1000),
        "expected_ms": None if left is None else round(left * 1000),
        "seat": outlook.told,
    }


def kyb_headers(request_id: str, serve: Serve) -> dict[str, str]:
    """What the proxy adds to an answer."""
    return {
        REQUEST_ID: request_id,
        SEAT: f"{serve.seat.node}/{serve.seat.name}",
        WAKE_MS: f"{serve.held * 1000:.1f}",
    }


def _is_events(line: Line) -> bool:
    kind = line.headers.get("Content-Type", "")
    return kind.partition(";")[0].strip().lower() == "text/event-stream"


def without(
    headers: CIMultiDict[str] | CIMultiDictProxy[str], names: frozenset[str]
) -> CIMultiDict[str]:
    """The headers but for these, and but for those that count for one connection alone."""
    connection = headers.getall("Connection", ())
    named = {name.strip().lower() for value in connection for name in value.split(",")}
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower not in names and lower not in named:
            kept.add(name, value)
    return kept


def unreachable(seat: SeatInfo, error: BaseException) -> ApiError:
    """What a client is told when a granted seat can't be reached."""
    where = f"{seat.pod} at {seat.address}"
    return ApiError(
        502, "upstream_failed", f"{seat.model} ({where}) did not answer: {cause(error)}."
    )


def cause(error: BaseException) -> str:
    """What an error says, or at least its kind."""
    return str(error) or type(error).__name__
