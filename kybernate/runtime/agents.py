"""What every caller of agents needs: whom it believes, and agents' refusals as errors of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

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
