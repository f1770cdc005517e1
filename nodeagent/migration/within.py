"""Handovers within this node: both seats are this agent's, so nothing travels.

What the other node keeps of a state that came is here a record alone (`arrived/`): from then on the
state is the successor's, whatever becomes of the pod that left it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from kybernate.ports import Handover, Peers
    from kybernate.types import ArtifactId, NodeName, PodRef
    from nodeagent.migration.target import Target


class Within:
    """Implements `ports.Peers`: by `receiver` for successors on `node`, which is this one; for all
    others by `beyond`. Lives on the loop."""

    def __init__(self, node: str, receiver: Target, beyond: Peers) -> None:
        self._node = node
        self._receiver = receiver
        self._beyond = beyond

    async def find(self, namespace: str, name: str, deadline: float) -> tuple[PodRef, NodeName]:
        """See `ports.Peers.find`."""
        return await self._beyond.find(namespace, name, deadline)

    async def expect(self, handover: Handover, deadline: float, *, size: int = 0) -> None:
        """See `ports.Peers.expect`."""
        if not self._is_here(handover):
            await self._beyond.expect(handover, deadline, size=size)
            return
        pod, successor = handover.pod, handover.successor.uid
        await _in_time(self._receiver.awaited.meet(pod, successor, size), deadline)

    async def stage(self, handover: Handover, artifact: ArtifactId, deadline: float) -> int:
        """See `ports.Peers.stage`: what is here is here."""
        if self._is_here(handover):
            return 0
        return await self._beyond.stage(handover, artifact, deadline)

    async def follow(
        self, handover: Handover, images: Path, dumped: asyncio.Event, deadline: float
    ) -> int:
        """See `ports.Peers.follow`."""
        if not self._is_here(handover):
            return await self._beyond.follow(handover, images, dumped, deadline)
        await dumped.wait()
        return 0

    async def deliver(self, handover: Handover, artifact: ArtifactId, deadline: float) -> None:
        """See `ports.Peers.deliver`."""
        if not self._is_here(handover):
            await self._beyond.deliver(handover, artifact, deadline)
            return
        pod, successor = handover.pod, handover.successor.uid
        await _in_time(self._receiver.hold(pod, successor, artifact), deadline)

    async def let_continue(self, handover: Handover, artifact: ArtifactId, deadline: float) -> None:
        """See `ports.Peers.let_continue`."""
        if not self._is_here(handover):
            await self._beyond.let_continue(handover, artifact, deadline)
            return
        pod, successor = handover.pod, handover.successor.uid
        await _in_time(self._receiver.let_continue(pod, successor, artifact, here=True), deadline)

    async def call_off(self, handover: Handover, deadline: float) -> None:
        """See `ports.Peers.call_off`."""
        if not self._is_here(handover):
            await self._beyond.call_off(handover, deadline)
            return
        pod, successor = handover.pod, handover.successor.uid
        await _in_time(self._receiver.call_off(pod, successor), deadline)

    def _is_here(self, handover: Handover) -> bool:
        return handover.node == self._node


async def _in_time(work: Awaitable[object], deadline: float) -> None:
    """Raises DeadlineError after so many seconds."""
    try:
        async with asyncio.timeout(deadline):
            await work
    except TimeoutError as error:
        raise DeadlineError(f"this node's own agent did not do it in {deadline:g} s") from error
