"""The life of one request: who asks, its body, its seat, the answer, and the line in the log."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from kybernate.errors import ConfigError
from proxy.actions import ANYONE, NO_WISH, Wish
from proxy.openai import ApiError
from proxy.relay.exchange import (
    PRIORITY,
    PROGRESS,
    REQUEST_ID,
    WAIT_MS,
    ClientLeftError,
    Exchange,
    within,
)
from proxy.relay.sockets import Socket
from proxy.relay.traces import NoTraces

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Set

    from kybernate.settings.proxy import ProxySettings
    from proxy.actions import Client
    from proxy.desk import Desk, Flight
    from proxy.metrics import Metrics
    from proxy.relay.asking import Asking
    from proxy.relay.pools import Pools
    from proxy.relay.traces import Trace, Traces

    Read = Callable[[web.Request, bytearray], Asking]

log = logging.getLogger(__name__)

_CLIENT_LEFT = 499
_TELL_EVERY = 0.5
"""Seconds."""
_LONGEST_MS = 86_400_000
_HIGHEST = 100
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_SAFE_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)


def wish_of(headers: Mapping[str, str], trace: str = "") -> Wish:
    """What a request says about its waiting. Raises ApiError (400) naming the header."""
    wait = _number(headers, WAIT_MS, 0, _LONGEST_MS)
    priority = _number(headers, PRIORITY, -_HIGHEST, _HIGHEST)
    if wait is None and priority is None and not trace:
        return NO_WISH
    return Wish(None if wait is None else wait / 1000, priority or 0, trace)


def _number(headers: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not _WHOLE_NUMBER.fullmatch(text) or not least <= int(text) <= most:
        said = f"{name} is {text[:40]!r}: write a whole number from {least} to {most}."
        raise ApiError(400, "invalid_header", said)
    return int(text)


def refusal_of(error: ApiError) -> web.Response:
    """An error as OpenAI's clients expect it."""
    return web.Response(status=error.status, body=error.body(), content_type="application/json")


class Visits:
    """Serves requests one by one; `serve` is all that a door needs."""

    def __init__(
        self,
        desk: Desk,
        pools: Pools,
        metrics: Metrics,
        settings: ProxySettings,
        ours: Set[str],
        traces: Traces,
    ) -> None:
        """`ours`: headers that are for the proxy and not for a seat, in lower case."""
        self._traces = traces
        self._desk = desk
        self._pools = pools
        self._metrics = metrics
        self._settings = settings
        self._ours = ours

    async def serve(
        self,
        request: web.Request,
        who: Callable[[web.Request], Client],
        read: Read,
        refusal: Callable[[ApiError], web.Response] = refusal_of,
    ) -> web.StreamResponse:
        """Answer a request that a model is to answer. `who` and `read` may raise ApiError."""
        trace = self._traces.begin(request.method, request.path, request.headers)
        visit = _Visit(request, self._desk.ticket(), self._desk.now, refusal, trace)
        try:
            visit.client = who(request)
            response = await self._answer(visit, read)
            visit.status = response.status
        except ApiError as error:
            visit.status = error.status
            response = await visit.refuse(error, self._settings.retry_after_s)
        except ClientLeftError:
            response = visit.end()
        finally:
            self._desk.admission.release(visit.ticket)
            self._account(visit)
        return response

    async def _answer(self, visit: _Visit, read: Read) -> web.StreamResponse:
        asking = read(visit.request, await self._body(visit))
        given = visit.request, asking, visit.request_id, self._ours, visit.trace
        sent = partial(self._desk.admission.release, visit.ticket)
        visit.exchange = Socket(*given) if asking.socket else Exchange(*given, sent)
        flight = await self._admit(visit, asking)
        # The exchange lets go of the body as soon as the seat has it.
        asking.body = bytearray()
        visit.seat, visit.held = flight.serve.seat.name, flight.serve.held
        if not asking.counts:
            self._desk.leave(visit.ticket)
            return await visit.exchange.run(flight, self._pools, self._settings.connect_limit_s)
        async with flight:
            return await visit.exchange.run(flight, self._pools, self._settings.connect_limit_s)

    async def _admit(self, visit: _Visit, asking: Asking) -> Flight:
        model, wish = asking.model, wish_of(visit.request.headers, visit.trace.waits())
        admitted = self._desk.admit(visit.ticket, model, visit.client, wish)
        told = visit.request.headers.get(PROGRESS) and asking.shape is None
        if told and isinstance(visit.exchange, Exchange):
            admitted = self._telling(visit.ticket, visit.exchange, admitted)
        try:
            flight = await admitted
        except ApiError:
            # Only names that exist become labels of metrics.
            routes = self._desk.admission.routes(model, self._desk.now, visit.client)
            visit.model = routes[0] if len(routes) == 1 else ""
            raise
        visit.model = flight.serve.seat.route
        visit.trace.served(flight.serve)
        return flight

    async def _telling(
        self, ticket: int, exchange: Exchange, admitted: Coroutine[None, None, Flight]
    ) -> Flight:
        """Tell the client now and then how it stands, until it is admitted."""
        task = asyncio.create_task(admitted)
        try:
            while not (await asyncio.wait((task,), timeout=_TELL_EVERY))[0]:
                if outlook := self._desk.admission.outlook(ticket, self._desk.now):
                    await exchange.tell(outlook)
            return task.result()
        except BaseException:
            task.cancel()
            self._desk.leave(ticket)
            raise

    async def _body(self, visit: _Visit) -> bytearray:
        """The request's body, its bytes counted as they come: what isn't here costs nobody's
        budget. Raises ApiError if it is too large, too slow, broken or doesn't fit."""
        declared = visit.request.content_length or 0
        body, limit = bytearray(), self._settings.max_body_bytes
        # What came whole with its headers needs no clock.
        content = visit.request.content
        limit_s = None if content.is_eof() else self._settings.body_limit_s
        if declared <= limit:
            self._desk.announce(visit.ticket, visit.client, declared)
        try:
            async with within(limit_s):
                while declared <= limit:
                    chunk = await content.readany()
                    if not chunk:
                        return body
                    if len(body) + len(chunk) > limit:
                        break
                    self._desk.receive(visit.ticket, visit.client, len(chunk))
                    body += chunk
        except TimeoutError as error:
            reason = f"The body did not come within {self._settings.body_limit_s:g} s."
            raise ApiError(408, "body_too_slow", reason) from error
        except web.RequestPayloadError as error:
            raise ApiError(400, "body_broken", f"The body can't be read: {error}.") from error
        raise ApiError(413, "body_too_large", f"The body is larger than {limit} bytes.")

    def _account(self, visit: _Visit) -> None:
        total = self._desk.now - visit.started
        self._metrics.count(visit.model, visit.status, visit.held, total)
        self._desk.over(visit.model, visit.status, visit.held)
        visit.trace.over(visit.model, visit.status)
        log.info(
            "%s %s client=%s model=%s seat=%s status=%d held_ms=%.1f total_ms=%.1f",
            visit.request_id,
            visit.request.rel_url.raw_path,  # as sent: no terminal obeys it
            visit.client.name or "-",
            visit.model or "-",
            visit.seat or "-",
            visit.status,
            visit.held * 1000,
            total * 1000,
        )


class _Visit:
    """What is known of one request, for its answer and its log line."""

    def __init__(
        self,
        request: web.Request,
        ticket: int,
        started: float,
        refusal: Callable[[ApiError], web.Response],
        trace: Trace,
    ) -> None:
        given = request.headers.get(REQUEST_ID, "")
        self.request = request
        self.ticket = ticket
        self.trace = trace
        self.client = ANYONE
        self.request_id = given if _SAFE_ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"
        self.started = started
        self.model = ""
        self.seat = ""
        self.held = 0.0
        self.status = _CLIENT_LEFT
        self.exchange: Exchange | Socket | None = None
        self._refusal = refusal

    async def refuse(self, error: ApiError, retry_after: int) -> web.StreamResponse:
        """Answer with the error, or if the answer has begun, end it so that the client notices."""
        begun = self.exchange.response if self.exchange else None
        if begun is None:
            response = self._refusal(error)
            if error.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            response.headers[REQUEST_ID] = self.request_id
            if error.status in (429, 503):
                seconds = math.ceil(error.retry_after) or retry_after
                response.headers["Retry-After"] = str(seconds)
            return response
        if begun.prepared and begun.content_type == "text/event-stream":
            await _last_event(begun, error)
        return self.end()

    def end(self) -> web.StreamResponse:
        """Close the connection, whatever of the answer was sent."""
        if self.request.transport is not None:
            self.request.transport.close()
        begun = self.exchange.response if self.exchange else None
        return begun or web.Response(status=_CLIENT_LEFT)


async def _last_event(response: web.StreamResponse, error: ApiError) -> None:
    try:
        async with asyncio.timeout(1.0):
            await response.write(b"data: " + error.body() + b"\n\n")
    except (ConnectionError, TimeoutError):
        log.debug("the client left before it could be told")


def traces(*, wanted: bool) -> Traces:
    """Spans of OpenTelemetry, or nobody's. Raises ConfigError without their library."""
    if not wanted:
        return NoTraces()
    try:
        from proxy.relay.spans import Spans  # noqa: PLC0415 - its library is an extra
    except ImportError as error:
        reason = "spans are made by OpenTelemetry: pip install 'kybernate[traces]'"
        raise ConfigError("traces", reason) from error
    return Spans()
