"""One stream per agent: demand goes up, leases come down, and a broken stream is made again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any

import grpc

from kybernate.api.watched.nodefacts import agent_address
from kybernate.core.seat.seats import RESTING
from kybernate.gen import agent_pb2
from kybernate.lib import rpc
from kybernate.lib.retry import quietly, retry, steadily
from kybernate.runtime.agents import credentials, options
from kybernate.settings.common import host_port
from kybernate.types import NodeName, PodUid, SeatState, Tier
from proxy.actions import SeatInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.settings.proxy import ProxySettings
    from proxy.desk import Desk

log = logging.getLogger(__name__)

PROTOCOL = 1
PROXY_NAME = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

_CONNECT_LIMIT = 5.0
_PATIENT_AFTER = 20.0
_QUICK, _PATIENT = 0.1, 2.0
_RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),  # in truth the limit of one attempt
)
"""By default gRPC would look again only after a second."""
_LISTENS = steadily(0.02)
"""Between looks whether an agent listens, for whose restart requests wait: gRPC itself takes 100 ms
at least, so that it came 60 ms late on average."""
_NAMING = 5.0
"""Seconds in which a restarted agent names its seats again; others are forgotten then."""

_FAREWELL = 2.0
"""Seconds in which agents hear that this proxy has nothing in flight any more."""

_OF_SEATS = frozenset({"seat", "gone", "grant", "drain", "revoke"})
"""Orders about one seat, which its own node's agent gives."""

_QUIET = 1.0
"""Seconds without a further seat after which an agent that has just been connected to has named all
that it has."""


class Agents:
    """The streams to all known agents. Use from the event loop's thread only."""

    def __init__(self, desk: Desk, settings: ProxySettings) -> None:
        self._desk = desk
        self._settings = settings
        self._links: dict[NodeName, AgentLink] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._addresses: dict[str, str] = {}
        self._revoked: frozenset[str] = frozenset()
        self._known = False

    def revoked(self, nodes: frozenset[str]) -> None:
        """These nodes are, and no others: nothing is said to them, or believed of them."""
        self._revoked = nodes
        for node in nodes:
            self._unlink(node)
        for node, address in self._addresses.items():
            self._link(node, address)

    def set(self, node: str, address: str) -> None:
        """The node's agent is at this address (`host:port`)."""
        self._addresses[node] = address
        self._link(node, address)

    def _link(self, node: str, address: str) -> None:
        name = NodeName(node)
        if node in self._revoked:
            return
        old = self._links.get(name)
        if old is not None and old.address == address:
            return
        if old is not None:
            self._stop(old)
        link = self._links[name] = AgentLink(name, address, self._desk, self._settings)
        self._desk.links[name] = link
        link.start()

    def remove(self, node: str) -> None:
        """The node has left the cluster."""
        self._addresses.pop(node, None)
        self._unlink(node)

    def _unlink(self, node: str) -> None:
        link = self._links.pop(NodeName(node), None)
        if link is None:
            return
        self._stop(link)
        self._desk.links.pop(link.node, None)
        self._desk.apply(self._desk.admission.forget_node(link.node, self._desk.now))

    def on_node(self, kind: str, item: Mapping[str, Any]) -> None:
        """An event of the GPUNode watch."""
        name = str(item["metadata"]["name"])
        address = agent_address(item)
        if kind == "DELETED":
            self.remove(name)
        elif address:
            self.set(name, address)

    def not_ready(self) -> str | None:
        """A sentence if there are agents and none is connected; at first also while one that is may
        not have named all its seats: their models would be unknown here."""
        links = self._links.values()
        if links and not any(link.connected for link in links):
            return f"none of the {len(links)} agents is connected"
        naming = 0 if self._known else sum(link.naming for link in links)
        if naming:
            return f"{naming} of the {len(links)} agents are naming their seats"
        self._known = bool(links)
        return None

    async def stop(self) -> None:
        """Give all leases back and end all streams."""
        self._desk.apply(self._desk.admission.resign())
        links = list(self._links.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await asyncio.gather(*(link.finished() for link in links))
        for link in self._links.values():
            self._stop(link)
        self._links.clear()
        self._addresses.clear()
        await asyncio.gather(*self._stopping)

    def _stop(self, link: AgentLink) -> None:
        # At once, so that a new link to the same node is not taken for the old one's end.
        link.end()
        task = asyncio.ensure_future(link.ended())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


class AgentLink:
    """The stream to one agent. Satisfies `proxy.desk.Link`."""

    def __init__(self, node: NodeName, address: str, desk: Desk, settings: ProxySettings) -> None:
        self.node = node
        self.address = address
        self.connected = False
        self._untried, self._named_at = True, 0.0
        self._named: set[PodUid] = set()
        self._desk = desk
        self._settings = settings
        self._dirty: dict[PodUid, None] = {}
        self._patient: dict[PodUid, None] = {}
        self._drained: dict[PodUid, int] = {}
        self._wake = asyncio.Event()
        self._finishing = False
        self._later: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def naming(self) -> bool:
        """Whether it may have seats that it hasn't named; not while it doesn't answer."""
        fresh = self._desk.now < self._named_at + _QUIET
        return self._untried or (self.connected and fresh)

    def start(self) -> None:
        """Connect, and keep connected."""
        self._task = asyncio.create_task(self._run(), name=f"agent {self.node}")

    def end(self) -> None:
        """End the stream: leases of this agent are over now, `ended` waits for the rest."""
        self._lost()
        if self._task is not None:
            self._task.cancel()

    async def finished(self) -> None:
        """Say what is still to be said, and wait until the agent has heard all of it."""
        self._finishing = True
        self._wake.set()
        if self.connected:
            await self.ended()

    async def ended(self) -> None:
        """Wait until the stream has ended."""
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _lost(self) -> bool:
        was, self.connected, self._untried = self.connected, False, False
        if was:
            self._desk.apply(self._desk.admission.disconnected(self.node, self._desk.now))
        return was

    def report(self, uid: PodUid, *, urgent: bool) -> None:
        """The seat's demand changed. What is not urgent is sent together, a little later."""
        if not self.connected:
            return
        if urgent or uid in self._dirty:
            self._dirty[uid] = None
            self._patient.pop(uid, None)
            self._wake.set()
            return
        self._patient[uid] = None
        if self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(self._settings.report_interval_s, self._flush)

    def drained(self, uid: PodUid, generation: int) -> None:
        """Nothing is in flight on this lease any more."""
        if self.connected:
            self._drained[uid] = generation
            self._wake.set()

    def _flush(self) -> None:
        self._later = None
        self._dirty.update(self._patient)
        self._patient.clear()
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        down_since, told = loop.time(), False
        while True:
            try:
                await self._session()
                reason = "the agent ended the stream"
            except (grpc.aio.AioRpcError, TimeoutError, OSError) as error:
                reason = _reason(error)
            finally:
                was = self._lost()
            if self._finishing:
                return
            if was or not told:
                log.warning("agent %s at %s: %s; trying again", self.node, self.address, reason)
                told = True
            down_since = loop.time() if was else down_since
            patient = loop.time() - down_since > _PATIENT_AFTER
            await asyncio.sleep(_PATIENT if patient else _QUICK)

    async def _listening(self) -> None:
        """Wait until somebody listens at the agent's address. Raises OSError, TimeoutError."""

        async def look() -> None:
            try:
                _, writer = await asyncio.open_connection(*host_port(self.address))
            except (ValueError, OverflowError) as error:  # as the node has published it
                raise OSError(f"{self.address[:100]!r} is no address: {error}") from error
            writer.close()

        async with asyncio.timeout(_CONNECT_LIMIT):
            await retry(look, quietly, on=OSError, pauses=_LISTENS)

    async def _session(self) -> None:
        await self._listening()
        async with self._channel() as channel:
            async with asyncio.timeout(_CONNECT_LIMIT):
                await channel.channel_ready()
                call = rpc.Stub(channel, agent_pb2.DESCRIPTOR, "NodeAgent").Serve()
                hello = agent_pb2.Hello(proxy=PROXY_NAME, version=PROTOCOL)
                await call.write(agent_pb2.ProxyReport(hello=hello))
            self._begin()
            writer = asyncio.create_task(self._write(call))
            naming = asyncio.get_running_loop().call_later(_NAMING, self._forget)
            try:
                while (order := await call.read()) is not grpc.aio.EOF:
                    self._obey(order)
            finally:
                naming.cancel()
                writer.cancel()
                call.cancel()

    def _begin(self) -> None:
        log.info("agent %s at %s: connected", self.node, self.address)
        self._dirty.clear()
        self._patient.clear()
        self._drained.clear()
        self.connected, self._untried, self._named_at = True, False, self._desk.now
        self._named.clear()
        self._desk.apply(self._desk.admission.connected(self.node))

    def _forget(self) -> None:
        self._desk.apply(self._desk.admission.forget_unconfirmed(self.node, self._desk.now))

    def _note_named(self, uid: PodUid) -> None:
        """News of a seat that was named is no further seat: a busy node always has some."""
        if self.naming and uid not in self._named:
            self._named.add(uid)
            self._named_at = self._desk.now

    def _obey(self, order: agent_pb2.AgentOrder) -> None:
        desk, now = self._desk, self._desk.now
        admission, kind = desk.admission, order.WhichOneof("kind")
        if kind in _OF_SEATS and (uid := getattr(order, kind).uid):
            owner = admission.owner(PodUid(uid))
            if owner not in (None, self.node):
                log.warning("agent %s speaks of pod %s, which is on %s", self.node, uid, owner)
                return
        match kind:
            case "seat":
                self._note_named(PodUid(order.seat.uid))
                desk.seat(seat_info(self.node, order.seat))
            case "gone":
                desk.seat_gone(PodUid(order.gone.uid))
            case "grant":
                uid, generation = _lease(order.grant)
                self._drained.pop(uid, None)
                desk.apply(admission.grant(uid, generation, now))
            case "drain":
                desk.apply(admission.drain(self.node, *_lease(order.drain), now))
            case "revoke":
                desk.apply(admission.revoke(*_lease(order.revoke), now))
            case "proxies":
                admission.replicas(self.node, order.proxies.connected)
                admission.takes_back(self.node, yes=order.proxies.takes_back)
            case _:
                log.warning("agent %s: an order of an unknown kind; is it newer?", self.node)

    async def _write(self, call: Any) -> None:
        # A failed write means a broken stream: the reader sees it too, and ends the session.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._drained or self._dirty:
                    report = self._next_drained() if self._drained else self._next_demand()
                    if report is not None:
                        await call.write(report)
                if self._finishing:
                    # The agent ends the stream once it has read all of it.
                    await call.done_writing()
                    return

    def _next_drained(self) -> agent_pb2.ProxyReport | None:
        """Said before any demand: a park waits for it. None if it is no longer true."""
        uid, generation = self._drained.popitem()
        if not self._desk.admission.is_drained(uid, generation):
            return None
        lease = agent_pb2.Drained(uid=uid, generation=generation)
        return agent_pb2.ProxyReport(drained=lease)

    def _next_demand(self) -> agent_pb2.ProxyReport | None:
        """None for a seat that is gone."""
        uid = next(iter(self._dirty))
        del self._dirty[uid]
        demand = self._desk.admission.demand(uid, self._desk.now)
        if demand is None:
            return None
        return agent_pb2.ProxyReport(
            demand=agent_pb2.Demand(
                uid=uid,
                in_flight=demand.in_flight,
                waiting=demand.waiting,
                oldest_wait_seconds=demand.oldest_wait,
                requests=demand.requests,
                traceparent=demand.trace,
                idle=[
                    agent_pb2.Lease(uid=idle, generation=generation)
                    for idle, generation in self._desk.admission.given_back(self.node)
                ],
            )
        )

    def _channel(self) -> Any:
        settings = self._settings
        believed = credentials(settings.tls_dir, "proxy", shared=settings.shared_agent_keys)
        more = [
            *options(self.node, settings.agent_ping_s),
            ("grpc.use_local_subchannel_pool", 1),
            *_RECONNECT,
            ("grpc.http2.max_pings_without_data", 0),
        ]
        return grpc.aio.secure_channel(self.address, believed, options=more)


def seat_info(node: NodeName, seat: agent_pb2.Seat) -> SeatInfo:
    """A seat as the agent describes it, as the proxy's decisions need it."""
    try:
        state = SeatState(seat.state)
    except ValueError:
        log.warning("agent %s: seat %s is %r, which is unknown here", node, seat.name, seat.state)
        state = SeatState.WAITING
    if state is SeatState.PARKED:
        # Agents call a seat parked in every tier, and tell the tier beside it.
        state = next((RESTING[tier] for tier in RESTING if tier.value == seat.tier), state)
    return SeatInfo(
        uid=PodUid(seat.uid),
        node=node,
        name=seat.name,
        group=seat.group,
        pod=f"{seat.namespace}/{seat.pod}",
        model=seat.model,
        state=state,
        address=seat.address,
        reason=seat.reason,
        wakes=seat.wakes,
        last_wake_ms=seat.last_wake_ms,
        namespace=seat.namespace,
        tier=seat.tier,
        size=seat.held_bytes if seat.tier in ("", Tier.RAM) else seat.saved_bytes,
        wake=seat.wake_seconds,
        measured=seat.wake_measured,
        awaited=seat.waiting > 0,
        weight=seat.weight,
        predecessor=PodUid(seat.predecessor),
    )


def _lease(lease: agent_pb2.Lease) -> tuple[PodUid, int]:
    return PodUid(lease.uid), lease.generation


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or "no connection within its deadline"
