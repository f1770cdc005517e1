"""Seats whose workloads continue in other pods, as far as the rest of the agent must know of it.

going      the next dump goes to the successor
handed     the workload may continue elsewhere: whoever calls for it, it does not wake
elsewhere  it does, for good
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.errors import KybernateError, NotFoundError, RefusedError
from nodeagent.seat.steps import Reverted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from kybernate.ports import Handover, Peers, Phases
    from kybernate.types import ArtifactId, PodUid


class Departure:
    """What becomes of the next dump of a seat that goes to another node. `send` sends what is
    written into a folder until the event is set; `keep` returns once the other node keeps what was
    sealed. `problem`: why the seat stayed. `left`: the state that its container has ended with."""

    def __init__(
        self,
        send: Callable[[Path, asyncio.Event], Awaitable[None]],
        keep: Callable[[ArtifactId], Awaitable[None]],
    ) -> None:
        self._send, self._keep = send, keep
        self.problem = self.left = ""

    def ended(self, artifact: str) -> None:
        """Its container has, and left this state."""
        self.left = artifact

    async def follow(self, images: Path, dumping: Awaitable[Phases]) -> Phases:
        """The dump, which is sent meanwhile. Raises as the dump does."""
        dumped = asyncio.Event()
        sending = asyncio.ensure_future(self._send(images, dumped))
        try:
            phases = await dumping
            dumped.set()
            await sending
        except BaseException as error:
            self.problem = str(error) or type(error).__name__
            raise
        finally:
            sending.cancel()
        return phases

    async def deliver(self, artifact: ArtifactId) -> None:
        """Its state is sealed: the other node has it when this returns. Raises Reverted."""
        try:
            await self._keep(artifact)
        except (KybernateError, OSError) as error:
            self.problem = str(error)
            raise Reverted(f"it could not be moved: {error}") from error


class Departures:
    """All of this node's, by their pods' UIDs. Lives on the loop."""

    def __init__(self) -> None:
        self.under_way: dict[PodUid, Departure] = {}
        self._handed: set[PodUid] = set()
        self._elsewhere: dict[PodUid, str] = {}
        self._successors: dict[PodUid, str] = {}

    def resume(self, handed: Iterable[PodUid]) -> None:
        """After a restart: these may continue elsewhere."""
        self._handed = set(handed)

    def hand(self, uid: PodUid) -> None:
        """From here on its successor may run."""
        self._handed.add(uid)

    def stay(self, uid: PodUid) -> None:
        """It continues here."""
        self.under_way.pop(uid, None)
        self._handed.discard(uid)

    def ended(self, uid: PodUid, artifact: str) -> None:
        """Its container has, and left this state, which is its newest."""
        if (departure := self.under_way.get(uid)) is not None:
            departure.ended(artifact)

    def leave(self, uid: PodUid, where: str, successor: str = "") -> None:
        """It never continues here: `where` it does, or why nowhere, as a sentence. `successor`: the
        name of the pod that continues."""
        self._elsewhere[uid], self._successors[uid] = where, successor

    def forget(self, uid: PodUid) -> None:
        """Its seat is no more."""
        self._elsewhere.pop(uid, None)
        self._successors.pop(uid, None)
        self._handed.discard(uid)

    def went_to(self, uid: PodUid, successor: str) -> bool:
        """Whether it continues in the pod of this name: to move it there is done."""
        return bool(successor) and self._successors.get(uid) == successor

    def where(self, uid: PodUid) -> str:
        """What `leave` was told; empty if it may wake here again."""
        return self._elsewhere.get(uid, "")

    def sleeps(self, uid: PodUid) -> bool:
        """Whether nothing may wake it here, now or ever."""
        return uid in self._elsewhere or uid in self._handed


async def see_there(peers: Peers, to: Handover, deadline: float) -> None:
    """Raise RefusedError if the successor's pod is gone: nobody will ever answer for it."""
    gone = f"pod {to.successor} is gone from node {to.node}"
    try:
        found, _ = await peers.find(to.successor.namespace, to.successor.name, deadline)
    except (RefusedError, NotFoundError) as error:
        raise RefusedError(f"{gone}: {error}") from error
    if found.uid != to.successor.uid:
        raise RefusedError(f"{gone}: another of its name is there")


def where(to: Handover) -> str:
    """Who continues, for people."""
    return f"pod {to.successor} on node {to.node} continues with its state"
