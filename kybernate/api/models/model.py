"""What models.yaml says of one model, key by key. Keys are spelled as llama-swap spells them."""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from kybernate.api.models.commands import split
from kybernate.api.models.values import (
    NEVER,
    Bytes,
    Environment,
    Macros,
    Parameters,
    Part,
    Seconds,
)


class Filters(Part):
    """What is changed in the JSON of a model's requests. The field `model` never is."""

    strip_params: Parameters = Field(
        default=(), description="Fields that are removed from requests' bodies"
    )
    set_params: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields that are set in requests' bodies, whatever the request says",
    )
    set_params_by_id: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        alias="setParamsByID",
        description="Fields that are set in requests which use this name of the model; each name "
        "is an alias, too",
    )

    def apply(self, request: dict[str, Any], called: str) -> None:
        """Change a request, in which the model is called `called`."""
        for name in self.strip_params:
            if name != "model":
                request.pop(name, None)
        changes = self.set_params | self.set_params_by_id.get(called, {})
        request.update((name, value) for name, value in changes.items() if name != "model")

    def __bool__(self) -> bool:
        """Whether anything is changed."""
        return bool(self.strip_params or self.set_params or self.set_params_by_id)


class Timeouts(Part):
    """How long the model's server may take. 0 is no limit."""

    response_header: Seconds = Field(
        default=0.0,
        ge=0,
        description="How long the model's server may take to begin an answer; 0: no limit",
    )


class Compat(Part):
    """What some servers need."""

    ignore_websockets: bool = Field(
        default=False, description="True: websockets neither wake the model nor keep it active"
    )


class Capabilities(Part):
    """What GET /v1/models says that the model can do."""

    inputs: tuple[Literal["text", "audio", "image"], ...] = Field(
        default=(),
        alias="in",
        description="Kinds of input that the model understands, such as text or image",
    )
    outputs: tuple[Literal["text", "audio", "image"], ...] = Field(
        default=(), alias="out", description="Kinds of output that the model makes"
    )
    tools: bool = Field(default=False, description="True: the model calls functions")
    reranker: bool = Field(default=False, description="True: the model answers /v1/rerank")
    context: int = Field(
        default=0, ge=0, description="Longest context of the model (tokens); 0: not told"
    )


class Idle(Part):
    """When an idle parked model leaves a tier. 0 is never."""

    ram: Seconds = Field(
        default=NEVER,
        ge=0,
        description="Time after which a parked model that nobody asks leaves host RAM for the "
        "file's `tiers.nvme`; 0: only where other models need the RAM",
    )


class Model(Part):
    """One model: a command that serves it on a port, and how it shares the GPUs."""

    cmd: str = Field(
        description="The command that serves the model. ${PORT} in it is replaced by the port on "
        "which it must listen. No shell reads it; lines that begin with # are left "
        "out",
    )
    macros: Macros = Field(default_factory=dict)
    cmd_stop: str = Field(
        default="",
        description="Read for llama-swap's sake and without effect: SIGTERM ends the model's "
        "server, then SIGKILL",
    )
    proxy: str = Field(
        default="",
        description="URL at which the model's server answers; absent: http://127.0.0.1:${PORT}",
    )
    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of the model, which replaces ${PORT}; absent: the next free one from "
        "`startPort` on",
    )
    env: Environment = Field(
        default=(), description="Environment variables for the command, as NAME=VALUE"
    )
    aliases: tuple[str, ...] = Field(
        default=(), description="Further names by which requests may ask for the model"
    )
    name: str = Field(default="", description="Name for people, in GET /v1/models")
    description: str = Field(default="", description="Description for people, in GET /v1/models")
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Further fields that GET /v1/models shows for the model"
    )
    capabilities: Capabilities = Field(
        default=Capabilities(), description="what GET /v1/models says that it can do"
    )
    unlisted: bool = Field(
        default=False,
        description="True: GET /v1/models leaves the model out; requests for it are answered all "
        "the same",
    )
    use_model_name: str = Field(
        default="",
        description="Name by which the model's server knows it, which replaces the request's; "
        "absent: the request's",
    )
    filters: Filters = Field(default=Filters(), description="what is changed in requests")
    check_endpoint: str = Field(
        default="/health",
        pattern=r"^(/.*|none)$",
        description="Path that the model's server answers with 200 once it serves; none: no "
        "path is asked",
    )
    health_check_timeout: Seconds | None = Field(
        default=None,
        gt=0,
        description="How long the model's start may take; absent: the file's `healthCheckTimeout`",
    )
    timeouts: Timeouts = Field(default=Timeouts(), description="how long its server may take")
    compat: Compat = Field(default=Compat(), description="what some servers need")
    concurrency_limit: int = Field(
        default=0,
        ge=0,
        description="Requests that the model may have at once; a further one is answered 429; 0: "
        "no limit",
    )
    gpus: int | tuple[int, ...] | None = Field(
        default=None,
        description="How many GPUs the model needs, or their indices; absent: those of "
        "CUDA_VISIBLE_DEVICES in `env`, or else all of the box. A model with 1 starts and wakes on "
        "whichever GPU has room",
    )
    vram: Bytes | None = Field(
        default=None,
        description="Most GPU memory that the model takes on each of its GPUs; absent: all of each "
        "until its first park, and from then on what it held there, which the box remembers. With "
        "`cooperate` all of each: its server frees memory before the park",
    )
    ttl: Seconds = Field(
        default=-1.0,
        ge=-1,
        description="The model is parked once no request has come for this long; 0: never; -1: "
        "the file's `globalTTL`",
    )
    ready_within: Seconds | None = Field(
        default=None,
        gt=0,
        description="How long after a request the model's answer should begin; absent: 2 s and "
        "twice the model's own wake. Models that can still answer in time come first",
    )
    idle: Idle = Field(default=Idle(), description="when it leaves the tiers below VRAM")
    cooperate: Literal["vllm", "sglang", "http"] | None = Field(
        default=None,
        description="How the model's server does its own part of a park and a wake: by vLLM's or "
        "SGLang's sleep, or by POST /kyb/park and /kyb/wake (http); absent: the driver does all, "
        "as for llama.cpp",
    )
    unload_timeout: Seconds = Field(
        default=0.0,
        ge=0,
        description="How long the model's server may take to end; 0: the file's `unloadTimeout`",
    )
    pin: bool = Field(
        default=False, description="True: requests for other models never park this one"
    )
    turn: Literal["on-request", "always"] = Field(
        default="on-request",
        description="always: the model wants its GPUs whether or not it is asked, as training "
        "does; it starts with the box, and takes turns with others that do. Requests for other "
        "models come first; its `ttl` has no effect",
    )
    weight: int = Field(
        default=100,
        ge=1,
        le=10000,
        description="Its part of the time among models that take turns (`turn`, "
        "`hooks.on_idle.wake`): one of 200 has its GPUs for twice as long as one of 100",
    )

    @field_validator("cmd")
    @classmethod
    def _check_command(cls, value: str) -> str:
        split(value)
        return value

    @field_validator("proxy")
    @classmethod
    def _check_address(cls, value: str) -> str:
        url = urlsplit(value)
        if value and not (url.scheme == "http" and url.hostname and url.port != 0):
            raise ValueError("write it as http://127.0.0.1:PORT")
        return value

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, value: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        if isinstance(value, tuple) and (
            not value or len(set(value)) < len(value) or min(value) < 0
        ):
            raise ValueError("write a count, as 1, or different indices, as [0, 1]")
        if isinstance(value, int) and value < 1:
            raise ValueError("write a count of at least 1, or indices, as [0, 1]")
        return value

    @property
    def argv(self) -> tuple[str, ...]:
        """The command's words."""
        return split(self.cmd)

    @property
    def address(self) -> str:
        """`host:port` of its server."""
        if not self.proxy:
            return f"127.0.0.1:{self.port}"
        url = urlsplit(self.proxy)
        host = url.hostname or "127.0.0.1"
        return f"{f'[{host}]' if ':' in host else host}:{url.port or 80}"

    @property
    def base(self) -> str:
        """The path that its server's own paths begin with, often none."""
        return urlsplit(self.proxy).path.rstrip("/")

    @property
    def devices(self) -> int | tuple[int, ...] | None:
        """How many GPUs, or which; None for all: `gpus`, or CUDA_VISIBLE_DEVICES of its env."""
        if self.gpus is not None:
            return self.gpus
        stated = dict(self.env).get("CUDA_VISIBLE_DEVICES", "")
        if re.fullmatch(r"\d{1,3}(,\d{1,3})*", stated):
            return tuple(dict.fromkeys(int(index) for index in stated.split(",")))
        return None
