"""A node's agent as proxies see it: its true book of leases, and turns by the clock."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc

from kybernate.gen import agent_pb2
from kybernate.gen import agent_pb2 as pb
from kybernate.lib import rpc
from kybernate.types import PodUid
from nodeagent.seat.leases import Demand, Leases

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

BREAK_S = 2.0
"""Seconds for which it believes in requests on a proxy that is gone."""


class _Stream:
    """One proxy's; implements `leases.Outbox`."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[pb.AgentOrder | None] = asyncio.Queue()

    def grant(self, uid: PodUid, generation: int) -> None:
        self.orders.put_nowait(pb.AgentOrder(grant=pb.Lease(uid=uid, generation=generation)))

    def drain(self, uid: PodUid, generation: int) -> None:
        self.orders.put_nowait(pb.AgentOrder(drain=pb.Lease(uid=uid, generation=generation)))

    def revoke(self, uid: PodUid, generation: int) -> None:
        self.orders.put_nowait(pb.AgentOrder(revoke=pb.Lease(uid=uid, generation=generation)))


class Agent:
    """Models, by name, at their addresses; with `turn` seconds one is granted at a time."""

    def __init__(self, tls: Path, models: Mapping[str, str], turn: float = 0.0) -> None:
        self.port = 0
        self.swaps = 0
        self.held: set[str] = set()
        """Models that requests may be at."""
        self._tls, self._models, self._turn = tls, models, turn
        self._leases = Leases(BREAK_S)
        self._granted: dict[PodUid, int] = {}
        self._generation = 0
        self._task: asyncio.Task[None] | None = None
        self._server: Any = None

    async def start(self) -> None:
        """Listen, and take turns."""
        self._server = grpc.aio.server()
        rpc.serve(self._server, agent_pb2.DESCRIPTOR, "NodeAgent", self)
        key, crt = ((self._tls / f"agent-n1.{end}").read_bytes() for end in ("key", "crt"))
        ca = (self._tls / "ca.crt").read_bytes()
        credentials = grpc.ssl_server_credentials([(key, crt)], ca, require_client_auth=True)
        self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        await self._server.start()
        self._task = asyncio.create_task(self._turns())

    async def stop(self) -> None:
        """End all streams."""
        if self._task is not None:
            self._task.cancel()
        await self._server.stop(None)

    async def Serve(  # noqa: N802 - gRPC's name
        self, reports: AsyncIterator[pb.ProxyReport], _: object
    ) -> AsyncIterator[pb.AgentOrder]:
        """One proxy's stream."""
        first = await anext(aiter(reports))
        stream, name = _Stream(), first.hello.proxy
        for model, address in self._models.items():
            seat = pb.Seat(uid=model, name=model, group="G0", namespace="bench", pod=model)
            seat.model, seat.address, seat.state = model, address, "parked"
            stream.orders.put_nowait(pb.AgentOrder(seat=seat))
        self._leases.joined(name, stream, dict(self._granted))
        reader = asyncio.create_task(self._read(name, reports, stream))
        try:
            while (order := await stream.orders.get()) is not None:
                yield order
        finally:
            reader.cancel()
            self._leases.left(name, stream, self._now)

    async def _read(
        self, name: str, reports: AsyncIterator[pb.ProxyReport], stream: _Stream
    ) -> None:
        with contextlib.suppress(grpc.RpcError):
            async for report in reports:
                if report.WhichOneof("kind") == "drained":
                    lease = report.drained
                    self._leases.returned(name, PodUid(lease.uid), lease.generation)
                elif report.WhichOneof("kind") == "demand":
                    one = report.demand
                    demand = Demand(one.in_flight, one.waiting, None, one.requests)
                    self._leases.report(name, PodUid(one.uid), demand)
        stream.orders.put_nowait(None)

    async def _turns(self) -> None:
        if not self._turn:
            for model in self._models:
                self._grant(model)
            return
        while True:
            for model in self._models:
                self._grant(model)
                await asyncio.sleep(self._turn)
                await self._drain(PodUid(model))
                self.swaps += 1

    def _grant(self, model: str) -> None:
        self._generation += 1
        self.held.add(model)
        self._granted[PodUid(model)] = self._generation
        self._leases.grant(PodUid(model), self._generation)

    async def _drain(self, uid: PodUid) -> None:
        del self._granted[uid]
        self._leases.drain(uid)
        while not self._leases.drained(uid):
            await asyncio.sleep(0.002)
            self._leases.expire(self._now)
        self.held.discard(uid)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()
