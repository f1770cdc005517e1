"""An agent's door without an agent: operations by name, over real mutual TLS."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc

from kybernate.gen import agent_pb2
from kybernate.gen import agent_pb2 as pb
from kybernate.lib import rpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_ENDED = ("succeeded", "failed", "cancelled")
_THREADS = 32
_LOOK_S = 0.02


class Door:
    """`seats` are the UIDs of pods with seats here. An operation succeeds `takes` seconds after it
    was begun, but those of `stuck` seats never; `begun` has each begin that was not of a name that
    is known. `refusing` is called when one is refused."""

    def __init__(self, takes: float = 0.0) -> None:
        self.takes = takes
        self.seats: set[str] = set()
        self.stuck: set[str] = set()
        self.refuses = ""
        self.refusing: Callable[[], None] = lambda: None
        self.begun: list[tuple[str, str, str, str]] = []
        self.limits: list[float] = []
        self.precopied: list[str] = []
        self.cancelled: list[str] = []
        self.dropped: list[str] = []
        self.drops = True
        self.operations: dict[str, pb.Operation] = {}
        self._lock = threading.Lock()

    def forget(self) -> None:
        self.operations.clear()

    def Park(self, request: Any, context: Any) -> pb.Operation:  # noqa: N802
        return self._begin("park", request, context, request.tier)

    def Save(self, request: Any, context: Any) -> pb.Operation:  # noqa: N802
        return self._begin("save", request, context, request.tier)

    def Evict(self, request: Any, context: Any) -> pb.Operation:  # noqa: N802
        return self._begin("evict", request, context, request.tier)

    def Wake(self, request: Any, context: Any) -> pb.Operation:  # noqa: N802
        return self._begin("wake", request, context, "")

    def Place(self, request: Any, context: Any) -> pb.Operation:  # noqa: N802
        with self._lock:
            if request.name not in self.operations:
                self.begun.append((request.name, "place", request.artifact, request.tier))
                (by,) = context.auth_context()["x509_common_name"]
                self.operations[request.name] = pb.Operation(
                    name=request.name,
                    kind="place",
                    by=by.decode(),
                    why=request.why,
                    tier=request.tier,
                    artifact=request.artifact,
                    state="running",
                    sentence="it is copied",
                    created_at=time.time(),
                    bytes_total=7,
                )
            return self._now(request.name, context)

    def GetOperation(self, request: Any, context: Any) -> pb.Operation:  # noqa: N802
        with self._lock:
            return self._now(request.name, context)

    def WatchOperation(self, request: Any, context: Any) -> Iterator[pb.Operation]:  # noqa: N802
        last, found = "", pb.Operation()
        while context.is_active():
            with self._lock:
                # As it is now: another call may end it while this one tells it.
                found.CopyFrom(self._now(request.name, context))
            if found.state != last:
                yield found
            if found.state in _ENDED:
                return
            last = found.state
            time.sleep(_LOOK_S)

    def ListOperations(self, request: Any, context: Any) -> Any:  # noqa: N802
        with self._lock:
            every = [self._now(name, context) for name in self.operations]
        left = [one for one in every if request.ended_too or one.state not in _ENDED]
        return pb.ListOperationsResponse(operations=left)

    def CancelOperation(self, request: Any, context: Any) -> pb.Operation:  # noqa: N802
        with self._lock:
            found = self._now(request.name, context)
            if found.state not in _ENDED:
                self.cancelled.append(request.name)
                found.state, found.sentence = "cancelled", "it was cancelled"
            return found

    def DropSnapshot(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not self.drops:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        self.dropped.append(request.name)
        return pb.DropSnapshotResponse(artifact=f"shop/a@{request.name}")

    def _begin(self, kind: str, request: Any, context: Any, tier: str) -> pb.Operation:
        with self._lock:
            if request.name in self.operations:
                return self._now(request.name, context)
            if request.uid not in self.seats:
                context.abort(grpc.StatusCode.NOT_FOUND, f"no seat of {request.uid}")
            rivals = [one for one in self.operations.values() if one.uid == request.uid]
            if self.refuses or any(one.state not in _ENDED for one in rivals):
                self.refusing()
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuses or "busy")
            if request.dry_run:
                return pb.Operation(name=request.name, kind=kind, dry_run=True)
            self.limits.append(getattr(request, "deadline_seconds", 0.0))
            self.begun.append((request.name, kind, request.uid, tier))
            if getattr(request, "precopy", False):
                self.precopied.append(request.name)
            (name,) = context.auth_context()["x509_common_name"]
            self.operations[request.name] = pb.Operation(
                name=request.name,
                kind=kind,
                uid=request.uid,
                by=name.decode(),
                why=request.why,
                tier=tier,
                state="running",
                sentence="it is parking",
                created_at=time.time(),
            )
            return self._now(request.name, context)

    def _now(self, name: str, context: Any) -> pb.Operation:
        found = self.operations.get(name)
        if found is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no operation is named {name}")
        assert found is not None
        over = time.time() >= found.created_at + self.takes and found.uid not in self.stuck
        if found.state not in _ENDED and over:
            found.state, found.sentence = "succeeded", "it is kept"
            if found.kind == "save":
                found.artifact = f"shop/a@{name}"
                found.saved.CopyFrom(pb.Saved(tier=found.tier or "object", bytes=7))
            if found.kind == "evict" and found.tier:
                found.saved.CopyFrom(pb.Saved(tier=found.tier, bytes=7))
        return found


def serve(door: Door, tls: Path, node: str, port: int = 0) -> tuple[grpc.Server, int]:
    """A server that has started, and its port on 127.0.0.1."""
    server = grpc.server(futures.ThreadPoolExecutor(_THREADS))
    rpc.serve(server, agent_pb2.DESCRIPTOR, "NodeAgent", door)
    pair = [(tls / f"agent-{node}.{kind}").read_bytes() for kind in ("key", "crt")]
    credentials = grpc.ssl_server_credentials(
        [tuple(pair)], (tls / "ca.crt").read_bytes(), require_client_auth=True
    )
    found = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    return server, found
