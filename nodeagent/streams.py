"""Proxies' streams: seats and lease orders down, demand and drained leases up."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc

from kybernate import keys
from kybernate.gen import agent_pb2 as pb
from kybernate.types import PodUid
from nodeagent.leases import Demand
from nodeagent.wire import seat_message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.loop import Loop
    from nodeagent.seat import Seat

log = logging.getLogger(__name__)

PROTOCOL = 1


class Session:
    """One stream. Implements `leases.Outbox`; orders wait in a queue for the writer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.orders: asyncio.Queue[pb.AgentOrder] = asyncio.Queue()

    def seat(self, seat: Seat) -> None:
        """Tell of a seat as it is now."""
        self.orders.put_nowait(pb.AgentOrder(seat=seat_message(seat)))

    def gone(self, uid: PodUid) -> None:
        """Tell that a seat is no more."""
        self.orders.put_nowait(pb.AgentOrder(gone=pb.SeatGone(uid=uid)))

    def grant(self, uid: PodUid, generation: int) -> None:
        """See `leases.Outbox`."""
        self.orders.put_nowait(pb.AgentOrder(grant=pb.Lease(uid=uid, generation=generation)))

    def drain(self, uid: PodUid, generation: int) -> None:
        """See `leases.Outbox`."""
        self.orders.put_nowait(pb.AgentOrder(drain=pb.Lease(uid=uid, generation=generation)))

    def revoke(self, uid: PodUid, generation: int) -> None:
        """See `leases.Outbox`."""
        self.orders.put_nowait(pb.AgentOrder(revoke=pb.Lease(uid=uid, generation=generation)))


class Streams:
    """All proxies' streams. Implements `node.Observer`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._sessions: dict[str, Session] = {}

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        for session in self._sessions.values():
            session.seat(seat)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        for session in self._sessions.values():
            session.gone(seat.uid)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Proxies read states, not events."""

    async def serve(
        self,
        reports: AsyncIterator[pb.ProxyReport],
        context: grpc.aio.ServicerContext[pb.ProxyReport, pb.AgentOrder],
    ) -> None:
        """One proxy's stream, until either side ends it."""
        await require_client(context, keys.CN_PROXY)
        first = await anext(aiter(reports), None)
        if first is None or first.WhichOneof("kind") != "hello" or not first.hello.proxy:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message of the stream must be a hello"
            )
            return
        if first.hello.version != PROTOCOL:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this agent speaks version {PROTOCOL} of the stream, not {first.hello.version}",
            )
        session = self._join(first.hello.proxy)
        writer = asyncio.create_task(_write(session, context))
        try:
            async for report in reports:
                self._take(session, report)
        finally:
            writer.cancel()
            self._leave(session)

    def _join(self, name: str) -> Session:
        session = Session(name)
        self._sessions[name] = session
        for seat in self._loop.node.seats.values():
            session.seat(seat)
        self._loop.proxy_joined(name, session)
        log.info("proxy %s joined", name)
        return session

    def _leave(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
            self._loop.proxy_left(session.name, session)
            log.info("proxy %s left", session.name)

    def _take(self, session: Session, report: pb.ProxyReport) -> None:
        if self._sessions.get(session.name) is not session:
            return
        match report.WhichOneof("kind"):
            case "demand":
                one = report.demand
                since = self._loop.node.world.now() - one.oldest_wait_seconds
                demand = Demand(one.in_flight, one.waiting, since, one.requests)
                self._loop.proxy_demand(session.name, PodUid(one.uid), demand)
            case "drained":
                lease = report.drained
                self._loop.proxy_drained(session.name, PodUid(lease.uid), lease.generation)
            case other:
                log.warning("proxy %s sent %s after its hello", session.name, other)


async def _write(
    session: Session, context: grpc.aio.ServicerContext[pb.ProxyReport, pb.AgentOrder]
) -> None:
    while True:
        await context.write(await session.orders.get())


async def require_client(context: grpc.aio.ServicerContext[object, object], name: str) -> None:
    """Abort unless the caller's certificate carries this common name."""
    names = context.auth_context().get("x509_common_name") or ()
    if name.encode() not in names:
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"only a client named {name} may call this"
        )
