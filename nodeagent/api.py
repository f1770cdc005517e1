"""The agent's gRPC servers: a Unix socket for the plugin, mutual TLS for proxies."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import grpc

from kybernate import keys
from kybernate.errors import ConfigError, KybernateError, RefusedError
from kybernate.gen import agent_pb2 as pb
from kybernate.gen import agent_pb2_grpc
from nodeagent.streams import require_client
from nodeagent.wire import holdings_message, inventory_answer, inventory_from, status_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kybernate.types import GpuUuid
    from nodeagent.attendance import Attendance
    from nodeagent.changes import Changes
    from nodeagent.loop import Loop
    from nodeagent.node import Node
    from nodeagent.prepare import Preparer
    from nodeagent.streams import Streams

_NVML_DEADLINE = 5.0
_WATCH_INTERVAL = 0.25
_HOLDINGS_INTERVAL = 1.0
"""Seconds. The budget changes without a word to the observers of seats."""
# A proxy that vanished without a word is noticed within twice this.
_KEEPALIVE_MS = 2000
_OPTIONS = [
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]


class StatusApi:
    """GetStatus and WatchStatus, which both servers have."""

    def __init__(self, node: Node) -> None:
        self._node = node

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
            await asyncio.sleep(_WATCH_INTERVAL)


class PluginApi(agent_pb2_grpc.NodeAgentServicer):
    """What the device plugin and people on the node may call."""

    def __init__(
        self,
        loop: Loop,
        preparer: Preparer,
        attendance: Attendance,
        reported: Callable[[], None],
        changes: Changes,
    ) -> None:
        self._loop = loop
        self._changes = changes
        self._attendance = attendance
        self._preparer = preparer
        self._reported = reported
        self._status = StatusApi(loop.node)

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
                yield holdings
            await self._changes.wait(_HOLDINGS_INTERVAL)

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


class ProxyApi(agent_pb2_grpc.NodeAgentServicer):
    """What proxies may call, by their certificate."""

    def __init__(self, loop: Loop, streams: Streams) -> None:
        self._streams = streams
        self._status = StatusApi(loop.node)

    async def Serve(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[pb.ProxyReport],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """A proxy's stream."""
        await self._streams.serve(request_iterator, context)

    async def GetStatus(  # noqa: N802 - gRPC's name
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.NodeStatus:
        """The node as it is."""
        await require_client(context, keys.CN_PROXY)
        return await self._status.now()

    async def WatchStatus(  # noqa: N802 - gRPC's name
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.NodeStatus]:
        """The node whenever it changes."""
        await require_client(context, keys.CN_PROXY)
        async for status in self._status.watch():
            yield status


async def serve_plugin(api: PluginApi, socket: Path) -> grpc.aio.Server:
    """Serve on a Unix socket that only root may open."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    server = grpc.aio.server(options=_OPTIONS)
    agent_pb2_grpc.add_NodeAgentServicer_to_server(api, server)  # type: ignore[no-untyped-call]
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{socket}")
    finally:
        os.umask(before)
    await server.start()
    return server


async def serve_proxies(
    api: ProxyApi, listen: str, tls_dir: Path, node: str
) -> tuple[grpc.aio.Server, int]:
    """Serve with mutual TLS; returns the server and its port. Raises ConfigError."""
    server = grpc.aio.server(options=_OPTIONS)
    agent_pb2_grpc.add_NodeAgentServicer_to_server(api, server)  # type: ignore[no-untyped-call]
    try:
        port = server.add_secure_port(listen, _credentials(tls_dir, node))
    except RuntimeError as error:
        raise ConfigError("listen", f"can't listen on {listen}: {error}") from error
    await server.start()
    return server, port


def _credentials(tls_dir: Path, node: str) -> grpc.ServerCredentials:
    try:
        key = (tls_dir / f"agent-{node}.key").read_bytes()
        certificate = (tls_dir / f"agent-{node}.crt").read_bytes()
        authority = (tls_dir / "ca.crt").read_bytes()
    except OSError as error:
        raise ConfigError(
            "tls_dir",
            f"can't read {error.filename}: {error.strerror}; "
            f"make it with: kybernate pki init --dir {tls_dir} --node {node}",
        ) from error
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=authority, require_client_auth=True
    )


async def read_used(node: Node) -> dict[GpuUuid, int]:
    """Bytes in use by GPU, as NVML says; a GPU that doesn't answer is left out."""
    gpus = [gpu.uuid for gpu in node.inventory.gpus] if node.inventory else []
    used: dict[GpuUuid, int] = {}
    for gpu in gpus:
        try:
            used[gpu] = await node.world.asking(
                lambda one=gpu: node.world.gpus.used(one),  # type: ignore[misc]
                _NVML_DEADLINE,
            )
        except KybernateError:
            continue
    return used
