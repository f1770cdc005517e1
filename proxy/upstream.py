"""Passing one request on to a seat, and its answer back, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from kybernate.errors import KybernateError
from kybernate.lib.retry import Pauses, quietly, retry
from proxy.openai import ApiError, rename_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Set

    from multidict import CIMultiDictProxy

    from kybernate.settings.proxy import ProxySettings
    from kybernate.types import PodUid
    from proxy.actions import SeatInfo, Serve
    from proxy.desk import Flight

REQUEST_ID = "X-Request-Id"
SEAT = "X-Kyb-Seat"
WAKE_MS = "X-Kyb-Wake-Ms"

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
_OURS = {SEAT.lower(), WAKE_MS.lower(), REQUEST_ID.lower()}
_NOT_TO_SEAT = _HOP_BY_HOP | _OURS | {"host", "content-length", "content-encoding", "expect"}
_NOT_TO_CLIENT = _HOP_BY_HOP | _OURS | {"content-length"}
_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Not a byte was sent: a server may need a moment to listen again after a wake."""
_PAUSES = Pauses(0.01, 0.25)
_PIECE = 256 * 1024
_WHOLE = 64 * 1024
"""Answers up to this many bytes are read before the first byte is passed on: one write."""


class ClientLeftError(KybernateError):
    """The client closed its connection in mid-answer; nobody is left to be told."""


class Pools:
    """Connections to seats, one pool each, so that a seat's can be closed before it is parked.

    A server's idle timeouts all fire when it is thawed; a connection kept over a park would be
    reset under the next request.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._sessions: dict[PodUid, aiohttp.ClientSession] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def session(self, uid: PodUid) -> aiohttp.ClientSession:
        """The pool of a seat."""
        session = self._sessions.get(uid)
        if session is None:
            session = self._sessions[uid] = self._open()
        return session

    def drop(self, uid: PodUid) -> None:
        """Close all connections to this seat."""
        session = self._sessions.pop(uid, None)
        if session is not None:
            task = asyncio.ensure_future(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections."""
        for uid in list(self._sessions):
            self.drop(uid)
        await asyncio.gather(*self._closing)

    def _open(self) -> aiohttp.ClientSession:
        settings = self._settings
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=settings.idle_connection_s, use_dns_cache=False
            ),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=settings.connect_limit_s,
                sock_read=settings.answer_silence_s,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            auto_decompress=False,
        )


class Exchange:
    """One request to a seat and its answer.

    `response` is set as soon as anything was sent to the client; before that, an error can still
    be answered in full.
    """

    def __init__(
        self, request: web.Request, body: bytearray, request_id: str, ours: Set[str] = frozenset()
    ) -> None:
        """`ours`: more headers that the seat must not see, in lower case."""
        self.response: web.StreamResponse | None = None
        self.sent: Callable[[], None] = lambda: None
        """Called once a large body is no more in memory. A small one counts until the end: what a
        seat leaves unread of it lies in the socket's buffer, however soon it answers."""
        self._request = request
        self._body = body
        self._request_id = request_id
        self._not_to_seat = _NOT_TO_SEAT | ours

    async def run(
        self, flight: Flight, model: str, pools: Pools, connect_limit: float
    ) -> web.StreamResponse:
        """Do it. `model` is the name that the client used.

        Raises ApiError (502) if the seat doesn't answer, or stops in mid-answer, (400) if the model
        can't be given the seat's name for it, and ClientLeftError.
        """
        seat = flight.serve.seat
        if model != seat.model:
            rename_model(self._body, model, seat.model)
        upstream = await self._open(pools.session(seat.uid), seat, connect_limit)
        try:
            async with upstream:
                response = await self._pass_on(upstream, flight.serve)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(
                502, "upstream_failed", f"{seat.model} broke off its answer: {_cause(error)}."
            ) from error
        flight.answered = True
        return response

    async def _open(
        self, session: aiohttp.ClientSession, seat: SeatInfo, limit: float
    ) -> aiohttp.ClientResponse:
        url = URL(f"http://{seat.address}{self._request.path_qs}", encoded=True)
        headers = self._to_seat()
        headers["Content-Length"] = str(len(self._body))

        async def request() -> aiohttp.ClientResponse:
            return await session.request(
                self._request.method,
                url,
                data=self._payload(),
                headers=headers,
                allow_redirects=False,
            )

        until = asyncio.get_running_loop().time() + limit
        try:
            return await retry(request, quietly, on=_UNSENT, pauses=_PAUSES, until=until)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unreachable(seat, error) from error

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
        self.sent()

    async def _pass_on(self, upstream: aiohttp.ClientResponse, serve: Serve) -> web.StreamResponse:
        headers = _without(upstream.headers, _NOT_TO_CLIENT)
        headers.extend(kyb_headers(self._request_id, serve))
        length = upstream.content_length
        if length is not None and length <= _WHOLE:
            body = await upstream.read()
            return web.Response(
                status=upstream.status, reason=upstream.reason, headers=headers, body=body
            )
        response = web.StreamResponse(
            status=upstream.status, reason=upstream.reason, headers=headers
        )
        if length is not None:
            response.content_length = length
        self.response = response
        with _client_side():
            await response.prepare(self._request)
        async for chunk in upstream.content.iter_any():
            with _client_side():
                await response.write(chunk)
        with _client_side():
            await response.write_eof()
        return response

    def _to_seat(self) -> CIMultiDict[str]:
        headers = _without(self._request.headers, self._not_to_seat)
        headers[REQUEST_ID] = self._request_id
        return headers


@contextlib.contextmanager
def _client_side() -> Iterator[None]:
    # Without this a client's reset would look like one of the seat.
    try:
        yield
    except ConnectionError as error:
        raise ClientLeftError("the client closed its connection") from error


def kyb_headers(request_id: str, serve: Serve) -> dict[str, str]:
    """What the proxy adds to an answer."""
    return {
        REQUEST_ID: request_id,
        SEAT: f"{serve.seat.node}/{serve.seat.name}",
        WAKE_MS: f"{serve.held * 1000:.1f}",
    }


def _without(headers: CIMultiDictProxy[str], names: frozenset[str]) -> CIMultiDict[str]:
    connection = headers.getall("Connection", ())
    named = {name.strip().lower() for value in connection for name in value.split(",")}
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower not in names and lower not in named:
            kept.add(name, value)
    return kept


def _unreachable(seat: SeatInfo, error: BaseException) -> ApiError:
    where = f"{seat.pod} at {seat.address}"
    return ApiError(
        502, "upstream_failed", f"{seat.model} ({where}) did not answer: {_cause(error)}."
    )


def _cause(error: BaseException) -> str:
    return str(error) or type(error).__name__
