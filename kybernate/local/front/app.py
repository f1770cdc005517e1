"""Which path of a box is answered how."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kybernate.errors import DeadlineError, NotFoundError, RefusedError
from kybernate.local.front import logs, views
from kybernate.local.front.access import Access
from kybernate.local.front.endpoints import UPSTREAM, is_by_body, is_by_query
from kybernate.local.front.ollama.door import Ollama
from kybernate.local.front.reading import Reader
from proxy.openai import ApiError
from proxy.page.door import Door, is_page
from proxy.relay.visits import refusal_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from prometheus_client.core import Metric

    from kybernate.api.models import ModelsFile
    from kybernate.local.box import Box
    from kybernate.types import SeatState
    from proxy.actions import Client
    from proxy.metrics import Metrics
    from proxy.page.board import Board
    from proxy.relay.asking import Asking
    from proxy.relay.visits import Visits

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LIMIT_S = 120.0
"""Seconds that a park, a wake or an unload by hand may take."""

_OPEN = ("/", "/health", "/wol-health")
"""Answered without a key, as they tell nothing."""


class Front:
    """A box's HTTP handlers."""

    def __init__(
        self, box: Box, board: Board, visits: Visits, metrics: Metrics, file: ModelsFile
    ) -> None:
        self._box = box
        self._visits = visits
        self._metrics = metrics
        self._created = int(time.time())
        self._busy: Counter[str] = Counter()
        self.take(file)
        self._ollama = Ollama(self)
        self._page = Door(board, self._who)
        self._followers: set[asyncio.Task[Any]] = set()

    def _who(self, request: web.Request) -> Client:
        return self.access.who(request)  # as the file says now

    def take(self, file: ModelsFile) -> None:
        """This file counts from now on; requests that were read continue as they were."""
        self.file = file
        self.access = Access(file)
        self.reader = Reader(file, self.state, self._busy)

    def application(self) -> web.Application:
        """The application to serve; run it with handler cancellation on."""
        app = web.Application(middlewares=[self._guarded])
        app.on_response_prepare.append(self._let_read)
        add = app.router.add_route
        for path in ("/v1/models", "/models"):
            add("GET", path, self._models)
        add("GET", "/v1/models/{model:.+}", self._model)
        add("GET", "/running", self._running)
        for method in ("GET", "POST"):
            add(method, "/unload", self._unload_all)
        add("POST", "/api/models/unload", self._unload_all)
        add("POST", "/api/models/{act:unload|park|wake|pin|unpin}/{model:.+}", self._act)
        add("GET", "/logs", self._logs)
        add("GET", "/logs/stream", self._log_stream)
        add("GET", "/logs/stream/{model:.+}", self._log_stream)
        add("GET", "/metrics", self._scrape)
        for path in _OPEN:
            add("GET", path, self._alive)
        self._ollama.routes(add)
        self._page.routes(add)
        app.on_shutdown.append(self._page.close)
        app.on_shutdown.append(self._end_logs)
        add("*", "/{path:.*}", self._any)
        return app

    async def serve(
        self,
        request: web.Request,
        read: Callable[[web.Request, bytearray], Asking],
        refusal: Callable[[ApiError], web.Response] = refusal_of,
    ) -> web.StreamResponse:
        """Have a model answer, as `read` says which."""
        taken, busy = [], self.reader.busy

        def counted(request: web.Request, body: bytearray) -> Asking:
            asking = read(request, body)
            busy[asking.model] += 1
            taken.append(asking.model)
            return asking

        def told(error: ApiError) -> web.Response:
            # The file has what was taken, so it isn't unknown.
            left_out = taken and error.code == "model_not_found"
            return refusal(_left_out(taken[0]) if left_out else error)

        try:
            return await self._visits.serve(request, self.access.who, counted, told)
        finally:
            for model in taken:
                busy[model] -= 1

    def state(self, name: str) -> SeatState | None:
        """A model's state now."""
        return next((row.state for row in self._box.models() if row.name == name), None)

    async def act(self, act: str, name: str) -> None:
        """Park, wake, pin, unpin or unload a model. Raises ApiError if that can't be done."""
        box = self._box
        try:
            match act:
                case "park":
                    await box.park(name, LIMIT_S)
                case "wake":
                    await box.wake(name, LIMIT_S)
                case "unload":
                    await box.unload(name, LIMIT_S)
                case _:
                    box.pin(name, pinned=act == "pin")
        except NotFoundError as error:
            raise ApiError(404, "model_not_found", str(error)) from error
        except RefusedError as error:
            raise ApiError(409, "refused", str(error)) from error
        except DeadlineError as error:
            raise ApiError(504, "on_its_way", str(error)) from error

    @property
    def box(self) -> Box:
        """Whose models these are."""
        return self._box

    # --- handlers -------------------------------------------------------------------------------

    async def _any(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if is_by_body(request.method, path):
            return await self.serve(request, self.reader.by_body)
        if is_by_query(request.method, path):
            return await self.serve(request, self.reader.by_query)
        if path.startswith(UPSTREAM):
            return await self._upstream(request)
        said = (
            f"{request.method} {request.path[:200]} is no path of this box. A model's own paths "
            "are below /upstream/MODEL/."
        )
        raise ApiError(404, "unknown_url", said)

    async def _upstream(self, request: web.Request) -> web.StreamResponse:
        _, rest = self.reader.split_path(request)
        if not rest:
            # So that the page's own links, which begin at its folder, lead to the model.
            query = request.rel_url.raw_query_string
            there = f"{request.rel_url.raw_path}/{f'?{query}' if query else ''}"
            return web.Response(status=308, headers={"Location": there})
        return await self.serve(request, self.reader.by_path)

    async def _models(self, request: web.Request) -> web.Response:
        entries = views.listed(self.file, self._box.models(), self._created)
        return answer({"object": "list", "data": entries})

    async def _model(self, request: web.Request) -> web.Response:
        name, model = self.reader.model(request.match_info["model"])
        shown = self.file.model_copy(update={"models": {name: model}})
        rows = self._box.models()
        entries = views.listed(shown, rows, self._created, unlisted=True)
        if not entries:
            raise _left_out(name)
        return answer(next(one for one in entries if one["id"] == name))

    async def _running(self, request: web.Request) -> web.Response:
        return answer(views.running(self.file, self._box.models()))

    async def _unload_all(self, request: web.Request) -> web.Response:
        await asyncio.gather(*(self.act("unload", row.name) for row in self._box.models()))
        return web.Response(text="OK")

    async def _act(self, request: web.Request) -> web.Response:
        name, _ = self.reader.model(request.match_info["model"])
        act = request.match_info["act"]
        await self.act(act, name)
        if act == "unload":
            return web.Response(text="OK")  # as llama-swap
        return answer(views.told(next(row for row in self._box.models() if row.name == name)))

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        return await logs.so_far(request, self._box)

    async def _log_stream(self, request: web.Request) -> web.StreamResponse:
        asked = request.match_info.get("model")
        there = {row.name for row in self._box.models()}
        names = [self.reader.model(asked)[0]] if asked else [*there]
        if missing := next((name for name in names if name not in there), None):
            raise _left_out(missing)
        task = asyncio.ensure_future(logs.stream(request, self._box, names))
        self._followers.add(task)
        try:
            return await task
        finally:
            self._followers.discard(task)

    async def _end_logs(self, app: web.Application) -> None:
        for task in self._followers:
            task.cancel()

    async def _scrape(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        self._box.count()
        body = encode(_Shown(self._metrics.registry))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _alive(self, request: web.Request) -> web.Response:
        return web.Response(text="Kybernate is running\n")

    # --- around each ----------------------------------------------------------------------------

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
                return self.access.preflight(request)
            self.access.admits_page(request)
            if request.path not in _OPEN and not is_page(request.path):
                self.access.who(request)
            return await handler(request)
        except ApiError as error:
            if request.path.startswith("/api/"):
                return self._ollama.refusal(error)
            response = refusal_of(error)
            if error.status == 401:
                # The page asks for a key itself: Basic would have the browser ask for it, too.
                basic = "" if is_page(request.path) else ', Basic realm="kybernate"'
                response.headers["WWW-Authenticate"] = f"Bearer{basic}"
            return response

    async def _let_read(self, request: web.Request, response: web.StreamResponse) -> None:
        with contextlib.suppress(ValueError):
            await self.access.let_read(request, response)


class _Shown(CollectorRegistry):
    """The proxy's metrics, and the agent's, which are those of this process."""

    def __init__(self, proxys: CollectorRegistry) -> None:
        super().__init__()
        self._proxys = proxys

    def collect(self) -> Iterator[Metric]:
        yield from self._proxys.collect()
        for family in REGISTRY.collect():
            if family.name.startswith("kyb_agent_"):
                yield family


def answer(data: Any) -> web.Response:
    """An answer in JSON."""
    return web.Response(body=orjson.dumps(data), content_type="application/json")


def _left_out(name: str) -> ApiError:
    said = f"{name} is in the file, but this box can't run it; the log of kybernate serve says why."
    return ApiError(404, "model_left_out", said)
