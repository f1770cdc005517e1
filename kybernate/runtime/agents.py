"""What every caller of agents needs: how it connects, whom it believes, and agents' refusals as
errors of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from kybernate import keys
from kybernate.errors import (
    ConflictError,
    CorruptError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)

if TYPE_CHECKING:
    from pathlib import Path

_ERRORS: dict[grpc.StatusCode, type[KybernateError]] = {
    grpc.StatusCode.FAILED_PRECONDITION: RefusedError,
    grpc.StatusCode.INVALID_ARGUMENT: RefusedError,
    grpc.StatusCode.PERMISSION_DENIED: RefusedError,
    grpc.StatusCode.UNIMPLEMENTED: RefusedError,
    grpc.StatusCode.ALREADY_EXISTS: ConflictError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.DATA_LOSS: CorruptError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
}


def translated(error: Any, node: str) -> KybernateError:
    """The error of ours for a gRPC error of this node's agent; RetryableError for what may pass."""
    details = f"the agent of node {node}: {error.details() or error.code().name}"
    return _ERRORS.get(error.code(), RetryableError)(details)


def authorities(tls: Path, *, shared: bool) -> bytes:
    """Who certifies agents, as PEM. `shared`: also the authority of `kybernate pki` itself. Raises
    OSError."""
    own = tls / "agents-ca.crt"
    if not own.is_file():
        return (tls / "ca.crt").read_bytes()
    return own.read_bytes() + ((tls / "ca.crt").read_bytes() if shared else b"")


def credentials(tls: Path, name: str, *, shared: bool) -> grpc.ChannelCredentials:
    """Of the caller with this name, whose key and certificate are read now; `shared`: see
    `authorities`. Raises OSError."""
    key, shown = ((tls / f"{name}.{end}").read_bytes() for end in ("key", "crt"))
    return grpc.ssl_channel_credentials(authorities(tls, shared=shared), key, shown)


def options(node: str, ping_s: float) -> list[tuple[str, Any]]:
    """Of a connection to a node's agent: it shows that node's name, nothing that the environment
    names is in between, and one that is dead is noticed within two pings."""
    ping = int(ping_s * 1000)
    return [
        ("grpc.ssl_target_name_override", keys.agent_server_name(node)),
        ("grpc.enable_http_proxy", 0),
        ("grpc.keepalive_time_ms", ping),
        ("grpc.keepalive_timeout_ms", ping),
    ]
