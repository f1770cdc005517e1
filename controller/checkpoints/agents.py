"""The agents of nodes, by gRPC with mutual TLS: operations begun, found and cancelled by name.

A request that is deleted while no controller runs tells nobody; its operation is still there, and
the sweep finds it.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from controller import metrics
from kybernate import keys
from kybernate.api.requests import LONGEST_ARTIFACT
from kybernate.core.requests.asked import Copied
from kybernate.core.requests.checkpoint import (
    KINDS,
    Operation,
    Outcome,
    Problem,
    Trouble,
    strays,
    trouble_of,
)
from kybernate.core.requests.placement import unplaced
from kybernate.core.seat.operations import ENDED, Kind, Progress
from kybernate.errors import (
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.gen import agent_pb2 as pb
from kybernate.lib import rpc
from kybernate.lib.rounds import rounds_blocking
from kybernate.runtime.agents import credentials, options, translated
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from controller.base.known import Nodes, Requests
    from kybernate.core.requests.checkpoint import Request
    from kybernate.core.requests.placement import Copy
    from kybernate.runtime.lead import Fence

log = logging.getLogger(__name__)

_PING_S = 10.0
_MOST_BYTES = (1 << 63) - 1
_WHY = 500
_AT_ONCE = 8


class Agents:
    """Safe to use from several threads. `address` says where a node's agent is, empty where nobody
    knows; `revoked` why a node isn't believed, in a sentence, empty if it is."""

    def __init__(
        self,
        tls: Path,
        timeout: float,
        address: Callable[[str], str],
        revoked: Callable[[str], str],
        *,
        shared: bool,
    ) -> None:
        """A call takes at most `timeout` seconds; `shared`: see `runtime.agents.authorities`."""
        self._tls = tls
        self._timeout = timeout
        self._address = address
        self._revoked = revoked
        self._shared = shared
        self._lock = threading.Lock()
        self._channels: dict[str, tuple[tuple[str, object], grpc.Channel]] = {}
        self._closed = False

    def find(self, node: str, name: str) -> Operation | Problem | None:
        """The operation of this name; None if the agent knows none."""
        try:
            return _read(self._call(node, "GetOperation", pb.GetOperationRequest(name=name)))
        except NotFoundError:
            return None
        except KybernateError as error:
            return Problem(Trouble.UNREACHABLE, str(error))

    def begin(self, request: Request, left: float) -> Operation | Problem:
        """Have the request's operation begun; one that was begun already is found. `left` seconds
        from now the agent gives it up by itself."""
        status, kind = request.status, KINDS[request.mode]
        try:
            return _read(self._call(status.node, *_asked(request, kind, left)))
        except NotFoundError as error:
            return Problem(Trouble.NO_SEAT, str(error))
        except RefusedError as error:
            rival = self._rival(status.node, status.pod_uid)
            again = not rival and self._refused_again(request, kind)
            return Problem(trouble_of(rival=rival, again=again), str(error))
        except KybernateError as error:
            return Problem(Trouble.UNREACHABLE, str(error))

    def ends(self, node: str, name: str, within: float) -> bool:
        """Wait until the operation has ended, for so many seconds at most; whether it has."""
        asked = pb.GetOperationRequest(name=name)
        try:
            told = self._stub(node).WatchOperation(asked, timeout=within)
            return any(one.state in ENDED for one in told)
        except (grpc.RpcError, KybernateError, ValueError):
            # ValueError: its connection was closed just now. Whoever looks next asks again.
            return False

    def cancel(self, node: str, name: str) -> Operation | Problem | None:
        """Take the operation back; None if the agent knows none of the name."""
        try:
            return _read(self._call(node, "CancelOperation", pb.CancelOperationRequest(name=name)))
        except NotFoundError:
            return None
        except RefusedError as error:
            return Problem(Trouble.REFUSED, str(error))
        except KybernateError as error:
            return Problem(Trouble.UNREACHABLE, str(error))

    def place(self, copy: Copy, why: str) -> Operation | Problem:
        """Have a copy made that a TierPlacement wants; one that was begun already is found."""
        name, tier = copy.operation, copy.tier.value
        asked = pb.PlaceRequest(name=name, artifact=copy.artifact, why=why[:_WHY], tier=tier)
        try:
            return _read(self._call(copy.node, "Place", asked))
        except RefusedError as error:
            return Problem(Trouble.REFUSED, str(error))
        except KybernateError as error:
            return Problem(Trouble.UNREACHABLE, str(error))

    def drop(self, node: str, name: str, why: str) -> None:
        """Have the snapshot deleted that the operation of this name has kept; also if there is none
        any more. Raises KybernateError."""
        self._call(node, "DropSnapshot", pb.DropSnapshotRequest(name=name, why=why))

    def own(self, node: str) -> list[str]:
        """Operations under way that a controller has begun, by name. Raises KybernateError."""
        return [one.name for one in self._under_way(node) if one.by == keys.CN_CONTROLLER]

    def disconnect(self, nodes: Collection[str]) -> None:
        """End the connections to these nodes."""
        with self._lock:
            gone = [self._channels.pop(node) for node in nodes if node in self._channels]
        for _, channel in gone:
            channel.close()

    def close(self) -> None:
        """End all connections, and make none any more."""
        with self._lock:
            self._closed = True
        self.disconnect(tuple(self._channels))

    def _refused_again(self, request: Request, kind: Kind) -> bool:
        """Whether a try without effect is refused, too."""
        call, message = _asked(request, kind, 0.0)
        message.dry_run = True
        try:
            self._call(request.status.node, call, message)
        except RefusedError:
            return True
        except KybernateError:
            return False
        return False

    def _rival(self, node: str, uid: str) -> bool:
        try:
            return any(one.uid == uid for one in self._under_way(node))
        except KybernateError:
            # Nobody knows: it is asked again, rather than refused for good.
            return True

    def _under_way(self, node: str) -> list[pb.Operation]:
        found = self._call(node, "ListOperations", pb.ListOperationsRequest())
        return list(found.operations)

    def _call(self, node: str, method: str, message: Any) -> Any:
        stub = self._stub(node)
        try:
            return getattr(stub, method)(message, timeout=self._timeout)
        except grpc.RpcError as error:
            raise translated(error, node) from error

    def _stub(self, node: str) -> Any:
        if why := self._revoked(node):
            raise RetryableError(why)
        address = self._address(node)
        if not address:
            raise RetryableError(f"node {node} tells no address of its agent")
        try:
            like = address, self._stamp()
            with self._lock:
                if self._closed:
                    raise RetryableError("the controller ends")
                known = self._channels.get(node)
                if known is None or known[0] != like:
                    # One of before ends with its last call.
                    known = self._channels[node] = (like, self._connect(node, address))
        except OSError as error:
            raise RetryableError(f"certificates can't be read: {error}") from error
        return rpc.Stub(known[1], pb.DESCRIPTOR, "NodeAgent")

    def _stamp(self) -> object:
        """Changes with the files that a connection is made of."""
        found = (self._tls / name for name in ("agents-ca.crt", "ca.crt", "controller.crt"))
        return tuple(file.stat().st_mtime_ns for file in found if file.exists())

    def _connect(self, node: str, address: str) -> grpc.Channel:
        believed = credentials(self._tls, "controller", shared=self._shared)
        return grpc.secure_channel(address, believed, options(node, _PING_S))


def forget(agents: Agents, request: Request, why: str) -> str:
    """Have the snapshot deleted that a request has kept; why it can't be now, in a sentence."""
    try:
        agents.drop(request.status.node, request.status.operation, why)
    except KybernateError as error:
        # Its request stays, and says that it is there.
        log.warning("the artifact of request %s stays: %s", request.name, error)
        return str(error)
    return ""


class Sweep:
    """Finds operations whose request is gone, on the agents themselves, and cancels them. `every`
    in seconds."""

    def __init__(
        self,
        requests: Requests[Request],
        nodes: Nodes,
        agents: Agents,
        fence: Fence,
        every: float,
        placed: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`placed`: the operations that TierPlacements name."""
        self._requests = requests
        self._placed = placed
        self._nodes = nodes
        self._agents = agents
        self._fence = fence
        self._every = every

    def run(self, stopping: threading.Event) -> None:
        """Sweep now and then, while this replica leads, until told to stop."""
        rounds_blocking(partial(self.sweep, stopping), stopping, self._every, "sweep")

    def sweep(self, stopping: threading.Event) -> None:
        """Ask all agents once."""
        if self._fence.closed() is not None:
            return
        with ThreadPoolExecutor(_AT_ONCE, "sweep") as pool:
            for node in self._nodes.names():
                pool.submit(self._of_node, node, stopping)

    def _of_node(self, node: str, stopping: threading.Event) -> None:
        if stopping.is_set():
            return
        try:
            # What is begun after this list is of a request that is known already.
            names = self._agents.own(node)
            wanted = self._requests.wanted()
            for name in (*strays(names, wanted), *unplaced(names, self._placed())):
                self._fence.check()
                self._agents.cancel(node, name)
                metrics.STRAYS.inc()
                log.info("operation %s on node %s: its request is gone or has ended", name, node)
        except KybernateError as error:
            log.warning("operations on node %s can't be listed: %s", node, error)


def _asked(request: Request, kind: Kind, left: float) -> tuple[str, Any]:
    """The call, and its message."""
    name, uid, why = request.status.operation, request.status.pod_uid, request.why
    tier = request.tier.value if request.tier else ""
    if kind is Kind.PARK:
        return "Park", pb.ParkRequest(name=name, uid=uid, why=why, tier=tier, deadline_seconds=left)
    if kind is Kind.SAVE:
        return "Save", pb.SaveRequest(name=name, uid=uid, why=why, tier=tier, deadline_seconds=left)
    if kind is Kind.WAKE:
        return "Wake", pb.WakeRequest(name=name, uid=uid, why=why)
    evict = pb.EvictRequest(name=name, uid=uid, why=why, tier=tier, deadline_seconds=left)
    # A pod that moves is waited for; of one that makes room, its GPUs are.
    evict.precopy = request.target is not None
    return "Evict", evict


def _read(message: pb.Operation) -> Operation | Problem:
    try:
        state, outcome, copied = Progress(message.state), _outcome(message), _copied(message)
    except ValueError as error:
        # A newer agent's word; what it means is in its sentence.
        return Problem(Trouble.UNREACHABLE, f"{error}: {message.sentence}")
    return Operation(state, message.sentence, outcome, copied)


def _outcome(message: pb.Operation) -> Outcome | None:
    """Raises ValueError for what no status can say."""
    if not message.HasField("saved"):
        return None
    if len(message.artifact) > LONGEST_ARTIFACT:
        raise ValueError(f"its artifact's name has {len(message.artifact)} characters")
    return Outcome(message.artifact, Tier(message.saved.tier).value, _size(message.saved.bytes))


def _copied(message: pb.Operation) -> Copied | None:
    total = _size(message.bytes_total)
    return Copied(_size(message.bytes_done), total) if total else None


def _size(size: int) -> int:
    if size > _MOST_BYTES:
        raise ValueError(f"{size} bytes are more than there can be")
    return size
