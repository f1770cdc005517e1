"""Ollama's paths."""

from __future__ import annotations

import hashlib
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import orjson
from aiohttp import web

from kybernate.core.seat.seats import OCCUPYING
from kybernate.local.front.ollama import requests, shapes
from proxy.relay.asking import Asking

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.api.models import Model, ModelsFile
    from kybernate.local.box import Box, ModelRow
    from kybernate.local.front.reading import Reader
    from proxy.openai import ApiError

    Json = dict[str, Any]

VERSION = "0.12.0"
"""Of Ollama's API; clients refuse to speak to one that they take for old."""

_LATEST = ":latest"
_ELSEWHERE = ("pull", "push", "create", "copy", "delete", "blobs/{digest}")


class House(Protocol):
    """What is behind these paths."""

    file: ModelsFile
    reader: Reader

    @property
    def box(self) -> Box:
        """The box."""
        ...

    async def serve(
        self,
        request: web.Request,
        read: Callable[[web.Request, bytearray], Asking],
        refusal: Callable[[ApiError], web.Response] = ...,
    ) -> web.StreamResponse:
        """Have a model answer."""
        ...

    async def act(self, act: str, name: str) -> None:
        """Park or wake a model."""
        ...


class Ollama:
    """Ollama's API, as far as it is about models that are there."""

    def __init__(self, house: House) -> None:
        self._house = house

    def routes(self, add: Callable[..., Any]) -> None:
        """Add its paths."""
        add("GET", "/api/version", self._version)
        add("GET", "/api/tags", self._tags)
        add("GET", "/api/ps", self._ps)
        add("POST", "/api/show", self._show)
        add("POST", "/api/chat", self._chat)
        add("POST", "/api/generate", self._generate)
        for path in ("/api/embed", "/api/embeddings"):
            add("POST", path, self._embed)
        for name in _ELSEWHERE:
            add("*", f"/api/{name}", self._unknown)

    @staticmethod
    def refusal(error: ApiError) -> web.Response:
        """An error in Ollama's shape."""
        body = orjson.dumps({"error": error.message})
        return web.Response(status=error.status, body=body, content_type="application/json")

    # --- what models answer ---------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        def read(request: web.Request, body: bytearray) -> Asking:
            asked = requests.decoded(body)
            if not asked.get("messages"):
                return self._nothing(asked)
            shape = shapes.Talk(
                str(asked.get("model", "")), shapes.message, streamed=requests.is_streamed(asked)
            )
            return self._asking(asked, "/v1/chat/completions", requests.chat(asked), shape)

        return await self._served(request, read)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        def read(request: web.Request, body: bytearray) -> Asking:
            asked = requests.decoded(body)
            if not asked.get("prompt") and not asked.get("images"):
                return self._nothing(asked)
            shape = shapes.Talk(
                str(asked.get("model", "")), shapes.response, streamed=requests.is_streamed(asked)
            )
            if asked.get("raw") or asked.get("suffix"):
                return self._asking(asked, "/v1/completions", requests.complete(asked), shape)
            return self._asking(asked, "/v1/chat/completions", requests.generate(asked), shape)

        return await self._served(request, read)

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        single = request.path.endswith("/embeddings")

        def read(_: web.Request, body: bytearray) -> Asking:
            asked = requests.decoded(body)
            shape = shapes.Embeddings(str(asked.get("model", "")), single=single)
            return self._asking(asked, "/v1/embeddings", requests.embed(asked), shape)

        return await self._served(request, read)

    async def _served(
        self, request: web.Request, read: Callable[[web.Request, bytearray], Asking]
    ) -> web.StreamResponse:
        try:
            return await self._house.serve(request, read, self.refusal)
        except _NothingError as nothing:
            await self._house.act("park" if nothing.leaves else "wake", nothing.name)
            said: Json = {"model": nothing.called, "created_at": shapes.now(), "response": ""}
            said["message"] = {"role": "assistant", "content": ""}
            reason = "unload" if nothing.leaves else "load"
            return _answer(said | {"done": True, "done_reason": reason})

    def _asking(
        self, asked: Json, path: str, said: Json, shape: shapes.Talk | shapes.Embeddings
    ) -> Asking:
        name, model, called = self._model(asked)
        self._house.reader.check_room(name, model)
        said["model"] = model.use_model_name or name
        model.filters.apply(said, called)
        return Asking(
            name,
            model.base + path,
            # Not orjson: a number may be longer than it takes.
            bytearray(msgspec.json.encode(said)),
            method="POST",
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
            begin_limit=model.timeouts.response_header or None,
            shape=shape,
        )

    def _nothing(self, asked: Json) -> Asking:
        name, _, called = self._model(asked)
        keep = asked.get("keep_alive")
        raise _NothingError(name, called, leaves=keep in (0, "0", "0s"))

    def _model(self, asked: Json) -> tuple[str, Model, str]:
        called = str(asked.get("model") or asked.get("name") or "")
        if called not in self._house.file.names:
            called = called.removesuffix(_LATEST)
        name, model = self._house.reader.model(called)
        return name, model, called

    # --- what the box answers -------------------------------------------------------------------

    async def _version(self, request: web.Request) -> web.Response:
        return _answer({"version": VERSION, "kybernate": metadata.version("kybernate")})

    async def _tags(self, request: web.Request) -> web.Response:
        rows = {row.name: row for row in self._house.box.models()}
        models = self._house.file.models.items()
        listed = [
            _tag(name, one, rows[name]) for name, one in models if name in rows and not one.unlisted
        ]
        return _answer({"models": listed})

    async def _ps(self, request: web.Request) -> web.Response:
        models = self._house.file.models
        active = [row for row in self._house.box.models() if row.state in OCCUPYING]
        return _answer(
            {
                "models": [
                    _tag(row.name, models[row.name], row) | {"size_vram": row.size}
                    for row in active
                    if row.name in models
                ]
            }
        )

    async def _show(self, request: web.Request) -> web.Response:
        _, model, _ = self._model(requests.decoded(bytearray(await request.read())))
        can = model.capabilities
        words = {"tools": can.tools, "vision": "image" in can.inputs}
        about: Json = {"general.architecture": "unknown"}
        if can.context:
            about["unknown.context_length"] = can.context
        return _answer(
            {
                "modelfile": f"# {model.cmd}",
                "parameters": "",
                "template": "",
                "details": _DETAILS,
                "model_info": about,
                "capabilities": ["completion", *(word for word, is_so in words.items() if is_so)],
            }
        )

    async def _unknown(self, request: web.Request) -> web.Response:
        said = "Models of this box are those of models.yaml; change the file, it is read again."
        return web.json_response({"error": said}, status=404)


class _NothingError(Exception):
    """The request has nothing for the model to answer: it is to be loaded, or to leave."""

    def __init__(self, name: str, called: str, *, leaves: bool) -> None:
        super().__init__(name)
        self.name = name
        self.called = called
        self.leaves = leaves


_DETAILS = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": None,
    "parameter_size": "",
    "quantization_level": "",
}


def _tag(name: str, model: Model, row: ModelRow) -> Json:
    return {
        "name": name,
        "model": name,
        "modified_at": shapes.now(),
        "size": row.size,
        "digest": hashlib.sha256(model.cmd.encode()).hexdigest(),
        "details": _DETAILS,
    }


def _answer(data: Json) -> web.Response:
    return web.Response(body=orjson.dumps(data), content_type="application/json")
