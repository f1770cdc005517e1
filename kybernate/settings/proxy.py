"""Settings of the proxy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from kybernate.settings.common import Address, Level, Settings

_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~:@!$&'()+,;=-]+)+")

OPENAI_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/moderations",
    "/v1/images/generations",
    "/v1/audio/speech",
)

"""What OpenAI's clients POST as JSON with a model's name in it."""


class ProxySettings(Settings):
    """What the proxy can be told. Times are in seconds, sizes in bytes."""

    listen: Address = Field("0.0.0.0:8080", description="host:port of the HTTP API and /metrics")
    kubeconfig: Path | None = Field(
        None, description="kubeconfig to watch GPUNodes with; without it, the pod's own account"
    )
    agents: dict[str, str] = Field(
        default_factory=dict,
        description="fixed agents as node=host:port,…; then no GPUNodes are watched",
    )
    tls_dir: Path = Field(
        Path("/etc/kyb/tls"),
        description="folder with ca.crt, agents-ca.crt, proxy.crt and proxy.key",
    )
    shared_agent_keys: bool = Field(
        True,
        description="believe agents also by certificates of `kybernate pki`, whose keys other "
        "nodes may hold; turn it off once every node has its own",
    )
    wait_limit_s: float = Field(
        60.0, gt=0, description="longest time a request is held for its seat (s)"
    )
    max_waiting_per_model: int = Field(
        256, ge=1, description="requests held per model; one more is answered 429"
    )
    max_in_flight_per_seat: int = Field(
        0,
        ge=0,
        description="requests of this proxy at one seat at once; more wait, and another seat of "
        "the model, in another group, is woken for them; 0: no limit, the seat's engine queues",
    )
    first_namespaces: tuple[str, ...] = Field(
        (),
        description="namespaces, the first one first, that a model's plain name leads to where "
        "several namespaces have it; else it is refused and namespace/model has to be named. Only "
        "their models may be called by a plain name that has a slash in it, as org/model",
    )
    name_memory_s: float = Field(
        3600.0,
        ge=0,
        description="how long a plain name leads to no other namespace after its model left (s)",
    )
    retry_after_s: int = Field(5, ge=1, description="Retry-After of a 429 or 503 answer (s)")
    lease_break_s: float = Field(
        3.0,
        gt=0,
        description="how long requests in flight may continue after the agent's stream broke (s); "
        "keep it below the agents' own lease_break_s",
    )
    report_interval_s: float = Field(
        0.02, ge=0, description="changes of requests in flight are reported this often (s)"
    )
    agent_ping_s: float = Field(
        1.5,
        ge=1,
        description="silence after which an agent's connection is probed, and time to answer (s); "
        "twice this and lease_break_s must be less than the agents' lease_break_s and 2 s",
    )
    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, description="largest request body (bytes)"
    )
    auth: Literal["off", "keys", "certificates", "either"] = Field(
        "off",
        description="how clients are told apart: keys (Authorization: Bearer), client certificates "
        "or either; off lets everyone ask every model. See kybernate clients --help",
    )
    clients_dir: Path = Field(
        Path("/etc/kyb/clients"),
        description="folder with the clients' records, the mounted Secret kyb-proxy-clients",
    )
    serve_tls_dir: Path | None = Field(
        None,
        description="folder with tls.crt and tls.key to serve HTTPS with, and with ca.crt, whose "
        "clients' certificates count; without it, plain HTTP",
    )
    paths: tuple[str, ...] = Field(
        OPENAI_PATHS,
        description="paths that clients may POST to, each exactly as written; a seat's others, say "
        "to load adapters or to sleep, are its administrator's; * is any below /v1/",
    )
    max_held_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        description="bodies of all requests that wait or are being sent, 1/8 of it for those up to "
        "256 KiB; one more is answered 503. The process needs up to twice this and 150 MiB (bytes)",
    )
    max_held_bytes_per_client: int | None = Field(
        None,
        ge=1024,
        description="the same of one client, by key, certificate or else address; one more is "
        "answered 429. Without it, 1/8 of max_held_bytes, or max_body_bytes if more (bytes)",
    )
    body_limit_s: float = Field(
        60.0, gt=0, description="longest time a request's body may take to come (s)"
    )
    idle_client_s: float = Field(
        75.0,
        gt=0,
        description="a client's connection is closed when no request's headers came whole for so "
        "long, counted from its begin or the last answer (s)",
    )
    wakes_per_minute_per_client: float = Field(
        1200.0,
        ge=0,
        description="wakes that one client may cause in a minute, a minute's worth at once; more "
        "are answered 429; 0 is no limit",
    )
    wakes_per_minute_per_namespace: float = Field(
        2400.0,
        ge=0,
        description="wakes of one namespace's models that may be caused in a minute; 0 is no limit",
    )
    connect_limit_s: float = Field(
        5.0, gt=0, description="how long a refused connection to a granted seat is retried (s)"
    )
    idle_connection_s: float = Field(
        2.0, gt=0, description="how long an unused connection to a seat is kept (s)"
    )
    answer_silence_s: float = Field(
        600.0, gt=0, description="longest silence of a model in the middle of an answer (s)"
    )
    traces: bool = Field(
        False,
        description="send spans of requests by OTLP/HTTP, as OpenTelemetry's variables say: "
        "OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES, …",
    )
    shutdown_limit_s: float = Field(
        30.0, ge=0, description="how long requests may finish after SIGTERM (s)"
    )
    log_level: Level = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")

    @model_validator(mode="after")
    def _check_certificates(self) -> Self:
        folder = self.serve_tls_dir
        if self.auth in ("certificates", "either") and not (
            folder is not None and (folder / "ca.crt").is_file()
        ):
            raise ValueError(
                f"auth={self.auth} needs serve_tls_dir, a folder with tls.crt, tls.key and the "
                "ca.crt that signs the clients' certificates"
            )
        return self

    @model_validator(mode="after")
    def _check_room(self) -> Self:
        room = self.max_held_bytes - self.max_held_bytes // 8
        if self.max_body_bytes > min(room, self.client_bytes):
            raise ValueError(
                f"max_body_bytes is {self.max_body_bytes}, but 7/8 of max_held_bytes are {room}, "
                f"and one client may have {self.client_bytes} (max_held_bytes_per_client): such a "
                "body would always be refused; raise these, or lower max_body_bytes"
            )
        return self

    @field_validator("agents", mode="before")
    @classmethod
    def _split_agents(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if any(not node.strip() or not address.strip() for node, _, address in pairs):
            raise ValueError("write it as node=host:port, several separated by commas")
        return {node.strip(): address.strip() for node, _, address in pairs}

    @field_validator("paths")
    @classmethod
    def _check_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if path != "*" and not _PATH.fullmatch(path):
                raise ValueError(f"write {path!r} as /v1/… without %, //, . or .., or as *")
        return value

    @field_validator("first_namespaces", "paths", mode="before")
    @classmethod
    def _split_list(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    def allows(self, path: str) -> bool:
        """Whether clients may POST to this path, given as it was written."""
        if path in self.paths:
            return True
        return "*" in self.paths and path.startswith("/v1/") and bool(_PATH.fullmatch(path))

    @property
    def client_bytes(self) -> int:
        """Bytes of bodies that one client may have; its largest one fits into it."""
        return self.max_held_bytes_per_client or max(self.max_held_bytes // 8, self.max_body_bytes)
