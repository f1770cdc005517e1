"""This node as the one to which states go: answers to each call of other nodes' agents, or of this
one for moves within the node.

A state is taken for a seat that is here, of the sender's namespace, and that waits for just the
pod whose state it is, as its manifest says, too; and no more of it than NVMe has room for. It
becomes an artifact of this node's when it is verified, and the seat's when the sender says that the
pod's processes are ended: not before, so that at most one continues.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kybernate.core.artifacts.holds import TransferHold
from kybernate.core.migration.plan import see_own
from kybernate.core.migration.protocol import Act, Event, State, found_target, step
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    KybernateError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.deadline import CALL_S
from kybernate.types import ArtifactId, PodRef, PodUid, Tier
from nodeagent.artifacts.awaited import Awaited
from nodeagent.artifacts.reports import Kind, Report
from nodeagent.migration.comingin import ComingIn
from nodeagent.migration.taken import Taken
from nodeagent.operations.seenthrough import seen_through

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Mapping

    from kybernate.checkpoint.delivery.inbox import Inbox
    from kybernate.core.artifacts.holds import Holds
    from nodeagent.artifacts.awaited import Adopter
    from nodeagent.migration.agent import Agent
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat

_MOST_NODES = 4096
"""Pods of which it is remembered where they run: for good, so that the registry is asked once."""
_MOST_CALLS = 16
"""Calls about one successor that are under way: each waits for those before it, whether or not its
caller still does."""

T = TypeVar("T")


class _Call(NamedTuple):
    """One of the source's. `here`: this agent is the source, too, and nothing travels."""

    pod: PodRef
    successor: PodUid
    artifact: str
    signed: bytes = b""
    here: bool = False


class Target:
    """`awaited`: for whom something may come; `coming`: what is on its way in. Lives on the loop.
    Implements `node.Observer`."""

    def __init__(self, agent: Agent, inbox: Inbox, adopter: Adopter) -> None:
        self._agent = agent
        self._node = agent.node
        self._inbox = inbox
        self.awaited = Awaited(agent.node, inbox, adopter, agent.offload.unsealed)
        self.coming = ComingIn(agent.node, inbox, self.awaited)
        self._custody = agent.custody
        self._taken = Taken(agent, inbox, adopter)
        self._nodes: dict[PodUid, str] = {}
        self._under_way: Counter[PodUid] = Counter()

    def resume(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """After a restart: who took over what."""
        self._taken.load(records)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`: nobody needs any more what came for it."""
        self.awaited.gone(seat.uid)
        self._agent.aside(self.coming.forget(seat.uid))
        self._custody.abandon(seat.uid)

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        if artifact := self._custody.taken_by(seat):
            self._tell(Kind.COPIED, artifact)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """See `node.Observer`."""

    # --- the source's calls ---------------------------------------------------------------------

    async def see_from(
        self, pod: PodRef, successor: PodUid, nodes: Collection[str], *, begins: bool
    ) -> None:
        """Raise RefusedError unless the agent of the pod's own node calls: that is where the
        registry has it; of a pod that it doesn't know, or without one, whose agent came first.
        Raises RetryableError, DeadlineError while nobody can tell. `nodes`: those in the caller's
        certificate, none if it showed none; `begins`: something may come by this call."""
        if not nodes:
            return
        own = await self._node_of(pod)
        came = self._custody.came_from(pod.uid, successor) or self.awaited.began(pod.uid, successor)
        if (own or came) and (own or came) not in nodes:
            raise RefusedError(
                f"the agent of node {own or came} transfers the state of pod {pod}, and that of "
                f"{', '.join(nodes)} has no say in it"
            )
        if begins:
            self.awaited.comes_from(pod.uid, successor, min(nodes))

    async def _node_of(self, pod: PodRef) -> str:
        """Where it runs, for good; empty if nobody has said so."""
        registry, here = self._node.world.registry, pod.uid in self._node.seats
        node = self._node.settings.node if here else self._nodes.get(pod.uid, "")
        if not node and registry is not None:
            node = (await registry.line(pod.namespace, pod.uid, CALL_S)).node
            if node:
                self._nodes[pod.uid] = node
                for old in list(self._nodes)[:-_MOST_NODES]:
                    del self._nodes[old]
        return node

    async def deliver(
        self, pod: PodRef, successor: PodUid, artifact: str, signed: bytes
    ) -> tuple[str, ...]:
        """All has been sent: keep it, or say what is lacking."""
        call = _Call(pod, successor, artifact, signed)
        return await self._through(successor, self._deliver(call))

    async def hold(self, pod: PodRef, successor: PodUid, artifact: ArtifactId) -> None:
        """As `deliver`, of an artifact that was sealed on this node. Raises KybernateError,
        OSError."""
        call = _Call(pod, successor, artifact, here=True)
        await self._through(successor, self._deliver(call))

    async def let_continue(
        self, pod: PodRef, successor: PodUid, artifact: ArtifactId, *, here: bool = False
    ) -> str:
        """The pod's processes are ended: continue. How the successor is, as a sentence. `here`: by
        this agent, of a pod of this node. Raises KybernateError, OSError."""
        call = _Call(pod, successor, artifact, here=here)
        return await self._through(successor, self._release(call))

    async def call_off(self, pod: PodRef, successor: PodUid) -> None:
        """Nothing comes of it: the pod continues over there. What comes of another pod stays."""
        await self._through(successor, self._cancel(_Call(pod, successor, "")))

    async def _through(self, successor: PodUid, work: Coroutine[object, object, T]) -> T:
        """What it returns; it comes to its end though its caller gives up. Raises DeadlineError
        where too many are to do so already, and what it raises."""
        if self._under_way[successor] >= _MOST_CALLS:
            work.close()
            raise DeadlineError(
                f"{_MOST_CALLS} calls about pod {successor} are under way; ask again later"
            )
        self._under_way[successor] += 1
        return await seen_through(self._counted(successor, work))

    async def _counted(self, successor: PodUid, work: Coroutine[object, object, T]) -> T:
        try:
            return await work
        finally:
            self._under_way[successor] -= 1
            if not self._under_way[successor]:
                del self._under_way[successor]

    async def _deliver(self, call: _Call) -> tuple[str, ...]:
        lacking: tuple[str, ...] = ()
        async with self.coming.one(call.successor), self._custody.lock(call.artifact):
            # Its pod may have gone while somebody else was at work.
            self.awaited.expect(call.pod, call.successor)
            before = await self._seen_own(call)
            taken = step(self._state(call), Event.DELIVERY)
            for act in taken.acts:
                if act is Act.VERIFY:
                    lacking = await self._verify(call, before)
                    if lacking:
                        taken = step(taken.to, Event.LACKING)
                        break
                else:
                    await self._do(act, call)
            if lacking:
                for act in taken.acts:
                    await self._do(act, call, lacking=True)
        return lacking

    async def _seen_own(self, call: _Call) -> Holds:
        """What holds it. Raises RefusedError, CorruptError if it is not the pod's: then nothing has
        changed."""
        if not call.here:
            see = self._inbox.see_signed
            await asyncio.to_thread(see, call.pod, call.artifact, call.signed)
        before = self._custody.of(call.artifact)
        if before.transfer is not None and before.transfer.uid != call.pod.uid:
            raise RefusedError(f"{call.artifact} was transferred as another pod's state")
        return before

    async def _release(self, call: _Call) -> str:
        async with self.coming.one(call.successor):
            continues = await self._taken.has(call.pod, call.successor, call.artifact)
            for act in step(self._state(call, continues=continues), Event.RELEASE).acts:
                if act is Act.DROP_OLDER:
                    # This one, too, if the seat continues from another copy.
                    self._custody.call_off(call.pod.uid, call.successor)
                else:
                    await self._do(act, call)
        seat_now = self._node.seats.get(call.successor)
        return f"it is {seat_now.state}" if seat_now else "it continued here, and its pod is gone"

    async def _cancel(self, call: _Call) -> None:
        self.awaited.called_off(call.pod.uid, call.successor)
        async with self.coming.one(call.successor):
            pass  # a delivery that had begun has ended, and no other one begins
        for act in step(self._state(call), Event.CANCELLED).acts:
            await self._do(act, call)

    def _state(self, call: _Call, *, continues: bool = False) -> State:
        hold = self._custody.of(call.artifact).transfer
        delivered = hold is not None and hold.successor == call.successor
        parts = self.coming.has_begun(call.successor)
        return found_target(parts=parts, delivered=delivered, continues=continues)

    # --- acts -----------------------------------------------------------------------------------

    async def _do(self, act: Act, call: _Call, *, lacking: bool = False) -> None:
        pod, successor, artifact = call.pod, call.successor, call.artifact
        match act:
            case Act.NOTE_ARRIVAL if not call.here:
                # Till it is verified its bytes are counted as those that come.
                before, source = self._custody.of(artifact).transfer, self._source(call)
                size = before.size if before else 0
                hold = TransferHold(artifact, pod.uid, successor, size=size, source=source)
                self._custody.hand(hold)
            case Act.FORGET_ARRIVAL:
                self._custody.withdraw(artifact)
            case Act.REPORT_COPY if not call.here:
                # Not one to continue from before the source says so.
                if lacking:
                    self._custody.lacks(artifact)
                else:
                    self._tell(Kind.COPYING, artifact)
            case Act.DROP_OLDER | Act.DROP_ARRIVAL:
                # The last agent over there may have died, and the next one begun again.
                self._custody.call_off(pod.uid, successor, but=artifact)
            case Act.ADOPT:
                seat = self.awaited.expect(pod, successor)
                await self._taken.adopt(seat, pod, artifact, here=call.here)
            case Act.NOTE_TAKEN:
                await self._taken.note(successor, artifact)
            case Act.SYNC if not call.here:
                # The source keeps its copy until this is on the disk; nobody else waits for it.
                await asyncio.to_thread(self._inbox.sync, artifact)
            case Act.DROP_PARTS:
                await self.coming.call_off(pod.uid, successor)
            case _:
                pass

    def _source(self, call: _Call) -> str:
        return self._nodes.get(call.pod.uid) or self.awaited.began(call.pod.uid, call.successor)

    async def _verify(self, call: _Call, before: Holds) -> tuple[str, ...]:
        """What is lacking. Raises RefusedError, CorruptError, RetryableError, DeadlineError."""
        coming = TransferHold(call.artifact, call.pod.uid, call.successor, home=call.here)
        if call.here:
            manifest = await self._offloading().vault.manifest(ArtifactId(call.artifact), CALL_S)
            see_own(manifest, call.pod)
            self._custody.hand(replace(coming, size=manifest.stored))
            return ()
        size = before.transfer.size if before.transfer else 0
        size = self._inbox.room.of(call.successor) or size
        accept = self._inbox.accept
        try:
            lacking = await asyncio.to_thread(
                accept, call.pod, call.successor, call.artifact, call.signed
            )
        except (KybernateError, OSError) as error:
            # Of what is not kept yet some may be here by now, unless it never will be.
            if before.transfer is not None or isinstance(error, (RefusedError, CorruptError)):
                self._custody.withdraw(call.artifact, before)
            if isinstance(error, OSError):
                raise RetryableError(f"it can't be kept here: {error}") from error
            raise
        if not lacking:
            self._custody.hand(replace(coming, size=size, source=self._source(call)))
        return lacking

    def _tell(self, kind: Kind, artifact: str) -> None:
        """The registry, where there is one, that this node has a copy."""
        if self._node.world.registry is not None:
            self._agent.reports.put(Report(kind, artifact=artifact, tier=Tier.NVME.value))

    def _offloading(self) -> Offloading:
        offloading = self._node.world.offloading
        if offloading is None:
            raise RefusedError("this node's agent has no CRIU (criu), so it has no states")
        return offloading
