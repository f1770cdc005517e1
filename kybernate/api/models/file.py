"""What models.yaml says as a whole, key by key. Keys are spelled as llama-swap spells them."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from kybernate.api.models.model import Model  # noqa: TC001 - pydantic reads the annotation
from kybernate.api.models.values import NEVER, Bytes, Macros, Part, Seconds


class Group(Part):
    """llama-swap's groups. Which models are active together is a matter of their GPUs and vram."""

    members: tuple[str, ...] = Field(description="Names of the models in the group")
    swap: bool = Field(
        default=True,
        description="With false, and `persistent`, the members of the group are pinned",
    )
    exclusive: bool = Field(
        default=True,
        description="Read for llama-swap's sake and without effect: models that fit stay active",
    )
    persistent: bool = Field(
        default=False,
        description="True: requests for models of other groups do not park members of this one; "
        "see `swap`",
    )


class OnStartup(Part):
    """What happens first."""

    preload: tuple[str, ...] = Field(default=(), description="Models that are started with the box")


class OnIdle(Part):
    """What happens where no request needs the GPUs."""

    wake: tuple[str, ...] = Field(
        default=(),
        description="Models that are active whenever no other model is asked, as with "
        "`turn: always`",
    )


class Hooks(Part):
    """What happens when."""

    on_startup: OnStartup = Field(
        default=OnStartup(), alias="on_startup", description="when Kybernate starts"
    )
    on_idle: OnIdle = Field(default=OnIdle(), alias="on_idle", description="when nobody asks")


class Tiers(Part):
    """Where parked models may lie."""

    ram: Bytes | None = Field(
        default=None,
        description="Host RAM that all parked models may take together; absent: half of the host's",
    )
    nvme: str | None = Field(
        default=None,
        description="Folder for models that leave host RAM, on a fast disk; takes root and `criu`, "
        "else parked models stay in RAM. A change holds from the next start",
    )
    criu: str | None = Field(
        default=None,
        description="Kybernate's CRIU, which `make criu` builds and which writes models to `nvme`; "
        "absent: /usr/libexec/kybernate/criu. A change holds from the next start",
    )

    @field_validator("nvme", "criu")
    @classmethod
    def _check_path(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("write the whole path, which begins with /")
        return value


class Upstream(Part):
    """The paths below /upstream/MODEL."""

    ignore_paths: tuple[str, ...] = Field(
        default=(r".*\.(js|json|css|png|gif|jpg|jpeg|ico|txt)$",),
        description="Regular expressions for paths; requests for such a path do not wake a model",
    )

    @field_validator("ignore_paths")
    @classmethod
    def _check_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            try:
                re.compile(one)
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"{one[:60]!r} is no regular expression: {error}") from error
        return value


class ModelsFile(Part):
    """The whole file."""

    listen: str = Field(
        default="127.0.0.1:8080",
        description="Address of the API (host:port). Clients on other machines need `apiKeys`",
    )
    api_keys: tuple[str, ...] = Field(
        default=(),
        description="Keys that clients must send; without keys, only clients on this machine are "
        "answered",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Names by which clients may address this box, beside localhost",
    )
    tiers: Tiers = Field(default=Tiers(), description="where parked models may lie")
    macros: Macros = Field(default_factory=dict)
    models: dict[str, Model] = Field(
        default_factory=dict, description="the models, by the names that requests use"
    )
    groups: dict[str, Group] = Field(
        default_factory=dict,
        description="llama-swap's groups; gpus and vram say which models are active together",
    )
    hooks: Hooks = Field(default=Hooks(), description="what happens when")
    upstream: Upstream = Field(default=Upstream(), description="paths of /upstream/MODEL")
    priority: dict[str, int] = Field(
        default_factory=dict,
        description="Numbers of models whose requests come before those of others, the highest "
        "number first",
    )
    min_loaded: Seconds = Field(
        default=1.0,
        ge=0,
        description="A woken model that is asked stays active for at least this long, though "
        "other models wait. A change holds from the next start",
    )
    max_wait: Seconds = Field(
        default=60.0,
        ge=0,
        description="A request that has waited for this long comes before requests of any "
        "priority. A change holds from the next start",
    )
    start_port: int = Field(
        default=5800, ge=1, le=65535, description="First port that ${PORT} gets"
    )
    health_check_timeout: Seconds = Field(
        default=120.0, gt=0, description="How long a model's start may take; at least 15 s"
    )
    global_ttl: Seconds = Field(
        default=NEVER,
        ge=0,
        alias="globalTTL",
        description="The `ttl` of models that have none of their own; 0: never",
    )
    unload_timeout: Seconds = Field(
        default=10.0, ge=0, description="How long a model's server may take to end"
    )
    include_aliases_in_list: bool = Field(
        default=False, description="True: GET /v1/models lists aliases, too"
    )
    traces: bool = Field(
        default=False,
        description="True: spans of requests, and of what models go through meanwhile, are sent to "
        "where OpenTelemetry's variables say (OTEL_EXPORTER_OTLP_ENDPOINT, …); takes "
        "`kybernate[traces]`. A change holds from the next start",
    )
    log_level: Literal["debug", "info", "warn", "error"] = Field(
        default="info", description="Least severity of what is logged"
    )

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not (colon and port.isascii() and port.isdigit() and int(port) < 65536):
            raise ValueError("write it as host:port, for example 127.0.0.1:8080")
        return value if host else f"0.0.0.0{value}"  # noqa: S104 - as llama-swap means :8080

    @field_validator("api_keys")
    @classmethod
    def _check_keys(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key in value:
            if not key or not key.isprintable() or not key.isascii() or " " in key:
                raise ValueError("a key is one word of printable letters, without spaces")
        return value

    @field_validator("health_check_timeout")
    @classmethod
    def _at_least(cls, value: float) -> float:
        return max(value, 15.0)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        self.names  # noqa: B018 - raises if two models claim a name
        return self

    @cached_property
    def names(self) -> dict[str, str]:
        """Every name that a request may use, and the model that it means."""
        names = {name: name for name in self.models}
        for name, model in self.models.items():
            if not name.strip() or len(name) > 512 or not name.isprintable():
                raise ValueError(f"models: {name!r} can't be a model's name")
            for alias in (*model.aliases, *model.filters.set_params_by_id):
                if names.setdefault(alias, name) != name:
                    problem = f"{alias!r} is a name of {names[alias]} already; choose another"
                    raise ValueError(f"models.{name}.aliases: {problem}")
        return names

    def rivals(self, name: str) -> tuple[str, ...]:
        """Other models with the same address, which can't have processes at the same time."""
        address = self.models[name].address
        others = self.models.items()
        return tuple(one for one, model in others if model.address == address and one != name)
