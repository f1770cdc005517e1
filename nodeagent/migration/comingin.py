"""States on their way in from other nodes: streams of parts, until all is there and is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.checkpoint.raw.stream import Written
from kybernate.errors import DeadlineError, RetryableError
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.types import PodUid
from nodeagent.migration.protocol import part_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from kybernate.checkpoint.delivery.inbox import Inbox
    from kybernate.checkpoint.delivery.incoming import Incoming
    from kybernate.checkpoint.raw.stream import Part
    from kybernate.gen import peers_pb2 as pb
    from kybernate.types import PodRef
    from nodeagent.artifacts.awaited import Awaited
    from nodeagent.seat.node import Node


class ComingIn:
    """What comes for each successor, of one pod at a time. Lives on the loop."""

    def __init__(self, node: Node, inbox: Inbox, awaited: Awaited) -> None:
        self._node = node
        self._inbox = inbox
        self._awaited = awaited
        self._came_of: dict[PodUid, PodUid] = {}
        self._busy: KeyedLocks[PodUid, asyncio.Lock] = KeyedLocks(asyncio.Lock)

    def one(self, successor: PodUid) -> asyncio.Lock:
        """Held by whoever touches what comes for this successor."""
        return self._busy[successor]

    def has_begun(self, successor: PodUid) -> bool:
        """Whether this agent has seen parts come for it."""
        return successor in self._came_of

    async def clear(self) -> None:
        """What lies here for pods that are gone goes; what the last agent has left for others takes
        its room. Raises OSError."""
        for successor in map(PodUid, await asyncio.to_thread(self._inbox.waiting)):
            async with self.one(successor):
                if successor not in self._node.seats:
                    await asyncio.to_thread(self._inbox.drop, successor)
                elif not self.has_begun(successor):
                    await asyncio.to_thread(self._inbox.found, successor)

    async def call_off(self, uid: PodUid, successor: PodUid) -> None:
        """Nothing more comes of this pod for the successor. What comes of another pod stays."""
        if self._came_of.get(successor, uid) == uid:
            await self.forget(successor)

    async def forget(self, successor: PodUid) -> None:
        """Nobody needs what came for it. Raises OSError."""
        self._came_of.pop(successor, None)
        async with self.one(successor):
            await asyncio.to_thread(self._inbox.drop, successor)

    def held(self, successor: PodUid) -> Awaitable[tuple[str, dict[str, int]]]:
        """The state of before that is here, and how far each of its files goes."""
        return asyncio.to_thread(self._inbox.held, successor)

    async def receive(
        self, pod: PodRef, successor: PodUid, staged: str, parts: AsyncIterator[pb.Parts]
    ) -> int:
        """Parts of the state, or of one of before; how many bytes came."""
        self._awaited.expect(pod, successor)
        self._inbox.room.limit = await self._awaited.room()
        settings = self._node.settings
        limits = settings.dump_deadline_s, settings.transfer_deadline_s
        async with self.one(successor):
            # Its pod may have gone since, and nobody would remove what came after that.
            self._awaited.expect(pod, successor)
            self._came_of[successor] = pod.uid
            try:
                incoming = await asyncio.to_thread(self._inbox.receiving, successor, staged)
                try:
                    return await _take_all(incoming, parts, *limits)
                finally:
                    await asyncio.to_thread(incoming.close)
            except OSError as error:
                raise RetryableError(f"it can't be written down here: {error}") from error


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
