"""The HTTP side: which path is answered how."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web
from prometheus_client.exposition import choose_encoder

from proxy.openai import ApiError, model_list, model_of
from proxy.page.door import Door
from proxy.relay.asking import Asking
from proxy.relay.visits import refusal_of
from proxy.routing import refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from kybernate.settings.proxy import ProxySettings
    from proxy.actions import Client
    from proxy.clients import Clients
    from proxy.desk import Desk
    from proxy.metrics import Metrics
    from proxy.page.board import Board
    from proxy.relay.visits import Visits

    _Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Front:
    """The proxy's HTTP handlers."""

    def __init__(  # noqa: PLR0913, PLR0917 - one of each
        self,
        desk: Desk,
        visits: Visits,
        metrics: Metrics,
        settings: ProxySettings,
        clients: Clients,
        board: Board,
        not_ready: Callable[[], str | None],
    ) -> None:
        """`not_ready` returns a sentence while requests can't be served, else None."""
        self._visits = visits
        self._desk = desk
        self._metrics = metrics
        self._settings = settings
        self._others = {**settings.aliases, **settings.adapters}
        self._clients = clients
        self._not_ready = not_ready
        self._created = int(time.time())
        self._page = Door(board, clients.who)

    def application(self) -> web.Application:
        """The application to serve; run it with handler cancellation on."""
        app, ours = web.Application(), _in_openais_shape
        router = app.router
        for path in self._settings.paths:
            if path != "*":
                router.add_post(path, self._post)  # found at once, others by the pattern below
        router.add_get("/v1/models", ours(self._models))
        router.add_get("/v1/models/{model:.+}", ours(self._model))
        router.add_post("/api/models/{act:park|wake|pin|unpin|unload}/{model:.+}", ours(self._act))
        router.add_post("/{path:.+}", self._post)
        router.add_get("/healthz", ours(self._healthz))
        router.add_get("/readyz", ours(self._readyz))
        router.add_get("/metrics", ours(self._scrape))
        self._page.routes(lambda how, path, one: router.add_route(how, path, ours(one)))
        app.on_shutdown.append(self._page.close)
        router.add_route("*", "/{path:.*}", self._elsewhere)
        return app

    async def _post(self, request: web.Request) -> web.StreamResponse:
        """A request to a model, at one of the setting `paths`; held while its seat wakes."""
        # As it was written: what a seat would take for another path is none of these.
        if self._settings.allows(request.rel_url.raw_path):
            return await self._visits.serve(request, self._clients.who, self._read)
        return await self._elsewhere(request)

    def _read(self, request: web.Request, body: bytearray) -> Asking:
        named = model_of(body)
        model = self._others.get(named)
        if model is None:
            return Asking(named, request.path_qs, body, named=named)
        if not self._desk.admission.routes(model, self._desk.now, self._clients.who(request)):
            # By the name that was asked: whose alias it is may be another tenant's.
            raise ApiError(*refusal(named, ()))
        renamed = "" if named in self._settings.adapters else named
        return Asking(model, request.path_qs, body, named=renamed)

    async def _models(self, request: web.Request) -> web.Response:
        """The models that the client may ask, in OpenAI's shape, with each seat's state."""
        return _json(self._listed(self._clients.who(request)))

    def _listed(self, client: Client) -> dict[str, Any]:
        admission = self._desk.admission
        names = admission.models(self._desk.now, client)
        return model_list(admission.seats(), names, self._others, self._created)

    async def _model(self, request: web.Request) -> web.Response:
        """One of them."""
        client, name = self._clients.who(request), request.match_info["model"]
        listed = self._listed(client)["data"]
        # An alias comes before a model's own name.
        for entry in sorted(listed, key=lambda entry: entry["id"] != name):
            if name in (entry["id"], entry["kyb"]["name"]):
                return _json(entry)
        here = name not in self._others
        found = self._desk.admission.routes(name, self._desk.now, client) if here else ()
        raise ApiError(*refusal(name, found))

    async def _act(self, request: web.Request) -> web.Response:
        """What a box does; in a cluster the API server decides who may, and this asks nothing of
        it."""
        self._clients.who(request)
        act = request.match_info["act"]
        how = "kubectl delete pod" if act == "unload" else f"kubectl kyb {act}"
        said = f"The proxy does nothing to a pod. Run it as yourself: {how} POD -n NAMESPACE."
        raise ApiError(403, "only_shown", said)

    async def _healthz(self, _: web.Request) -> web.Response:
        """200 while the process answers."""
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        """200 once requests can be served, else 503 with the reason."""
        reason = self._not_ready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    async def _scrape(self, request: web.Request) -> web.Response:
        """Metrics, for a client of all namespaces."""
        if self._clients.who(request).namespaces is not None:
            reason = "Metrics name every namespace's models: ask as a client of all (--of-all)."
            raise ApiError(403, "all_namespaces_needed", reason)
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = encode(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _elsewhere(self, request: web.Request) -> web.Response:
        """Refused, with the paths that are allowed."""
        allowed = ", ".join(path for path in self._settings.paths if path != "*")
        message = (
            f"{request.method} {request.path[:200]} is not allowed here: GET /v1/models, or POST "
            f"to {allowed or 'a path below /v1/'} (the proxy's setting paths)."
        )
        return _error(ApiError(404, "unknown_url", message))


def _in_openais_shape(handler: _Handler) -> _Handler:
    """The handler, whose ApiErrors are answers. aiohttp's middlewares would do the same for every
    request, also for those to models, which need none."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            return _error(error)

    return answer


def _json(data: object) -> web.Response:
    return web.Response(body=orjson.dumps(data), content_type="application/json")


def _error(error: ApiError) -> web.Response:
    response = refusal_of(error)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
