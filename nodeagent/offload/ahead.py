"""Fetches ahead: the state of a pod's predecessor comes here from the pod's bind on.

Until its container stands a pod can't claim what it continues from, and nothing of that is used
before it has. But a fetch takes longer than the start of a container, and both go together:

    the pod is bound        its predecessor has stopped, and nobody else has the claim
    brought                 into the folder that the pod's seat will have, verified as for a restore
    taken                   the seat has claimed that very state: its fetch is this one
    dropped                 the pod has another state, none, or is gone; or nobody takes it for long

Nothing of it is journalled: an agent that starts clears such folders away, and begins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Protocol

from kybernate.core.artifacts.into import Into
from kybernate.core.seat.seats import AT_GATE
from kybernate.dataclass import dataclass
from kybernate.errors import ConflictError, KybernateError, RefusedError
from kybernate.lib.deadline import CALL_S
from kybernate.lib.retry import OUTSIDE, Pauses, quietly, retry
from kybernate.types import ArtifactId, SeatState, Tier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.types import PodRef, PodUid
    from nodeagent.offload.ground import Ground
    from nodeagent.offload.lazies import Lazies
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_AGAIN = Pauses(0.1, 1.0)
"""Between two looks whether the predecessor has stopped."""
_AT_ONCE = 2
"""Fetches of this kind: a wake, which somebody waits for already, must find a thread."""


class Claimable(Protocol):
    """Who knows what a pod may claim."""

    async def claimable(self, pod: PodRef, uid: PodUid) -> ArtifactId:
        """The newest state of the stopped pod `uid`, if this pod may have it. Raises RefusedError
        if it never may; RetryableError, NotFoundError, DeadlineError, OSError if not now."""
        ...


@dataclass(slots=True, eq=False)
class Coming:
    """One fetch. `coming` is there once it has begun, `folder` is where it goes; `may_begin` is set
    once a restore may begin from there."""

    pod: PodRef
    uid: PodUid
    may_begin: asyncio.Event
    artifact: ArtifactId = ArtifactId("")
    size: int = 0
    folder: Path | None = None
    coming: asyncio.Task[Manifest] | None = None
    task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Nobody needs it any more."""
        for ahead in (self.task, self.coming):
            if ahead is not None:
                ahead.cancel()


class Ahead:
    """All of them. Implements `node.Observer`; lives on the loop. `free`: bytes of NVMe that nobody
    has or waits for, nor these fetches."""

    def __init__(
        self,
        ground: Ground,
        lazies: Lazies,
        claims: Claimable,
        free: Callable[[], int],
    ) -> None:
        self._ground = ground
        self._node = ground.node
        self._lazies = lazies
        self._claims = claims
        self._free = free
        self._all: dict[PodUid, Coming] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    # --- pods -----------------------------------------------------------------------------------

    def expect(self, pod: PodRef, uid: PodUid) -> None:
        """The pod is bound here, and is to continue in the place of pod `uid`. Idempotent."""
        offloading = self._node.world.offloading
        if offloading is None or Tier.OBJECT not in offloading.limits:
            return
        if pod.uid not in self._all and pod.uid not in self._node.seats:
            ahead = self._all[pod.uid] = Coming(pod, uid, asyncio.Event())
            ahead.task = asyncio.create_task(self._see_to(ahead, offloading))

    def leave(self, uid: PodUid) -> None:
        """The pod has ended, or is ending. Idempotent."""
        if (ahead := self._all.get(uid)) is not None:
            self._drop(ahead, "its pod ends")

    def knows(self, uid: PodUid) -> bool:
        """Whether something is brought for this pod, or is there."""
        return uid in self._all

    @property
    def taken(self) -> int:
        """Bytes of NVMe that are taken for pods whose seats don't count them yet."""
        return sum(ahead.size for ahead in self._all.values() if not self._counts(ahead))

    def _counts(self, ahead: Coming) -> bool:
        seat = self._node.seats.get(ahead.pod.uid)
        return seat is not None and seat.state not in AT_GATE

    def take(self, seat: Seat) -> Coming | None:
        """What is brought for the seat, if that is what it is parked on: the taker sees to its end.
        Else there is nothing any more."""
        ahead = self._all.pop(seat.uid, None)
        if ahead is None:
            return None
        failed = ahead.coming is None or (
            ahead.coming.done()
            and (ahead.coming.cancelled() or ahead.coming.exception() is not None)
        )
        if failed or ahead.artifact != seat.saved.artifact:
            ahead.cancel()
            return None
        if ahead.task is not None:
            ahead.task.cancel()  # its fetch is the taker's now
        return ahead

    # --- seats, see `node.Observer` -------------------------------------------------------------

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        ahead = self._all.get(seat.uid)
        if ahead is not None and not _waits(seat, ahead):
            self._drop(ahead, "its seat doesn't wait for it")

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self.leave(seat.uid)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Events change nothing here."""

    # --- one --------------------------------------------------------------------------------------

    async def _see_to(self, ahead: Coming, offloading: Offloading) -> None:
        wait = self._node.settings.restore_wait_s
        try:
            async with asyncio.timeout(wait):
                artifact = await retry(
                    lambda: self._claims.claimable(ahead.pod, ahead.uid),
                    quietly,
                    on=OUTSIDE,
                    but=(RefusedError, ConflictError),
                    pauses=_AGAIN,
                )
            async with self._turns:
                coming = await self._begin(ahead, artifact, offloading)
                await asyncio.wait({coming})
                await coming
            await asyncio.sleep(wait)
            why = "nobody has taken it"
        except (KybernateError, OSError, TimeoutError) as error:
            why = f"{error}" or "its predecessor has not stopped"
        except Exception as error:
            why = f"{error}"
            log.exception("what pod %s continues from is not fetched ahead", ahead.pod)
        if self._all.get(ahead.pod.uid) is ahead:
            self._drop(ahead, why)

    async def _begin(
        self, ahead: Coming, artifact: ArtifactId, offloading: Offloading
    ) -> asyncio.Task[Manifest]:
        """It comes. Raises RefusedError for what NVMe has already, or has no room for; and as
        `Vault.begin` and `Vault.manifest`."""
        vault, deadline = offloading.vault, self._node.settings.transfer_deadline_s
        manifest = await vault.manifest(artifact, CALL_S)
        here = {found.id for found in await vault.ls(Tier.NVME)}
        if artifact in here:
            raise RefusedError(f"{artifact} is on NVMe already")
        if manifest.total > (room := self._free()):
            raise RefusedError(f"{artifact} takes {manifest.total} bytes, NVMe has {room} free")
        ahead.artifact, ahead.size = artifact, manifest.total
        ahead.folder = await vault.begin(ahead.pod.uid)
        loop, may_begin = asyncio.get_running_loop(), ahead.may_begin

        def laid_out() -> None:
            with contextlib.suppress(RuntimeError):  # the agent has ended
                loop.call_soon_threadsafe(may_begin.set)

        # Of the predecessor's own state alone; whether the pod may have it is seen when it claims.
        own = Into(ahead.pod.namespace, ahead.uid)
        fetch = vault.fetch(artifact, ahead.folder, deadline, own, None, laid_out)
        ahead.coming = asyncio.create_task(fetch)

        def ended(task: asyncio.Task[Manifest]) -> None:
            may_begin.set()
            if not task.cancelled():
                task.exception()  # or asyncio would tell of one that nobody waits for any more

        ahead.coming.add_done_callback(ended)
        log.info("%s is fetched ahead for pod %s", artifact, ahead.pod)
        return ahead.coming

    def _drop(self, ahead: Coming, why: str) -> None:
        uid = ahead.pod.uid
        del self._all[uid]
        ahead.cancel()
        log.info("nothing is fetched ahead for pod %s: %s", ahead.pod, why)
        if (seat := self._node.seats.get(uid)) is not None:
            # One that got its state otherwise may use its folder already. One whose kyb-init waits
            # at the gate doesn't, but what an agent that died has fetched may be there. Before that
            # one has said so, its tree may run and read from there.
            waits = seat.state in AT_GATE and seat.contact.connected
            if ahead.folder is not None or waits:
                self._ground.life.aside(self._lazies.abandon(seat))
            return
        again = self._lazies.remove(uid, lambda: uid in self._all or uid in self._node.seats)
        self._ground.life.aside(again)


def _waits(seat: Seat, ahead: Coming) -> bool:
    """Whether the seat may still take it."""
    if seat.ending.asked or seat.state in AT_GATE:
        return seat.awaits_state and not seat.ending.asked
    return seat.state is SeatState.PARKED_OBJECT and seat.saved.artifact == ahead.artifact
