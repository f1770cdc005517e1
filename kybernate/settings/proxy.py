"""Settings of the proxy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from kybernate.settings.common import Address, Level, RegistryUrl, Settings

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

    listen: Address = Field(
        "0.0.0.0:8080", description="Address of the HTTP API and /metrics (host:port)."
    )
    kubeconfig: Path | None = Field(
        None,
        description="kubeconfig file to watch GPUNodes with; without it, the pod's service "
        "account.",
    )
    agents: dict[str, str] = Field(
        default_factory=dict,
        description="Agents as NODE=HOST:PORT,…; then the proxy watches no GPUNodes.",
    )
    tls_dir: Path = Field(
        Path("/etc/kyb/tls"),
        description="Folder with ca.crt, agents-ca.crt, proxy.crt and proxy.key.",
    )
    shared_agent_keys: bool = Field(
        True,
        description="Accept agents' certificates that `kybernate pki` made, too, whose keys other "
        "nodes may hold. Turn it off once every node has a key of its own.",
    )
    registry_url: RegistryUrl = Field(
        "",
        description="The registry (https://host:port), which is asked whether a pod has really "
        "taken another's place, and where artifacts lie of what is scaled to zero; empty: agents "
        "are believed.",
    )
    wait_limit_s: float = Field(
        60.0,
        gt=0,
        description="The proxy holds a request for its seat for at most this long, then answers "
        "429 (s).",
    )
    max_waiting_per_model: int = Field(
        256,
        ge=1,
        description="Requests that the proxy holds for one model; it answers 429 to further ones.",
    )
    max_in_flight_per_seat: int = Field(
        0,
        ge=0,
        description="Requests that this proxy sends to one seat at once. Further ones wait, and "
        "wake another seat of the model in another group; 0: no limit, the seat's engine queues "
        "them.",
    )
    first_namespaces: tuple[str, ...] = Field(
        (),
        description="Namespaces to which the plain name of a model leads if several have such a "
        "model, the first one first; without them such a request is refused, and must name "
        "NAMESPACE/MODEL. Only models of these namespaces may have a plain name with a slash, as "
        "org/model.",
    )
    aliases: dict[str, str] = Field(
        default_factory=dict,
        description="Further names of models, as NAME=NAMESPACE/MODEL,…; they come before models' "
        "own names, and the seat gets its model's own.",
    )
    adapters: dict[str, str] = Field(
        default_factory=dict,
        description="Names of adapters (LoRA) that a model's engine has loaded, as "
        "NAME=NAMESPACE/MODEL,…: requests for NAME go to that model, and the seat gets NAME as it "
        "is.",
    )
    pickers: dict[str, str] = Field(
        default_factory=dict,
        description="Endpoint pickers of InferencePools, as NAMESPACE/MODEL=URL,…: while the "
        "picker whose metrics are at URL holds requests, the model is woken as if one of them "
        "waited here.",
    )
    name_memory_s: float = Field(
        3600.0,
        ge=0,
        description="After the last seat of a model has gone, its plain name leads to no other "
        "namespace for this long (s).",
    )
    retry_after_s: int = Field(5, ge=1, description="Retry-After of a 429 or 503 answer (s).")
    lease_break_s: float = Field(
        3.0,
        gt=0,
        description="How long requests in flight may continue after the stream to the agent "
        "broke; less than the agents' `lease_break_s` (s).",
    )
    report_interval_s: float = Field(
        0.02,
        ge=0,
        description="How often the proxy reports changes of requests in flight to the agents (s).",
    )
    agent_ping_s: float = Field(
        1.5,
        ge=1,
        description="The proxy probes a connection to an agent that was silent for this long, and "
        "waits as long for the answer (s). Twice this plus `lease_break_s` must be less than the "
        "agents' `lease_break_s` plus 2 s.",
    )
    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1024, description="Largest request body (bytes)."
    )
    auth: Literal["off", "keys", "certificates", "either"] = Field(
        "off",
        description="How the proxy tells clients apart. keys: `Authorization: Bearer`; "
        "certificates: clients' certificates; either: both ways; off: everybody may ask every "
        "model. `kybernate clients --help` says how to let clients in.",
    )
    clients_dir: Path = Field(
        Path("/etc/kyb/clients"),
        description="Folder with the clients' records, the mounted Secret kyb-proxy-clients.",
    )
    serve_tls_dir: Path | None = Field(
        None,
        description="Folder with tls.crt and tls.key to serve HTTPS, and ca.crt, which signs "
        "clients' certificates; without it, plain HTTP.",
    )
    paths: tuple[str, ...] = Field(
        OPENAI_PATHS,
        description="Paths to which clients may POST, each exactly as written; * is any path "
        "below /v1/. A seat's other paths, such as those that load adapters, are for its "
        "administrator.",
    )
    max_held_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        description="Most that the bodies of all requests may take that wait or are being sent "
        "(bytes); an eighth of it is for bodies of up to 256 KiB. The proxy answers 503 to "
        "further ones. The process needs up to twice this and 150 MiB.",
    )
    max_held_bytes_per_client: int | None = Field(
        None,
        ge=1024,
        description="The same for one client, by its key, its certificate or else its address "
        "(bytes); the proxy answers 429 to further ones. Without it, an eighth of "
        "`max_held_bytes`, or `max_body_bytes` if that is more.",
    )
    body_limit_s: float = Field(
        60.0, gt=0, description="Deadline for a request's body to arrive (s)."
    )
    idle_client_s: float = Field(
        75.0,
        gt=0,
        description="The proxy closes a client's connection if no request's headers arrive whole "
        "for this long after its begin or the last answer (s).",
    )
    wakes_per_minute_per_client: float = Field(
        1200.0,
        ge=0,
        description="Wakes that one client may cause in a minute; all of a minute's may come at "
        "once. The proxy answers 429 to further ones; 0: no limit.",
    )
    wakes_per_minute_per_namespace: float = Field(
        2400.0,
        ge=0,
        description="Wakes of one namespace's models that all clients together may cause in a "
        "minute; 0: no limit.",
    )
    connect_limit_s: float = Field(
        5.0,
        gt=0,
        description="How long the proxy retries a seat that is active and refuses the connection "
        "(s).",
    )
    idle_connection_s: float = Field(
        2.0, gt=0, description="How long the proxy keeps an unused connection to a seat (s)."
    )
    answer_silence_s: float = Field(
        600.0, gt=0, description="Longest silence of a model in the middle of an answer (s)."
    )
    traces: bool = Field(
        False,
        description="Send spans of requests by OTLP/HTTP, as OpenTelemetry's variables say: "
        "OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES, ….",
    )
    shutdown_limit_s: float = Field(
        30.0, ge=0, description="How long requests in flight may take to finish after SIGTERM (s)."
    )
    log_level: Level = Field(
        "INFO", description="Least severity of what is logged: DEBUG, INFO, WARNING or ERROR."
    )

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

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for what, found in (("aliases", self.aliases), ("adapters", self.adapters)):
            for name, model in found.items():
                if not all(model.partition("/")):
                    raise ValueError(f"{what}: write {name}=NAMESPACE/MODEL, not {name}={model}")
        if both := sorted(self.aliases.keys() & self.adapters.keys()):
            raise ValueError(f"{both[0]!r} is in aliases and in adapters; leave it in one of them")
        return self

    @field_validator("agents", "aliases", "adapters", "pickers", mode="before")
    @classmethod
    def _split_pairs(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if any(not name.strip() or not meant.strip() for name, _, meant in pairs):
            raise ValueError(
                "write agents as node=host:port, names as NAME=NAMESPACE/MODEL, pickers as "
                "NAMESPACE/MODEL=URL; several separated by commas"
            )
        return {name.strip(): meant.strip() for name, _, meant in pairs}

    @field_validator("paths")
    @classmethod
    def _check_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if path != "*" and not _PATH.fullmatch(path):
                raise ValueError(f"write {path!r} as /v1/… without %, //, . or .., or as *")
        return value

    @field_validator("pickers")
    @classmethod
    def _check_pickers(cls, value: dict[str, str]) -> dict[str, str]:
        for model, url in value.items():
            if not all(model.partition("/")) or not url.startswith(("http://", "https://")):
                raise ValueError(
                    f"write NAMESPACE/MODEL=http://HOST:PORT/metrics, not {model}={url}"
                )
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
