"""Seats that go on from states which were handed over to them, and which took over what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import WITHOUT_TREE
from kybernate.errors import CorruptError, RefusedError, RetryableError
from kybernate.types import ArtifactId, PodUid, SeatState, Tier
from nodeagent.seat.parts.saved import Begins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.checkpoint.delivery.inbox import Inbox
    from kybernate.ports import Registry
    from kybernate.types import PodRef
    from nodeagent.artifacts.awaited import Adopter, Awaited
    from nodeagent.artifacts.holds import Custody
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

TAKEN = "taken/"
"""Journal keys of states that were taken over here, so that a repeated call hears the same."""
_MOST_TAKEN = 256
_DEADLINE = 10.0


class TakenOver:
    """All of them. `call_for` has a seat woken. Lives on the loop."""

    def __init__(
        self,
        node: Node,
        registry: Registry,
        call_for: Callable[[PodUid, str], object],
        inbox: Inbox,
        adopter: Adopter,
        custody: Custody,
    ) -> None:
        self._node = node
        self._registry = registry
        self._call_for = call_for
        self._inbox = inbox
        self._adopter = adopter
        self._custody = custody
        self._taken: dict[str, str] = {}

    def load(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """After a restart."""
        for key, record in records.items():
            if key.startswith(TAKEN):
                self._taken[key.removeprefix(TAKEN)] = str(record["successor"])

    async def take_over(
        self, pod: PodRef, successor: PodUid, artifact: ArtifactId, awaited: Awaited
    ) -> None:
        """The successor goes on from it, and that is on the disk when this returns; also if it did
        so before. Raises RefusedError if it never will, KybernateError, OSError."""
        if not await self._has_taken(pod, successor, artifact):
            await self._adopt(awaited.expect(pod, successor), pod, artifact)
            self._call_for(successor, f"moved here, as {artifact}")
        await self._noted(successor, artifact)

    async def hand_on(
        self, pod: PodRef, successor: PodUid, artifact: ArtifactId, awaited: Awaited
    ) -> None:
        """The same, of a pod of this node. Raises CorruptError if the state is nowhere any more."""
        if not await self._has_taken(pod, successor, artifact):
            self._see_ended(pod)
            tier = await self._tier_of(artifact)
            await self._adopter.adopt(awaited.expect(pod, successor), artifact, tier, of=pod)
            self._call_for(successor, f"moved here from pod {pod}, as {artifact}")
        await self._noted(successor, artifact)

    def _see_ended(self, pod: PodRef) -> None:
        """Its seat, if it has one, has no tree: that was journalled once the last process ended."""
        seat = self._node.seats.get(pod.uid)
        if seat is not None and seat.state not in {*WITHOUT_TREE, SeatState.WAITING}:
            raise RetryableError(f"the processes of pod {pod} are not ended: it is {seat.state}")

    async def _tier_of(self, artifact: ArtifactId) -> Tier:
        below = self._node.world.below
        for tier in (Tier.NVME, Tier.OBJECT):
            if below is not None and tier in below.limits:
                listed = await below.vault.ls(tier)
                if any(one.id == artifact for one in listed):
                    return tier
        raise CorruptError(f"{artifact} is in none of this node's tiers any more")

    async def _adopt(self, seat: Seat, pod: PodRef, artifact: ArtifactId) -> None:
        if self._node.world.registry is None:
            if pod.uid in self._node.seats:
                raise RefusedError(f"pod {pod} is on this node, and no other can say that it ended")
            # Where nobody else can tell, the word of the agent that ended it is the proof.
            await self._registry.stop(pod.namespace, pod.uid, "moved to this node", _DEADLINE)
        async with self._custody.lock(artifact):
            here = await asyncio.to_thread(self._inbox.is_here, artifact)
            if not here:
                self._custody.lacks(artifact)
            tier = Tier.NVME if here else Tier.OBJECT
            await self._adopter.adopt(seat, artifact, tier, of=pod)

    async def _has_taken(self, pod: PodRef, successor: PodUid, artifact: str) -> bool:
        """Also where the seat found the state by itself, once the registry knew of it."""
        if self._taken.get(artifact) == successor:
            return True
        seat = self._node.seats.get(successor)
        if seat is None or seat.saved.begins is not Begins.ADOPTED:
            return False
        line = await self._registry.line(pod.namespace, pod.uid, _DEADLINE)
        return (line.successor, line.artifact) == (successor, artifact)

    async def _noted(self, successor: PodUid, artifact: str) -> None:
        if self._taken.get(artifact) == successor:
            return
        record = {"successor": successor}
        await self._node.world.journal.put(TAKEN + artifact, record, synced=True)
        self._taken[artifact] = successor
        for old in list(self._taken)[:-_MOST_TAKEN]:
            del self._taken[old]
            self._node.world.journal.delete(TAKEN + old)
