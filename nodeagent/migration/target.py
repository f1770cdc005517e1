"""This node as the one to which states go: answers to each call of other nodes' agents, or of this
one for moves within the node.

A state is taken for a seat that is here, of the sender's namespace, and that waits for just the
pod whose state it is, as its manifest says, too; and no more of it than NVMe has room for. It
becomes an artifact of this node's when it is verified, and the seat's when the sender says that the
pod's processes are ended: not before, so that at most one goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.core.artifacts.holds import TransferHold
from kybernate.core.migration.plan import see_own
from kybernate.errors import CorruptError, NotFoundError, RefusedError, RetryableError
from kybernate.types import ArtifactId, PodUid, Tier
from nodeagent.artifacts.awaited import Awaited
from nodeagent.artifacts.reports import Kind, Report
from nodeagent.artifacts.takenover import TakenOver
from nodeagent.migration.comingin import ComingIn
from nodeagent.operations.seenthrough import seen_through

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.checkpoint.delivery.inbox import Inbox
    from kybernate.types import PodRef
    from nodeagent.app.loop import Loop
    from nodeagent.artifacts.awaited import Adopter
    from nodeagent.seat.below import Below
    from nodeagent.seat.record import Seat

_DEADLINE = 10.0


class Receiver:
    """`awaited`: for whom something may come; `coming`: what is on its way in. Lives on the loop.
    Implements `node.Observer`."""

    def __init__(self, loop: Loop, inbox: Inbox, adopter: Adopter) -> None:
        self._loop = loop
        self._node = loop.node
        self._inbox = inbox
        self.awaited = Awaited(loop.node, inbox, adopter)
        self.coming = ComingIn(loop.node, inbox, self.awaited)
        self._custody = loop.custody
        self._taken = TakenOver(
            loop.node, loop.registry, loop.call_for, inbox, adopter, self._custody
        )

    def resume(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """After a restart: who took over what."""
        self._taken.load(records)

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`: nobody needs any more what came for it."""
        self._loop.life.aside(self.coming.forget(seat.uid))
        self._custody.abandon(seat.uid)

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        if artifact := self._custody.taken_by(seat):
            self._tell(Kind.COPIED, artifact)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """See `node.Observer`."""

    async def deliver(
        self, pod: PodRef, successor: PodUid, artifact: str, signed: bytes
    ) -> tuple[str, ...]:
        """All has been sent: keep it, or say what is lacking."""
        return await seen_through(self._deliver(pod, successor, artifact, signed))

    async def _deliver(
        self, pod: PodRef, successor: PodUid, artifact: str, signed: bytes
    ) -> tuple[str, ...]:
        async with self.coming.one(successor), self._custody.lock(artifact):
            # Its pod may have gone while somebody else was at work.
            self.awaited.expect(pod, successor)
            lacking = await self._accept(pod, successor, artifact, signed)
        # Not one to go on from before the sender says so: the pod may yet go on over there.
        if lacking:
            self._custody.lacks(artifact)
        else:
            self._tell(Kind.COPYING, artifact)
            # The last agent over there may have died, and the next one begun the move anew.
            self._custody.call_off(pod.uid, successor, but=artifact)
        return lacking

    async def _accept(
        self, pod: PodRef, successor: PodUid, artifact: str, signed: bytes
    ) -> tuple[str, ...]:
        before = self._custody.of(artifact).transfer
        size = self._inbox.room.of(successor) or (before.size if before else 0)
        # Till it is accepted its bytes are counted as those that come.
        coming = TransferHold(artifact, pod.uid, successor)
        self._custody.hand(coming)
        try:
            lacking = await asyncio.to_thread(self._inbox.accept, pod, successor, artifact, signed)
        except OSError as error:
            raise RetryableError(f"it can't be kept here: {error}") from error
        except (RefusedError, CorruptError):
            if before is None:
                self._custody.withdraw(artifact)
            raise
        if lacking:
            self._custody.withdraw(artifact)
        else:
            self._custody.hand(replace(coming, size=size))
        return lacking

    def _tell(self, kind: Kind, artifact: str) -> None:
        """The registry, where there is one, that this node has a copy."""
        if self._node.world.registry is not None:
            self._loop.reports.put(Report(kind, artifact=artifact, tier=Tier.NVME.value))

    async def take_over(self, pod: PodRef, successor: PodUid, artifact: ArtifactId) -> str:
        """The pod's processes are ended: go on. How the successor is, as a sentence."""
        return await seen_through(self._take_over(pod, successor, artifact))

    async def _take_over(self, pod: PodRef, successor: PodUid, artifact: ArtifactId) -> str:
        async with self.coming.one(successor):
            await self._taken.take_over(pod, successor, artifact, self.awaited)
            self._custody.call_off(pod.uid, successor)
            # The sender keeps its copy until this is on the disk; nobody else waits for it.
            await asyncio.to_thread(self._inbox.sync, artifact)
        seat_now = self._node.seats.get(successor)
        return f"it is {seat_now.state}" if seat_now else "it went on here, and its pod is gone"

    async def hold(self, pod: PodRef, successor: PodUid, artifact: ArtifactId) -> None:
        """A state that was sealed on this node is the successor's from now on, to go on from once
        the pod's processes are ended. Raises KybernateError, OSError."""
        async with self.coming.one(successor), self._custody.lock(artifact):
            self.awaited.expect(pod, successor)
            manifest = await self._below().vault.manifest(artifact, _DEADLINE)
            see_own(manifest, pod)
            self._custody.hand(
                TransferHold(artifact, pod.uid, successor, size=manifest.stored, home=True)
            )
        self._custody.call_off(pod.uid, successor, but=artifact)

    async def hand_on(self, pod: PodRef, successor: PodUid, artifact: ArtifactId) -> None:
        """As `take_over`, of a pod of this node, whose agent is this one and ended it. Raises
        KybernateError, OSError."""
        await seen_through(self._hand_on(pod, successor, artifact))

    async def _hand_on(self, pod: PodRef, successor: PodUid, artifact: ArtifactId) -> None:
        async with self.coming.one(successor):
            await self._taken.hand_on(pod, successor, artifact, self.awaited)
            self._custody.call_off(pod.uid, successor)

    def _below(self) -> Below:
        below = self._node.world.below
        if below is None:
            raise RefusedError("this node's agent has no CRIU (criu), so it has no states")
        return below

    async def call_off(self, pod: PodRef, successor: PodUid) -> None:
        """Nothing comes of it: the pod goes on over there. What comes of another pod stays."""
        await seen_through(self._call_off(pod, successor))

    async def _call_off(self, pod: PodRef, successor: PodUid) -> None:
        await self.coming.call_off(pod.uid, successor)
        self._custody.call_off(pod.uid, successor)

    async def is_whole(self, artifact: ArtifactId) -> bool:
        """Whether NVMe has it as it was signed: no process has read it since it came, perhaps.
        Raises DeadlineError, OSError."""
        try:
            await asyncio.to_thread(self._inbox.see_whole, artifact)
        except (NotFoundError, CorruptError, RefusedError):
            return False
        return True
