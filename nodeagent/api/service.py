"""What the agent answers to each call of its API; who may call is `doorkeeper`'s."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from kybernate import keys
from kybernate.core.seat.operations import WITHOUT_SEAT, Kind, is_of_request
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, KybernateError, RefusedError
from kybernate.gen import agent_pb2 as pb
from kybernate.types import PodUid, Tier
from nodeagent.api.doorkeeper import NODE, check_name, client_name
from nodeagent.operations.record import Ask
from nodeagent.operations.wire import (
    holdings_message,
    inventory_answer,
    inventory_from,
    operation_message,
    status_message,
)
from nodeagent.seat.steps import NVML_DEADLINE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from kybernate.types import GpuUuid
    from nodeagent.api.prepare import Preparer
    from nodeagent.api.streams import Streams
    from nodeagent.kube.attendance import Attendance
    from nodeagent.operations.operations import Operations
    from nodeagent.seat.changes import Changes
    from nodeagent.seat.node import Inventory, Node

    Handler = Callable[
        [Any, Any, grpc.aio.ServicerContext[Any, Any]], Coroutine[Any, Any, pb.Operation]
    ]

_WATCH_INTERVAL = 0.25
_UNTOLD = 1.0
"""Seconds. GPU memory in use changes without a word, seats do not."""
_OPERATION_INTERVAL = 5.0
_AFTER_THE_SWAP = 0.02
"""Seconds: a swap changes two seats five times, and requests wait for its end."""
_HOLDINGS_INTERVAL = 1.0
"""Seconds. The budget changes without a word to the observers of seats."""


class StatusApi:
    """GetStatus and WatchStatus, which both servers have."""

    def __init__(self, node: Node, changes: Changes) -> None:
        self._node = node
        self._changes = changes

    async def now(self) -> pb.NodeStatus:
        """The node as it is."""
        return status_message(self._node, await read_used(self._node))

    async def watch(self) -> AsyncIterator[pb.NodeStatus]:
        """The node now, and again whenever it has changed (looked at 4 times a second)."""
        last = None
        while True:
            status = await self.now()
            if status != last:
                last = status
                yield status
            await self._changes.wait(_UNTOLD)
            # A swap changes two seats many times: what follows at once is told with it.
            await asyncio.sleep(_WATCH_INTERVAL)


class Inventoried(Protocol):
    """Whose groups and GPUs the device plugin reports."""

    node: Node

    def inventory_reported(self, inventory: Inventory) -> None:
        """What the node has. Raises RefusedError if it changes the GPUs of a group that is held."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What calls are answered from. `reported` hears of each report of the plugin's."""

    loop: Inventoried
    preparer: Preparer
    attendance: Attendance
    changes: Changes
    streams: Streams
    operations: Operations
    reported: Callable[[], None]


def _caller(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    return client_name(context) or NODE


def _tier(name: str) -> Tier | None:
    try:
        return Tier(name) if name else None
    except ValueError:
        known = ", ".join(tier.value for tier in Tier)
        raise ConfigError("tier", f"{name!r} is no tier; write one of {known}") from None


def _ask(kind: Kind, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Ask:
    """What the request asks for. Raises ConfigError naming the field."""
    ask = Ask(kind, request.name, why=request.why, by=_caller(context))
    if kind not in WITHOUT_SEAT:
        ask = replace(ask, uid=_uid(request.uid))
    match request:
        case pb.EvictRequest():
            evict = replace(ask, tier=_tier(request.tier), limit=request.deadline_seconds)
            return replace(evict, precopy=request.precopy)
        case pb.ParkRequest() | pb.SaveRequest():
            return replace(ask, tier=_tier(request.tier), limit=request.deadline_seconds)
        case pb.PlaceRequest():
            placed = replace(ask, artifact=request.artifact, limit=request.deadline_seconds)
            return replace(placed, tier=_tier(request.tier))
        case pb.MoveRequest():
            return replace(ask, successor=request.successor, limit=request.deadline_seconds)
        case pb.EvacuateRequest() if not request.seconds:
            raise ConfigError("seconds", "must say in how many seconds the node is gone")
        case pb.EvacuateRequest():
            return replace(ask, limit=request.seconds)
        case _:
            return ask


def _uid(name: str) -> PodUid:
    if not name:
        raise ConfigError("uid", "must be the UID of a pod that holds a seat; GetStatus lists them")
    return PodUid(name)


def _operation(kind: Kind) -> Handler:
    """The call that asks for an operation of this kind."""

    async def handle(
        self: NodeApi, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Operation:
        ask = _ask(kind, request, context)
        return await self.operate(ask, dry_run=kind is not Kind.UNDRAIN and request.dry_run)

    return handle


class NodeApi:
    """Every call of the API, for both doors."""

    def __init__(self, parts: Parts) -> None:
        self._loop = parts.loop
        self._streams = parts.streams
        self._operations = parts.operations
        self._changes = parts.changes
        self._attendance = parts.attendance
        self._preparer = parts.preparer
        self._reported = parts.reported
        self._status = StatusApi(parts.loop.node, parts.changes)

    async def ReportInventory(  # noqa: N802 - gRPC's name
        self, request: pb.ReportInventoryRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ReportInventoryResponse:
        """Take over what the node has."""
        try:
            self._loop.inventory_reported(inventory_from(request))
        except RefusedError as error:
            self._reported()
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._reported()
        return inventory_answer(self._loop.node)

    async def WatchHoldings(  # noqa: N802 - gRPC's name
        self, request: pb.WatchHoldingsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.Holdings]:
        """What is held and what may be parked, now and whenever it changes."""
        last = None
        while True:
            holdings = holdings_message(self._loop.node)
            if holdings != last:
                last = holdings
                yield holdings  # and look again: what changed meanwhile rang for nobody
            else:
                await self._changes.wait(_HOLDINGS_INTERVAL)
                await asyncio.sleep(_AFTER_THE_SWAP)

    async def Attend(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[pb.Attendance],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.AttendResponse:
        """A plugin's presence, until it ends."""
        plugin = object()
        try:
            async for attendance in request_iterator:
                self._attendance.set(plugin, attendance.unlisted)
        finally:
            self._attendance.left(plugin)
        return pb.AttendResponse()

    async def AwaitedGroups(  # noqa: N802 - gRPC's name
        self, request: pb.AwaitedGroupsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.AwaitedGroupsResponse:
        """Groups of bound pods without a seat."""
        return pb.AwaitedGroupsResponse(groups=self._preparer.awaited(request.resource))

    async def PrepareSeat(  # noqa: N802 - gRPC's name
        self, request: pb.PrepareSeatRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PrepareSeatResponse:
        """UNAVAILABLE: try again later. FAILED_PRECONDITION: refused."""
        try:
            seat = await self._preparer.prepare(request.resource, request.device_ids)
        except (RefusedError, ConfigError) as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except KybernateError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.PrepareSeatResponse(seat=seat.identity.name, group=seat.identity.group)

    async def GetStatus(  # noqa: N802 - gRPC's name
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.NodeStatus:
        """The node as it is."""
        return await self._status.now()

    async def WatchStatus(  # noqa: N802 - gRPC's name
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.NodeStatus]:
        """The node whenever it changes."""
        async for status in self._status.watch():
            yield status

    async def Serve(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[pb.ProxyReport],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """A proxy's stream."""
        await self._streams.serve(request_iterator, context)

    # --- operations ---------------------------------------------------------------------------

    Park = _operation(Kind.PARK)
    Wake = _operation(Kind.WAKE)
    Evict = _operation(Kind.EVICT)
    Save = _operation(Kind.SAVE)
    Move = _operation(Kind.MOVE)
    Place = _operation(Kind.PLACE)
    Evacuate = _operation(Kind.EVACUATE)
    DrainNode = _operation(Kind.DRAIN)
    UndrainNode = _operation(Kind.UNDRAIN)

    async def CancelOperation(  # noqa: N802 - gRPC's name
        self, request: pb.CancelOperationRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Operation:
        """Take an operation back."""
        return operation_message(self._operations.cancel(request.name))

    async def DropSnapshot(  # noqa: N802 - gRPC's name
        self, request: pb.DropSnapshotRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DropSnapshotResponse:
        """Keep a snapshot no longer."""
        check_name(request.name)
        if _caller(context) == keys.CN_CONTROLLER and not is_of_request(request.name):
            raise RefusedError(
                f"{request.name} was not made for a CheckpointRequest; delete it by "
                "`kybernate artifacts rm`"
            )
        artifact = self._operations.forget(request.name, request.why or "it was deleted")
        return pb.DropSnapshotResponse(artifact=artifact)

    async def GetOperation(  # noqa: N802 - gRPC's name
        self, request: pb.GetOperationRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Operation:
        """An operation as it is."""
        return operation_message(self._operations.get(request.name))

    async def ListOperations(  # noqa: N802 - gRPC's name
        self, request: pb.ListOperationsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListOperationsResponse:
        """All operations that the agent knows."""
        known = self._operations.known(ended_too=request.ended_too)
        return pb.ListOperationsResponse(operations=[operation_message(one) for one in known])

    async def WatchOperation(  # noqa: N802 - gRPC's name
        self, request: pb.GetOperationRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.Operation]:
        """An operation at each change, until it has ended."""
        operation = self._operations.get(request.name)
        last = None
        while True:
            # Read together: much may happen to it while a message goes out.
            message, ended = operation_message(operation), operation.ended
            if message != last:
                last = message
                yield message
            elif not ended:
                await self._operations.changes.wait(_OPERATION_INTERVAL)
            if ended:
                return

    async def operate(self, ask: Ask, *, dry_run: bool) -> pb.Operation:
        """Begin it, or with `dry_run` say what would be done. Raises KybernateError."""
        check_name(ask.name)
        if not dry_run:
            return operation_message(await self._operations.ask(ask))
        return pb.Operation(
            name=ask.name,
            kind=ask.kind.value,
            uid=ask.uid,
            by=ask.by,
            why=ask.why,
            plan=self._operations.plan(ask),
            dry_run=True,
        )


async def read_used(node: Node) -> dict[GpuUuid, int]:
    """Bytes in use by GPU, as NVML says; a GPU that doesn't answer is left out."""
    gpus = [gpu.uuid for gpu in node.inventory.gpus] if node.inventory else []
    used: dict[GpuUuid, int] = {}
    for gpu in gpus:
        try:
            used[gpu] = await node.world.asking(
                lambda one=gpu: node.world.gpus.used(one),  # type: ignore[misc]
                NVML_DEADLINE,
            )
        except KybernateError:
            continue
    return used
