"""What the webhook tells the sidecar, as plain arguments; read without argparse, which is large.

--socket=/kyb-pod/init.sock                  where process 1 of the seat's container listens
--liveness=http:8000:timeout=1:grace=300     at port 15480; kinds http, https, tcp and grpc
--readiness=grpc:50051:timeout=1             at port 15481
--startup=tcp:8000:timeout=1                 at port 15482
--scrape=http:8000:timeout=10                at port 15483: not a probe, but Prometheus
--cooperate=vllm:8000                        or sglang, http
--warm-up={"port":8000,...}                  instead of all else, see `sidecar.warmup`
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_PORT = 15480
ROLES = ("liveness", "readiness", "startup", "scrape")
KINDS = ("http", "https", "tcp", "grpc")
ENGINES = ("vllm", "sglang", "http")


class UsageError(Exception):
    """An argument that can't be used; the sentence says which and why."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe that the sidecar answers. `port` is the workload's.

    `timeout` is how long the kubelet waits for an answer (s), `grace` how long after its start
    the workload may fail a liveness probe that it has never passed (s).
    """

    role: str
    kind: str
    port: int
    timeout: float = 1.0
    grace: float = 0.0

    @property
    def listen(self) -> int:
        """The sidecar's own port for it."""
        return FIRST_PORT + ROLES.index(self.role)


@dataclass(slots=True)
class Options:
    """All arguments. `engine` is how the workload cooperates, at `engine_port`."""

    socket: str = "/kyb-pod/init.sock"
    probes: list[Probe] = field(default_factory=list)
    engine: str = "none"
    engine_port: int = 0
    warm_up: str = ""


def parse(arguments: list[str]) -> Options:
    """The options. Raises UsageError."""
    options = Options()
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals:
            raise UsageError(f"{argument} is not --NAME=VALUE")
        if name == "socket":
            options.socket = value
        elif name in ROLES:
            options.probes.append(_probe(name, value))
        elif name == "cooperate":
            options.engine, options.engine_port = _engine(value)
        elif name == "warm-up":
            options.warm_up = value
        else:
            raise UsageError(f"--{name} is unknown; there are --socket, --cooperate, --{ROLES[0]}…")
    return options


def _probe(role: str, text: str) -> Probe:
    kind, _, rest = text.partition(":")
    port, *more = rest.split(":")
    if kind not in KINDS:
        raise UsageError(f"--{role}={text}: the kind is one of {', '.join(KINDS)}")
    limits = {"timeout": 1.0, "grace": 0.0}
    for one in more:
        name, _, seconds = one.partition("=")
        if name not in limits or not seconds.replace(".", "", 1).isdecimal():
            raise UsageError(f"--{role}={text}: {one} is neither timeout=SECONDS nor grace=SECONDS")
        limits[name] = float(seconds)
    return Probe(role, kind, _port(role, port), **limits)


def _engine(text: str) -> tuple[str, int]:
    engine, _, port = text.partition(":")
    if engine not in ENGINES:
        raise UsageError(f"--cooperate={text}: the engine is one of {', '.join(ENGINES)}")
    return engine, _port("cooperate", port)


def _port(name: str, text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise UsageError(f"--{name}: {text!r} is no port from 1 to 65535")
    return int(text)
