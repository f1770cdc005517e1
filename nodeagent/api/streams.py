"""Proxies' streams: seats and lease orders down, demand and drained leases up."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

import grpc

from kybernate.gen import agent_pb2 as pb
from kybernate.types import PodUid
from nodeagent.artifacts.clones import is_clone
from nodeagent.offload.arrivals import SOCKETS
from nodeagent.operations.wire import seat_message
from nodeagent.seat.leases import Demand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.api.demand import ProxySide
    from nodeagent.offload.departures import Departures
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

PROTOCOL = 1
_SEAT_DELAY = 0.05
"""Seconds. A swap changes two seats five times within so long, in which messages nobody waits for
would hold up those that requests wait for: each takes 0.3 ms until it is taken in."""
_ASKED_DELAY = 0.01
"""Seconds until other proxies hear that a seat is asked for: until then they may ask another one of
its model."""
_CLOCK_TICK = 0.002
_LONGEST_TRACE = 64


class Session:
    """One stream. Implements `leases.Outbox`; what is to be told waits here for the writer.

    Orders go out at once, since requests wait for them. What is told of seats may wait for
    `_SEAT_DELAY` and is told in its newest state only; but a seat that is new, or whose address
    changed, is told before its orders.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._orders: deque[tuple[PodUid, pb.AgentOrder]] = deque()
        self._seats: dict[PodUid, Seat] = {}
        self._told: dict[PodUid, str] = {}
        self._seats_due = 0.0
        self._some = asyncio.Event()

    def seat(self, seat: Seat, within: float = _SEAT_DELAY) -> None:
        """Tell of a seat as it is when its turn comes, in so many seconds."""
        loop = asyncio.get_running_loop()
        due = loop.time() + within
        if not self._seats or due < self._seats_due:
            self._seats_due = due
            loop.call_later(within, self._some.set)
        self._seats[seat.uid] = seat

    def gone(self, uid: PodUid) -> None:
        """Tell that a seat is no more."""
        self._seats.pop(uid, None)
        self._told.pop(uid, None)
        self._order(uid, pb.AgentOrder(gone=pb.SeatGone(uid=uid)))

    def grant(self, uid: PodUid, generation: int) -> None:
        """See `leases.Outbox`."""
        self._order(uid, pb.AgentOrder(grant=pb.Lease(uid=uid, generation=generation)))

    def drain(self, uid: PodUid, generation: int) -> None:
        """See `leases.Outbox`."""
        self._order(uid, pb.AgentOrder(drain=pb.Lease(uid=uid, generation=generation)))

    def revoke(self, uid: PodUid, generation: int) -> None:
        """See `leases.Outbox`."""
        self._order(uid, pb.AgentOrder(revoke=pb.Lease(uid=uid, generation=generation)))

    def proxies(self, connected: int) -> None:
        """Tell how many proxies there are: limits that hold for all of them are shared."""
        word = pb.Proxies(connected=connected, takes_back=True)
        self._order(PodUid(""), pb.AgentOrder(proxies=word))

    async def next(self) -> pb.AgentOrder:
        """The next message; waits until there is one."""
        while not (self._orders or self._seats_are_due()):
            self._some.clear()
            await self._some.wait()
        uid = self._orders[0][0] if self._orders else next(iter(self._seats))
        seat = self._seats.get(uid)
        if seat is not None and (not self._orders or self._told.get(uid) != seat.contact.address):
            del self._seats[uid]
            self._told[uid] = seat.contact.address
            return pb.AgentOrder(seat=as_told(seat))
        return self._orders.popleft()[1]

    def _seats_are_due(self) -> bool:
        # A timer may run a clock tick early.
        now = asyncio.get_running_loop().time()
        return bool(self._seats) and now + _CLOCK_TICK >= self._seats_due

    def _order(self, uid: PodUid, order: pb.AgentOrder) -> None:
        self._orders.append((uid, order))
        self._some.set()


class Streams:
    """All proxies' streams. Implements `node.Observer` and `node.DemandListener`."""

    def __init__(self, proxies: ProxySide, departures: Departures) -> None:
        self._proxies = proxies
        self._departures = departures
        self._sessions: dict[str, Session] = {}
        self._awaited: set[PodUid] = set()

    def demand_changed(self, seat: Seat) -> None:
        """See `node.DemandListener`. Of a seat that one proxy asks for the others know, so that
        they don't have another one of its model woken."""
        awaited = seat.demand.waiting > 0
        if awaited != (seat.uid in self._awaited):
            (self._awaited.add if awaited else self._awaited.discard)(seat.uid)
            if len(self._sessions) > 1:
                self._tell(seat, _ASKED_DELAY)

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._tell(seat, _SEAT_DELAY)

    def _tell(self, seat: Seat, within: float) -> None:
        moved = self._departures.where(seat.uid)
        for session in self._sessions.values():
            if moved:
                # It never wakes here: nobody must wait for that.
                session.gone(seat.uid)
            else:
                session.seat(seat, within)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._awaited.discard(seat.uid)
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
        if first.hello.proxy == SOCKETS:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"hello.proxy is {SOCKETS!r}, by which the agent calls itself; choose another name",
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
        for seat in self._proxies.node.seats.values():
            if not self._departures.where(seat.uid):
                session.seat(seat)
        self._proxies.proxy_joined(name, session)
        self._count()
        log.info("proxy %s joined", name)
        return session

    def _leave(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]
            self._proxies.proxy_left(session.name, session)
            self._count()
            log.info("proxy %s left", session.name)

    def _count(self) -> None:
        for session in self._sessions.values():
            session.proxies(len(self._sessions))

    def _take(self, session: Session, report: pb.ProxyReport) -> None:
        if self._sessions.get(session.name) is not session:
            return
        match report.WhichOneof("kind"):
            case "demand":
                one = report.demand
                since = self._proxies.node.world.now() - one.oldest_wait_seconds
                trace = one.traceparent[:_LONGEST_TRACE]
                demand = Demand(one.in_flight, one.waiting, since, one.requests, trace)
                idle = [(PodUid(lease.uid), lease.generation) for lease in one.idle]
                self._proxies.proxy_demand(session.name, PodUid(one.uid), demand, idle)
            case "drained":
                lease = report.drained
                self._proxies.proxy_drained(session.name, PodUid(lease.uid), lease.generation)
            case other:
                log.warning("proxy %s sent %s after its hello", session.name, other)


async def _write(
    session: Session, context: grpc.aio.ServicerContext[pb.ProxyReport, pb.AgentOrder]
) -> None:
    while True:
        await context.write(await session.next())


def as_told(seat: Seat) -> pb.Seat:
    """A seat as proxies see it. A clone serves no model, and is nowhere."""
    message = seat_message(seat)
    if is_clone(seat):
        message.model = message.address = ""
    return message
