"""For whom a state may come from another node: a seat that is here and waits for just that one."""

from __future__ import annotations

import asyncio
import sys
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from kybernate.core.seat.seats import AT_GATE, OCCUPYING
from kybernate.errors import RefusedError, RetryableError
from kybernate.types import ArtifactId, PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.checkpoint.delivery.inbox import Inbox
    from kybernate.types import PodRef
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat


_LATEST_S = 3600.0
"""What was sent before its move was called off arrives no later than that (s)."""
_MOST, _MOST_OF_ONE = 4096, 16
"""Successors, and pods for each of them, of whose moves it is remembered that they were called off.
Any node may tell of some: what it tells must cost the others nothing."""
_LOOKS = 4
"""Successors looked at for each that comes: more than one, so that fewer and fewer are over."""


class Adopter(Protocol):
    """Who lets a seat continue from a state."""

    def awaits(self, seat: Seat, uid: PodUid) -> str:
        """Why the seat doesn't wait for the state of this pod, as a sentence; empty if it does."""
        ...

    async def adopt(self, seat: Seat, artifact: ArtifactId, tier: Tier, *, of: PodRef) -> None:
        """The seat continues from this state of that pod, which its journal says when this returns.
        Raises RefusedError if it never will, RetryableError, DeadlineError, OSError."""
        ...


class Awaited:
    """Whether states may come, and how much. Lives on the loop.

    A move that was called off begins again with `meet`: until then nothing more of its pod is
    expected, also what was sent before and arrives late."""

    def __init__(
        self, node: Node, inbox: Inbox, adopter: Adopter, unsealed: Callable[[], int]
    ) -> None:
        """`unsealed`: bytes of NVMe that states of this node take beside what is sealed there."""
        self._node = node
        self._inbox = inbox
        self._adopter = adopter
        self._unsealed = unsealed
        self._off: dict[PodUid, dict[PodUid, float]] = {}
        self._from: dict[PodUid, tuple[PodUid, str]] = {}

    def comes_from(self, uid: PodUid, successor: PodUid, node: str) -> None:
        """The agent of this node has begun to hand the pod's state over."""
        seat = self._node.seats.get(successor)
        if seat is not None and not self._adopter.awaits(seat, uid):
            self._from[successor] = uid, node

    def began(self, uid: PodUid, successor: PodUid) -> str:
        """The node whose agent did, as far as this agent has seen; empty if none."""
        of, node = self._from.get(successor, (uid, ""))
        return node if of == uid else ""

    def called_off(self, uid: PodUid, successor: PodUid) -> None:
        """The pod `uid` continues where it is."""
        now, off = self._node.world.now(), self._off.pop(successor, {})
        off.pop(uid, None)
        off[uid] = now
        for oldest in list(off)[:-_MOST_OF_ONE]:
            del off[oldest]
        self._off[successor] = off
        self._forget_the_oldest(now)

    def _forget_the_oldest(self, now: float) -> None:
        """A successor that never was here ends nowhere that would be heard of."""
        for one in list(islice(self._off, _LOOKS)):
            off = self._off[one]
            here, late = one in self._node.seats, max(off.values()) <= now - _LATEST_S
            if not (here or late or len(self._off) > _MOST):
                break
            del self._off[one]
            if here:
                self._off[one] = off  # it is looked at again after all others

    def gone(self, successor: PodUid) -> None:
        """Its pod is: nothing comes for it anyway."""
        self._off.pop(successor, None)
        self._from.pop(successor, None)

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
        if seat.ending.asked or seat.ending.terminating or seat.ending.deleted:
            raise RefusedError(f"pod {seat.identity.pod} is ending; name another successor")
        if seat.state in OCCUPYING or seat.history.started_once:
            raise RefusedError(f"pod {seat.identity.pod} runs already; name one that waits")
        if pod.uid in self._off.get(successor, ()):
            raise RefusedError(f"the move of pod {pod} was called off; begin it again")
        why = self._adopter.awaits(seat, pod.uid)
        if why:
            raise RefusedError(why)
        if not seat.contact.connected or seat.state not in AT_GATE:
            raise RetryableError(f"the container of pod {seat.identity.pod} isn't ready yet")
        return seat

    async def meet(self, pod: PodRef, successor: PodUid, size: int) -> None:
        """The successor waits, and about so many bytes have room. Raises RefusedError,
        RetryableError, DeadlineError, OSError."""
        off = self._off.get(successor, {})
        off.pop(pod.uid, None)
        if not off:
            self._off.pop(successor, None)
        self.expect(pod, successor)
        if not size:
            return
        room = self._inbox.room
        room.limit = await self.room()
        left = await asyncio.to_thread(room.left, successor)
        if size > left:
            raise RefusedError(
                f"NVMe of node {self._node.settings.node} has room for {max(0, left)} bytes, and "
                f"the state of {pod} takes about {size}; delete artifacts there (kybernate "
                "artifacts rm), give its agent more (nvme_bytes), or name a successor elsewhere"
            )

    async def room(self) -> int:
        """Bytes that NVMe may still hold. Raises KybernateError, OSError."""
        offloading = self._node.world.offloading
        if offloading is None or Tier.NVME not in offloading.limits:
            return sys.maxsize
        listed = await offloading.vault.ls(Tier.NVME)
        sealed = sum(one.size for one in listed)
        return offloading.limits[Tier.NVME] - sealed - self._unsealed()
