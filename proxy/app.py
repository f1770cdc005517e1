"""The HTTP side: routes, and the life of one request."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from proxy.actions import ANYONE
from proxy.openai import ApiError, model_list, model_of
from proxy.routing import refusal
from proxy.upstream import REQUEST_ID, ClientLeftError, Exchange

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.settings.proxy import ProxySettings
    from proxy.actions import Client
    from proxy.clients import Clients
    from proxy.desk import Desk, Flight
    from proxy.metrics import Metrics
    from proxy.upstream import Pools

log = logging.getLogger(__name__)

_CLIENT_LEFT = 499
_SAFE_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)


class Front:
    """The proxy's HTTP handlers."""

    def __init__(
        self,
        desk: Desk,
        pools: Pools,
        metrics: Metrics,
        settings: ProxySettings,
        clients: Clients,
        not_ready: Callable[[], str | None],
    ) -> None:
        """`not_ready` returns a sentence while requests can't be served, else None."""
        self._desk = desk
        self._pools = pools
        self._metrics = metrics
        self._settings = settings
        self._clients = clients
        self._not_ready = not_ready
        self._created = int(time.time())

    def application(self) -> web.Application:
        """The application to serve; run it with handler cancellation on."""
        app = web.Application(middlewares=[_in_openais_shape])
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._model)
        app.router.add_post("/{path:.+}", self._post)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._scrape)
        app.router.add_route("*", "/{path:.*}", self._elsewhere)
        return app

    async def _post(self, request: web.Request) -> web.StreamResponse:
        # As it was written: what a seat would take for another path is none of these.
        if self._settings.allows(request.rel_url.raw_path):
            return await self._serve(request)
        return await self._elsewhere(request)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        visit = _Visit(request, self._desk.ticket(), self._desk.now)
        try:
            response = await self._answer(visit)
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

    async def _answer(self, visit: _Visit) -> web.StreamResponse:
        visit.client = self._clients.who(visit.request)
        body = await self._body(visit)
        model = model_of(body)
        # A key of ours is for us; where certificates alone count, the header is the seat's.
        ours = {"authorization"} if self._settings.auth in ("keys", "either") else set()
        visit.exchange = Exchange(visit.request, body, visit.request_id, ours)
        visit.exchange.sent = lambda: self._desk.admission.release(visit.ticket)
        del body  # the exchange lets go of it as soon as the seat has it
        flight = await self._admit(visit, model)
        visit.seat, visit.held = flight.serve.seat.name, flight.serve.held
        async with flight:
            return await visit.exchange.run(
                flight, model, self._pools, self._settings.connect_limit_s
            )

    async def _admit(self, visit: _Visit, model: str) -> Flight:
        try:
            flight = await self._desk.admit(visit.ticket, model, visit.client)
        except ApiError:
            # Only names that exist become labels of metrics.
            routes = self._desk.admission.routes(model, self._desk.now, visit.client)
            visit.model = routes[0] if len(routes) == 1 else ""
            raise
        visit.model = flight.serve.seat.route
        return flight

    async def _body(self, visit: _Visit) -> bytearray:
        """The request's body, its bytes counted as they come: what isn't here costs nobody's
        budget. Raises ApiError if it is too large, too slow, broken or doesn't fit."""
        declared = visit.request.content_length or 0
        body, limit = bytearray(), self._settings.max_body_bytes
        if declared <= limit:
            self._desk.announce(visit.ticket, visit.client, declared)
        try:
            async with asyncio.timeout(self._settings.body_limit_s):
                while declared <= limit:
                    chunk = await visit.request.content.readany()
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
        log.info(
            "%s %s client=%s model=%s seat=%s status=%d held_ms=%.1f total_ms=%.1f",
            visit.request_id,
            visit.request.path,
            visit.client.name or "-",
            visit.model or "-",
            visit.seat or "-",
            visit.status,
            visit.held * 1000,
            total * 1000,
        )

    async def _models(self, request: web.Request) -> web.Response:
        return _json(self._listed(self._clients.who(request)))

    def _listed(self, client: Client) -> dict[str, Any]:
        admission = self._desk.admission
        names = admission.models(self._desk.now, client)
        return model_list(admission.seats(), names, self._created)

    async def _model(self, request: web.Request) -> web.Response:
        client, name = self._clients.who(request), request.match_info["model"]
        for entry in self._listed(client)["data"]:
            if name in (entry["id"], entry["kyb"]["name"]):
                return _json(entry)
        found = self._desk.admission.routes(name, self._desk.now, client)
        raise ApiError(*refusal(name, found))

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._not_ready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    async def _scrape(self, request: web.Request) -> web.Response:
        if self._clients.who(request).namespaces is not None:
            reason = "Metrics name every namespace's models: ask as a client of all (--of-all)."
            raise ApiError(403, "all_namespaces_needed", reason)
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = encode(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _elsewhere(self, request: web.Request) -> web.Response:
        allowed = ", ".join(path for path in self._settings.paths if path != "*")
        message = (
            f"{request.method} {request.path[:200]} is not allowed here: GET /v1/models, or POST "
            f"to {allowed or 'a path below /v1/'} (the proxy's setting paths)."
        )
        return _error(ApiError(404, "unknown_url", message))


class _Visit:
    """What is known of one request, for its answer and its log line."""

    def __init__(self, request: web.Request, ticket: int, started: float) -> None:
        given = request.headers.get(REQUEST_ID, "")
        self.request = request
        self.ticket = ticket
        self.client = ANYONE
        self.request_id = given if _SAFE_ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"
        self.started = started
        self.model = ""
        self.seat = ""
        self.held = 0.0
        self.status = _CLIENT_LEFT
        self.exchange: Exchange | None = None

    async def refuse(self, error: ApiError, retry_after: int) -> web.StreamResponse:
        """Answer with the error, or if the answer has begun, end it so that the client notices."""
        begun = self.exchange.response if self.exchange else None
        if begun is None:
            response = _error(error)
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


@web.middleware
async def _in_openais_shape(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except ApiError as error:
        response = _error(error)
    return response


def _json(data: object) -> web.Response:
    return web.Response(body=orjson.dumps(data), content_type="application/json")


def _error(error: ApiError) -> web.Response:
    response = web.Response(status=error.status, body=error.body(), content_type="application/json")
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
