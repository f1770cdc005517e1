"""Seats that continue from states which were handed over to them, and which took over what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import AT_GATE, WITHOUT_TREE
from kybernate.errors import CorruptError, RefusedError, RetryableError
from kybernate.lib.deadline import CALL_S
from kybernate.types import ArtifactId, PodUid, Tier
from nodeagent.seat.parts.saved import Begins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.checkpoint.delivery.inbox import Inbox
    from kybernate.types import PodRef
    from nodeagent.artifacts.awaited import Adopter
    from nodeagent.migration.agent import Agent
    from nodeagent.seat.record import Seat

TAKEN = "taken/"
"""Journal keys of states that were taken over here, so that a repeated call hears the same."""
_MOST_TAKEN = 256


class Taken:
    """All of them. Lives on the loop."""

    def __init__(self, agent: Agent, inbox: Inbox, adopter: Adopter) -> None:
        self._agent = agent
        self._node = agent.node
        self._inbox = inbox
        self._adopter = adopter
        self._custody = agent.custody
        self._taken: dict[str, str] = {}

    def load(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """After a restart."""
        for key, record in records.items():
            if key.startswith(TAKEN):
                self._taken[key.removeprefix(TAKEN)] = str(record["successor"])

    async def adopt(self, seat: Seat, pod: PodRef, artifact: str, *, here: bool) -> None:
        """The seat continues from it, and is woken; `here`: the pod is of this node. Raises
        RefusedError if it never will, CorruptError if the artifact is nowhere any more,
        KybernateError, OSError."""
        if here:
            self._see_ended(pod)
            tier = await self._tier_of(ArtifactId(artifact))
            await self._adopter.adopt(seat, ArtifactId(artifact), tier, of=pod)
            self._agent.operators.request_wake(
                seat.uid, f"moved here from pod {pod}, as {artifact}"
            )
        else:
            await self._adopt(seat, pod, ArtifactId(artifact))
            self._agent.operators.request_wake(seat.uid, f"moved here, as {artifact}")

    def _see_ended(self, pod: PodRef) -> None:
        """Its seat, if it has one, has no tree: that was journalled once the last process ended."""
        seat = self._node.seats.get(pod.uid)
        if seat is not None and seat.state not in WITHOUT_TREE | AT_GATE:
            raise RetryableError(f"the processes of pod {pod} are not ended: it is {seat.state}")

    async def _tier_of(self, artifact: ArtifactId) -> Tier:
        offloading = self._node.world.offloading
        for tier in (Tier.NVME, Tier.OBJECT):
            if offloading is not None and tier in offloading.limits:
                listed = await offloading.vault.ls(tier)
                if any(one.id == artifact for one in listed):
                    return tier
        raise CorruptError(f"{artifact} is in none of this node's tiers any more")

    async def _adopt(self, seat: Seat, pod: PodRef, artifact: ArtifactId) -> None:
        if self._node.world.registry is None:
            if pod.uid in self._node.seats:
                raise RefusedError(f"pod {pod} is on this node, and no other can say that it ended")
            # Where nobody else can tell, the word of the agent that ended it is the proof.
            await self._agent.registry.stop(pod.namespace, pod.uid, "moved to this node", CALL_S)
        async with self._custody.lock(artifact):
            here = await asyncio.to_thread(self._inbox.is_here, artifact)
            if not here:
                self._custody.lacks(artifact)
            tier = Tier.NVME if here else Tier.OBJECT
            await self._adopter.adopt(seat, artifact, tier, of=pod)

    async def has(self, pod: PodRef, successor: PodUid, artifact: str) -> bool:
        """Whether the successor continues from it; also where it found it by itself, once the
        registry knew of it."""
        if self._taken.get(artifact) == successor:
            return True
        seat = self._node.seats.get(successor)
        if seat is None or seat.saved.begins is not Begins.ADOPTED:
            return False
        line = await self._agent.registry.line(pod.namespace, pod.uid, CALL_S)
        return line.successor == successor and line.artifact in ("", artifact)

    async def note(self, successor: PodUid, artifact: str) -> None:
        """On the disk when this returns. Raises OSError."""
        if self._taken.get(artifact) == successor:
            return
        record = {"successor": successor}
        await self._node.world.journal.put(TAKEN + artifact, record, synced=True)
        self._taken[artifact] = successor
        for old in list(self._taken)[:-_MOST_TAKEN]:
            del self._taken[old]
            self._node.world.journal.delete(TAKEN + old)
