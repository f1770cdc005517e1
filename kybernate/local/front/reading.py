"""From a request to what it asks for: which model, and what its server shall get."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode

from kybernate.local.front import bodies
from kybernate.local.front.endpoints import UPSTREAM, seats_path
from kybernate.types import SeatState
from proxy.openai import ApiError
from proxy.relay.asking import Asking

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from kybernate.api.models import Model, ModelsFile


class Reader:
    """Reads requests for the models of a file. `state` tells a model's state now."""

    def __init__(
        self,
        file: ModelsFile,
        state: Callable[[str], SeatState | None],
        busy: Counter[str] | None = None,
    ) -> None:
        self._file = file
        self._state = state
        self._ignored = [re.compile(one) for one in file.upstream.ignore_paths]
        self.busy: Counter[str] = Counter() if busy is None else busy
        """Requests of each model; they outlast the file that they were read by."""

    def model(self, called: str) -> tuple[str, Model]:
        """The model that this name or alias means. Raises ApiError (404) saying which there are."""
        name = self._file.names.get(called)
        if name is None:
            some = ", ".join(list(self._file.models)[:10])
            said = f"No model is called {called[:200]!r} here. There are: {some or 'none yet'}."
            raise ApiError(404, "model_not_found", said)
        return name, self._file.models[name]

    def check_room(self, name: str, model: Model) -> None:
        """Raises ApiError (429) if the model has as many requests as it takes at once."""
        limit = model.concurrency_limit
        if limit and self.busy[name] >= limit:
            said = f"{name} takes {limit} requests at once (concurrencyLimit); try again."
            raise ApiError(429, "too_many_requests", said, retry_after=1.0)

    def by_body(self, request: web.Request, body: bytearray) -> Asking:
        """Its body names the model."""
        header = request.headers.get("Content-Type", "")
        kind = bodies.kind_of(request.content_type, body)
        found = bodies.named(kind, header, body)
        name, model = self.model(found.name)
        body = bodies.prepared(kind, body, found, model)
        asking = self._asking(request, name, model, seats_path(request.rel_url.raw_path), body)
        if kind == request.content_type:
            return asking
        return replace(asking, headers={"Content-Type": kind})

    def by_query(self, request: web.Request, body: bytearray) -> Asking:
        """Its query names the model."""
        called = request.query.get("model", "")
        if not called:
            said = "Name a model in the query: ?model=NAME."
            raise ApiError(400, "model_missing", said)
        name, model = self.model(called)
        query = request.rel_url.raw_query_string
        if own := model.use_model_name:
            fields = parse_qsl(query, keep_blank_values=True)
            query = urlencode([(key, own if key == "model" else one) for key, one in fields])
        path = f"{request.rel_url.raw_path}?{query}"
        return self._asking(request, name, model, path, body, query=False)

    def by_path(self, request: web.Request, body: bytearray) -> Asking:
        """Its path names the model; what is below that is the server's, whatever it is."""
        called, rest = self.split_path(request)
        name, model = self.model(called)
        asleep = self._state(name) is not SeatState.ACTIVE
        if asleep and any(one.search(rest) for one in self._ignored):
            said = f"{name} is not active, and this path does not wake it (upstream.ignorePaths)."
            raise ApiError(409, "not_active", said)
        return self._asking(request, name, model, rest or "/", body)

    def split_path(self, request: web.Request) -> tuple[str, str]:
        """The model's name in a path below /upstream/, the longest that there is, and the rest as
        it was written; the rest is empty where not even a slash is there."""
        parts = request.rel_url.raw_path.removeprefix(UPSTREAM).split("/")
        for length in range(len(parts), 0, -1):
            called = "/".join(unquote(part) for part in parts[:length])
            if called in self._file.names:
                rest = "/".join(parts[length:])
                return called, f"/{rest}" if length < len(parts) else ""
        return unquote(parts[0]), "/"

    def _asking(
        self,
        request: web.Request,
        name: str,
        model: Model,
        path: str,
        body: bytearray,
        *,
        query: bool = True,
    ) -> Asking:
        if query and request.rel_url.raw_query_string:
            path = f"{path}?{request.rel_url.raw_query_string}"
        socket = is_websocket(request)
        quiet = socket and model.compat.ignore_websockets
        if quiet and self._state(name) is not SeatState.ACTIVE:
            said = f"{name} is not active, and websockets do not wake it (compat.ignoreWebsockets)."
            raise ApiError(409, "not_active", said)
        self.check_room(name, model)
        begin = model.timeouts.response_header or None
        return Asking(
            name, model.base + path, body, begin_limit=begin, socket=socket, counts=not quiet
        )


def is_websocket(request: web.Request) -> bool:
    """Whether the client wants a websocket."""
    upgrade = request.headers.get("Upgrade", "").lower() == "websocket"
    return upgrade and "upgrade" in request.headers.get("Connection", "").lower()
