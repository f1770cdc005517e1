"""This node as the one to which other nodes' agents send states: answers to each of their calls.

A state is taken for a seat that is here, of the sender's namespace, and that waits for just the
pod whose state it is, as its manifest says, too; and no more of it than NVMe has room for. It
becomes an artifact of this node's when it is verified, and the seat's when the sender says that the
pod's processes are ended: not before, so that at most one goes on.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from kybernate.checkpoint.stream import Written
from kybernate.core.seats import OCCUPYING
from kybernate.errors import (
    ConfigError,
    CorruptError,
    DeadlineError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.gen import peers_pb2 as pb
from kybernate.gen import peers_pb2_grpc
from kybernate.types import ArtifactId, PodUid, SeatState, Tier
from nodeagent.arrived import Arrival, Arrived
from nodeagent.parts import part_of, pod_of
from nodeagent.reports import Kind, Report
from nodeagent.seat import Begins
from nodeagent.seenthrough import seen_through

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping

    import grpc

    from kybernate.checkpoint.inbox import Inbox
    from kybernate.checkpoint.incoming import Incoming
    from kybernate.checkpoint.stream import Part
    from kybernate.types import PodRef
    from nodeagent.loop import Loop
    from nodeagent.seat import Seat

TAKEN = "taken/"
"""Journal keys of states that were taken over here, so that a repeated call hears the same."""
_MOST_TAKEN = 256
_DEADLINE = 10.0


class Adopter(Protocol):
    """Who lets a seat go on from a state."""

    def awaits(self, seat: Seat, uid: PodUid) -> str:
        """Why the seat doesn't wait for the state of this pod, as a sentence; empty if it does."""
        ...

    async def adopt(self, seat: Seat, artifact: ArtifactId, tier: Tier, *, of: PodRef) -> None:
        """The seat goes on from this state of that pod, which its journal says when this returns.
        Raises RefusedError if it never will, RetryableError, DeadlineError, OSError."""
        ...


class Receiver:
    """What came for each successor, and who took over what. Lives on the loop. Implements
    `node.Observer`."""

    def __init__(self, loop: Loop, inbox: Inbox, adopter: Adopter) -> None:
        self._loop = loop
        self._node = loop.node
        self._inbox = inbox
        self._adopter = adopter
        self._taken: dict[str, str] = {}
        self._arrived = Arrived(loop)
        self._came_of: dict[PodUid, PodUid] = {}
        self._accepting: set[str] = set()
        self._busy: weakref.WeakValueDictionary[PodUid, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    def resume(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """After a restart: who took over what, and what arrived."""
        self._arrived.load(records)
        for key, record in records.items():
            if key.startswith(TAKEN):
                self._taken[key.removeprefix(TAKEN)] = str(record["successor"])

    async def clear(self) -> None:
        """What lies here for pods that are gone."""
        for uid in await asyncio.to_thread(self._inbox.waiting):
            if PodUid(uid) not in self._node.seats:
                await asyncio.to_thread(self._inbox.drop, PodUid(uid))

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`: nobody needs any more what came for it."""
        self._loop.life.aside(self._forget(seat.uid))
        self._arrived.gone(seat.uid)

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._arrived.look(seat)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """See `node.Observer`."""

    def expect(self, pod: PodRef, successor: PodUid) -> Seat:
        """The successor, which is here and waits. Raises RefusedError, RetryableError."""
        seat = self._node.seats.get(successor)
        if seat is None:
            raise RetryableError(
                f"no seat of a pod with UID {successor} is on node {self._node.settings.node} yet"
            )
        if seat.identity.pod.namespace != pod.namespace:
            raise RefusedError(
                f"pod {seat.identity.pod} is of another namespace than {pod}; a successor is of "
                "the same"
            )
        if seat.ending or seat.doomed or seat.deleted:
            raise RefusedError(f"pod {seat.identity.pod} is ending; name another successor")
        if seat.state in OCCUPYING or seat.started_once:
            raise RefusedError(f"pod {seat.identity.pod} runs already; name one that waits")
        why = self._adopter.awaits(seat, pod.uid)
        if why:
            raise RefusedError(why)
        if not seat.connected or seat.state is not SeatState.WAITING:
            raise RetryableError(f"the container of pod {seat.identity.pod} isn't ready yet")
        return seat

    async def meet(self, pod: PodRef, successor: PodUid, size: int) -> None:
        """The successor waits, and about so many bytes have room. Raises RefusedError,
        RetryableError, DeadlineError, OSError."""
        self.expect(pod, successor)
        if not size:
            return
        room = self._inbox.room
        room.limit = await self._room()
        left = await asyncio.to_thread(room.left, successor)
        if size > left:
            raise RefusedError(
                f"NVMe of node {self._node.settings.node} has room for {max(0, left)} bytes, and "
                f"the state of {pod} takes about {size}; delete saved states there (kybernate "
                "artifacts rm), give its agent more (nvme_bytes), or name a successor elsewhere"
            )

    def bytes_in(self, tier: Tier) -> int:
        """How many bytes of the tier belong to no seat yet: what is on its way, and what came."""
        if tier is not Tier.NVME:
            return 0
        counted = {one.artifact for one in self._loop.dumps.kept.all()} | self._accepting
        return self._inbox.room.taken + self._arrived.bytes(but=counted)

    async def deliver(
        self, pod: PodRef, successor: PodUid, artifact: str, signed: bytes
    ) -> tuple[str, ...]:
        """All has been sent: keep it, or say what is lacking."""
        return await seen_through(self._deliver(pod, successor, artifact, signed))

    async def _deliver(
        self, pod: PodRef, successor: PodUid, artifact: str, signed: bytes
    ) -> tuple[str, ...]:
        async with self._one(successor), self._arrived.one(artifact):
            # Its pod may have gone while somebody else was at work.
            self.expect(pod, successor)
            lacking = await self._accept(pod, successor, artifact, signed)
        self._tell(Kind.DROPPED if lacking else Kind.COPIED, artifact)
        if not lacking:
            # The last agent over there may have died, and the next one begun the move anew.
            self._arrived.call_off(pod.uid, successor, but=artifact)
        return lacking

    async def _accept(
        self, pod: PodRef, successor: PodUid, artifact: str, signed: bytes
    ) -> tuple[str, ...]:
        new = artifact not in self._arrived
        lacking: tuple[str, ...] = ()
        size = self._inbox.room.of(successor) or self._arrived.size(artifact)
        self._arrived.put(Arrival(artifact, pod.uid, successor, size=size))
        self._accepting.add(artifact)
        try:
            lacking = await asyncio.to_thread(self._inbox.accept, pod, successor, artifact, signed)
        except OSError as error:
            raise RetryableError(f"it can't be kept here: {error}") from error
        except (RefusedError, CorruptError):
            if new:
                self._arrived.forget(artifact)
            raise
        finally:
            self._accepting.discard(artifact)
        if lacking:
            self._arrived.forget(artifact)
        return lacking

    def _tell(self, kind: Kind, artifact: str) -> None:
        """The registry, where there is one, whether this node has a copy."""
        if self._node.world.registry is not None:
            why = "what this node had of it was not whole" if kind is Kind.DROPPED else ""
            self._loop.reports.put(Report(kind, artifact=artifact, tier=Tier.NVME.value, why=why))

    async def take_over(self, pod: PodRef, successor: PodUid, artifact: ArtifactId) -> str:
        """The pod's processes are ended: go on. How the successor is, as a sentence."""
        return await seen_through(self._take_over(pod, successor, artifact))

    async def _take_over(self, pod: PodRef, successor: PodUid, artifact: ArtifactId) -> str:
        async with self._one(successor):
            if not await self._has_taken(pod, successor, artifact):
                await self._adopt(self.expect(pod, successor), pod, artifact)
                self._loop.call_for(successor, f"moved here, as {artifact}")
            if self._taken.get(artifact) != successor:
                await self._note(successor, artifact)
            self._arrived.forget(artifact)
            self._arrived.call_off(pod.uid, successor)
            # The sender keeps its copy until this is on the disk; nobody else waits for it.
            await asyncio.to_thread(self._inbox.sync, artifact)
        seat_now = self._node.seats.get(successor)
        return f"it is {seat_now.state}" if seat_now else "it went on here, and its pod is gone"

    async def _adopt(self, seat: Seat, pod: PodRef, artifact: ArtifactId) -> None:
        if self._node.world.registry is None:
            if pod.uid in self._node.seats:
                raise RefusedError(f"pod {pod} is on this node, and no other can say that it ended")
            # Where nobody else can tell, the word of the agent that ended it is the proof.
            await self._loop.registry.stop(pod.namespace, pod.uid, "moved to this node", _DEADLINE)
        async with self._arrived.one(artifact):
            here = await asyncio.to_thread(self._inbox.is_here, artifact)
            if not here:
                self._tell(Kind.DROPPED, artifact)
            tier = Tier.NVME if here else Tier.OBJECT
            await self._adopter.adopt(seat, artifact, tier, of=pod)

    async def is_whole(self, artifact: ArtifactId) -> bool:
        """Whether NVMe has it as it was signed: no process has read it since it came, perhaps.
        Raises DeadlineError, OSError."""
        try:
            await asyncio.to_thread(self._inbox.see_whole, artifact)
        except (NotFoundError, CorruptError, RefusedError):
            return False
        return True

    async def _has_taken(self, pod: PodRef, successor: PodUid, artifact: str) -> bool:
        """Also where the seat found the state by itself, once the registry knew of it."""
        if self._taken.get(artifact) == successor:
            return True
        seat = self._node.seats.get(successor)
        if seat is None or seat.begins is not Begins.ADOPTED:
            return False
        line = await self._loop.registry.line(pod.namespace, pod.uid, _DEADLINE)
        return (line.successor, line.artifact) == (successor, artifact)

    async def _note(self, successor: PodUid, artifact: str) -> None:
        record = {"successor": successor}
        await self._node.world.journal.put(TAKEN + artifact, record, synced=True)
        self._taken[artifact] = successor
        for old in list(self._taken)[:-_MOST_TAKEN]:
            del self._taken[old]
            self._node.world.journal.delete(TAKEN + old)

    async def call_off(self, pod: PodRef, successor: PodUid) -> None:
        """Nothing comes of it: the pod goes on over there. What comes of another pod stays."""
        await seen_through(self._call_off(pod, successor))

    async def _call_off(self, pod: PodRef, successor: PodUid) -> None:
        if self._came_of.get(successor, pod.uid) == pod.uid:
            await self._forget(successor)
        self._arrived.call_off(pod.uid, successor)

    async def _forget(self, successor: PodUid) -> None:
        self._came_of.pop(successor, None)
        async with self._one(successor):
            await asyncio.to_thread(self._inbox.drop, successor)

    async def receive(
        self, pod: PodRef, successor: PodUid, staged: str, parts: AsyncIterator[pb.Parts]
    ) -> int:
        """Parts of the state, or of one of before; how many bytes came."""
        self.expect(pod, successor)
        self._inbox.room.limit = await self._room()
        settings = self._node.settings
        limits = settings.dump_deadline_s, settings.transfer_deadline_s
        async with self._one(successor):
            # Its pod may have gone since, and nobody would remove what came after that.
            self.expect(pod, successor)
            self._came_of[successor] = pod.uid
            try:
                incoming = await asyncio.to_thread(self._inbox.receiving, successor, staged)
                try:
                    return await _take_all(incoming, parts, *limits)
                finally:
                    await asyncio.to_thread(incoming.close)
            except OSError as error:
                raise RetryableError(f"it can't be written down here: {error}") from error

    def held(self, successor: PodUid) -> Awaitable[tuple[str, dict[str, int]]]:
        """The state of before that is here, and how far each of its files goes."""
        return asyncio.to_thread(self._inbox.held, successor)

    async def _room(self) -> int:
        """Bytes that NVMe may still hold. Raises KybernateError, OSError."""
        below = self._node.world.below
        if below is None or Tier.NVME not in below.limits:
            return sys.maxsize
        listed = await below.vault.ls(Tier.NVME)
        return below.limits[Tier.NVME] - sum(one.size for one in listed)

    def _one(self, successor: PodUid) -> asyncio.Lock:
        lock = self._busy.get(successor)
        if lock is None:
            lock = self._busy[successor] = asyncio.Lock()
        return lock


async def _take_all(
    incoming: Incoming, parts: AsyncIterator[pb.Parts], idle: float, limit: float
) -> int:
    """One part is written while the next one arrives, and no more than that is in memory; `idle`
    and `limit`: seconds until the next part is there, and until all are."""
    now = asyncio.get_running_loop().time
    came, until, writing = 0, now() + limit, asyncio.ensure_future(asyncio.sleep(0))
    try:
        async with asyncio.timeout(idle) as alarm:
            async for message in parts:
                batch = [part_of(each) for each in message.parts]
                came += sum(len(part.data) for part in batch if isinstance(part, Written))
                await asyncio.shield(writing)
                writing = asyncio.ensure_future(asyncio.to_thread(_take, incoming, batch))
                alarm.reschedule(min(until, now() + idle))
            await asyncio.shield(writing)
    except TimeoutError as error:
        raise DeadlineError(
            f"no part of the state came for {idle:g} s, or not all of it in {limit:g} s; send it "
            "again"
        ) from error
    finally:
        # Nobody closes a file that a thread still writes to.
        await asyncio.gather(writing, return_exceptions=True)
    return came


def _take(incoming: Incoming, parts: list[Part]) -> None:
    for part in parts:
        incoming.take(part)


class PeersApi(peers_pb2_grpc.PeersServicer):
    """The calls, as they come."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def Expect(  # noqa: N802 - gRPC's name
        self, request: pb.Handover, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Expected:
        """Whether the successor is here and waits, and there is room."""
        try:
            successor = PodUid(request.successor_uid)
            await self._receiver.meet(pod_of(request), successor, request.bytes)
        except OSError as error:
            raise RetryableError(f"its node's NVMe can't be looked at: {error}") from error
        staged, files = await self._receiver.held(PodUid(request.successor_uid))
        held = [pb.Held(file=name, size=size) for name, size in files.items()]
        return pb.Expected(staged=staged, files=held)

    async def Receive(  # noqa: N802 - gRPC's name
        self,
        request_iterator: AsyncIterator[pb.Parts],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.Received:
        """Files of a state."""
        try:
            async with asyncio.timeout(_DEADLINE):
                first = await anext(aiter(request_iterator), None)
        except TimeoutError as error:
            raise DeadlineError("the opening of the stream did not come in time") from error
        if first is None or not first.HasField("opening"):
            raise ConfigError("opening", "must be the first message of the stream")
        of = first.opening.handover
        came = await self._receiver.receive(
            pod_of(of), PodUid(of.successor_uid), first.opening.staged, request_iterator
        )
        return pb.Received(bytes=came)

    async def Deliver(  # noqa: N802 - gRPC's name
        self, request: pb.Delivery, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.Delivered:
        """Keep what arrived."""
        successor = PodUid(request.handover.successor_uid)
        pod = pod_of(request.handover)
        self._receiver.expect(pod, successor)
        lacking = await self._receiver.deliver(pod, successor, request.artifact, request.manifest)
        return pb.Delivered(lacking=lacking)

    async def TakeOver(  # noqa: N802 - gRPC's name
        self, request: pb.Takeover, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.TakenOver:
        """Go on here."""
        pod, successor = pod_of(request.handover), PodUid(request.handover.successor_uid)
        artifact = ArtifactId(request.artifact)
        sentence = await self._receiver.take_over(pod, successor, artifact)
        return pb.TakenOver(sentence=sentence)

    async def CallOff(  # noqa: N802 - gRPC's name
        self, request: pb.Handover, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CalledOff:
        """Nothing comes of it."""
        await self._receiver.call_off(pod_of(request), PodUid(request.successor_uid))
        return pb.CalledOff()
