"""Artifacts between NVMe and the object store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from kybernate.core.artifacts.match import machine_of
from kybernate.core.seat.seats import SeatEvent
from kybernate.errors import (
    CorruptError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.deadline import CALL_S
from kybernate.types import ArtifactId, SeatState, Tier
from nodeagent import metrics
from nodeagent.offload.retries import pause
from nodeagent.seat.steps import Broken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kybernate.core.artifacts.into import Into
    from kybernate.types import PodUid
    from nodeagent.offload.ahead import Ahead, Coming
    from nodeagent.offload.ground import Ground
    from nodeagent.offload.lazies import Lazies
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_TOLD_EVERY = 5.0
"""Seconds between two words of how far a copy is: each is a write of the GPUNode."""
_DROPPED_AGAIN = 30.0
"""Seconds after which a copy on NVMe that could not be dropped is tried again."""
BELIEVED_AFTER = 30.0
"""Seconds for which a store has to say that a state is not there, or is not whole, before that is
believed and the state given up."""


class Transfers:
    """Copies, fetches and drops artifacts as the tier manager says."""

    def __init__(self, ground: Ground, lazies: Lazies, ahead: Ahead) -> None:
        self._ground = ground
        self._lazies = lazies
        self._ahead = ahead
        self._coming: dict[PodUid, tuple[Path, asyncio.Task[None]]] = {}

    def begin_pack(self, seat: Seat, why: str) -> None:
        """A verified copy goes into the object store; the seat stays as it is."""
        seat.saved.sinks(Tier.OBJECT)
        self._ground.work(seat, self._pack(seat, why))

    async def _pack(self, seat: Seat, why: str) -> None:
        log.info("%s: its artifact is copied to the object store: %s", seat, why)
        try:
            deadline, began = (
                self._ground.node.settings.transfer_deadline_s,
                self._ground.world.now(),
            )
            await self._ground.offloading.vault.pack(
                ArtifactId(seat.saved.artifact), Tier.OBJECT, deadline, self._progress(seat)
            )
            metrics.observe_step("pack", {"all": self._ground.world.now() - began}, seat.saved.size)
            seat.saved.packed(whole=True)
            await self._ground.node.save(seat, synced=True)
            metrics.TIER_STEPS.labels("pack", "done").inc()
        except (KybernateError, OSError) as error:
            seat.saved.packed(whole=False)
            self._transfer_failed(seat, "pack", error)
        except asyncio.CancelledError:
            self._transferred(seat)
            raise
        self._transferred(seat)

    def begin_drop(self, seat: Seat, why: str) -> None:
        """From PARKED_NVME to PARKED_OBJECT, or once more there: the verified copy there is all
        that stays."""
        written: Awaitable[None] | None = None
        if seat.state is SeatState.PARKED_NVME:
            written = self._ground.node.transition(seat, SeatEvent.UPLOADED, why, synced=True)
        seat.saved.sinks(Tier.OBJECT)  # who is wake-requested meanwhile doesn't wait for it
        self._ground.work(seat, self._drop(seat, written))

    async def _drop(self, seat: Seat, written: Awaitable[None] | None) -> None:
        try:
            if written is not None:
                await written
            await self._drop_here(seat)
        except (KybernateError, OSError) as error:
            metrics.failed("drop")
            metrics.TIER_STEPS.labels("drop", "failed").inc()
            seat.backoff.settle(self._ground.world.now() + _DROPPED_AGAIN)
            why = f"its copy on NVMe stays for now: {error}; trying again"
            self._ground.node.complain(seat, "TransferFailed", why)
        except asyncio.CancelledError:
            self._transferred(seat)
            raise
        self._transferred(seat)

    async def _drop_here(self, seat: Seat) -> None:
        """Remove what of a seat that is parked in the object store is still on NVMe."""
        self.stop(seat)
        if not seat.saved.borrowed:
            await self._ground.offloading.vault.drop(ArtifactId(seat.saved.artifact), Tier.NVME)
        # From here on nothing is restored from its folder, of which half may be removed.
        seat.saved.dropped_here()
        seat.saved.moved(self._ground.world.now())
        self._ground.node.save(seat)  # else the next agent drops it once more
        self._ground.life.aside(self._lazies.abandon(seat))

    def begin_fetch(self, seat: Seat, why: str) -> None:
        """From PARKED_OBJECT: its images come back to NVMe, unless its copy there never left."""
        seat.saved.sinks(Tier.NVME)
        self._ground.work(seat, self._fetch(seat, why))

    async def _fetch(self, seat: Seat, why: str) -> None:
        log.info("%s: its artifact is fetched: %s", seat, why)
        try:
            if Tier.NVME not in seat.saved.copies:
                if (into := await self._into(seat)) is None:
                    return
                await self._fetch_or_begin(seat, into)
            seat.saved.moved(self._ground.world.now())
            self._ground.node.transition(seat, SeatEvent.FETCHED, why)
        except (NotFoundError, CorruptError, RefusedError) as error:
            seat.saved.sank()
            raise Broken(f"its artifact can't be used: {error}") from error
        except (KybernateError, OSError) as error:
            self._transfer_failed(seat, "fetch", error)
        if seat.uid in self._coming:
            seat.saved.begun()
            self._ground.kick()
        else:
            self._transferred(seat)

    async def _fetch_or_begin(self, seat: Seat, into: Into) -> None:
        """Who is wanted is restored while its memory comes; a tree that ran before that is in would
        do so before it is known to be what was saved."""
        images, coming = await self.begin_bring(seat, into)
        if coming.done() or not seat.comes_back or self._lazies.pays(seat):
            await to_its_end(coming)
            metrics.TIER_STEPS.labels("fetch", "done").inc()
            return
        self._coming[seat.uid] = images, coming
        coming.add_done_callback(lambda _: self._came(seat, coming))

    def _came(self, seat: Seat, coming: asyncio.Task[None]) -> None:
        """It has come, or never will, before anybody took it: then it is fetched again."""
        if self._coming.get(seat.uid, (None, None))[1] is coming:
            del self._coming[seat.uid]
            seat.saved.sank()
            self._ground.node.save(seat)

    def take(self, seat: Seat) -> tuple[Path, asyncio.Task[None]] | None:
        """Its images that are on their way, if some are: whoever takes them sees to their end."""
        return self._coming.pop(seat.uid, None)

    def stop(self, seat: Seat) -> None:
        """Nobody waits for its images any more."""
        if (found := self._coming.pop(seat.uid, None)) is not None:
            found[1].cancel()

    async def _into(self, seat: Seat) -> Into | None:
        """None if its container has ended, and then it is seen to its end."""
        try:
            return await self._ground.offloading.into(seat)
        except NotFoundError as error:
            self._ground.is_gone(seat, error)
            return None

    async def bring(self, seat: Seat, into: Into) -> None:
        """Its images into a folder of its own, and what they need: the place where that is written
        may be away when they are restored. Raises like `Vault.begin` and `Vault.fetch`."""
        self.stop(seat)
        images, ahead = await self._begin_in(seat, into)
        await self._bring(seat, into, images, ahead)

    async def begin_bring(self, seat: Seat, into: Into) -> tuple[Path, asyncio.Task[None]]:
        """As `bring`, but returns once a restore may begin from that folder: its tree may run when
        the task has ended well. Who is given it cancels it, or sees it to its end."""
        self.stop(seat)
        images, ahead = await self._begin_in(seat, into)
        loop, may_begin = asyncio.get_running_loop(), ahead.may_begin if ahead else asyncio.Event()

        def laid_out() -> None:
            with contextlib.suppress(RuntimeError):  # the agent has ended
                loop.call_soon_threadsafe(may_begin.set)

        coming = asyncio.create_task(self._bring(seat, into, images, ahead, laid_out))

        def ended(task: asyncio.Task[None]) -> None:
            may_begin.set()
            if not task.cancelled():
                task.exception()  # or asyncio would tell of one that nobody waits for any more

        coming.add_done_callback(ended)
        try:
            await may_begin.wait()
        except asyncio.CancelledError:
            coming.cancel()
            raise
        return images, coming

    async def _begin_in(self, seat: Seat, into: Into) -> tuple[Path, Coming | None]:
        """An empty folder, or one with what has been fetched ahead, as far as that is."""
        vault, ahead = self._ground.offloading.vault, self._ahead.take(seat)
        if ahead is None or ahead.folder is None:
            return await vault.begin(seat.uid), None
        try:
            await vault.admit(ahead.artifact, into, CALL_S)
        except BaseException as error:
            ahead.cancel()
            if isinstance(error, (NotFoundError, CorruptError)):
                self._see_lacking(seat, error)
            raise
        return ahead.folder, ahead

    async def _bring(
        self,
        seat: Seat,
        into: Into,
        images: Path,
        ahead: Coming | None,
        laid_out: Callable[[], None] | None = None,
    ) -> None:
        settings, artifact = self._ground.node.settings, ArtifactId(seat.saved.artifact)
        fetch = self._ground.offloading.vault.fetch
        given = settings.transfer_deadline_s, into, self._progress(seat), laid_out
        try:
            if ahead is not None and ahead.coming is not None:
                manifest = await ahead.coming
            else:
                began = self._ground.world.now()
                manifest = await fetch(artifact, images, *given)
                seat.history.came(Tier.OBJECT, self._ground.world.now() - began)
        except (NotFoundError, CorruptError) as error:
            self._see_lacking(seat, error)
            raise
        seat.backoff.fetched()
        seat.saved.fetched(str(images), machine_of(manifest.facts))

    def _progress(self, seat: Seat) -> Callable[[int], None]:
        """What a copy of its artifact tells of bytes done, from any thread."""
        loop, node = asyncio.get_running_loop(), self._ground.node
        told = node.world.now()
        seat.saved.counted(0)
        node.changed(seat)

        def counted(done: int) -> None:
            nonlocal told
            if seat.saved.copied is None:
                return  # it is over
            seat.saved.counted(done)
            if (now := node.world.now()) >= told + _TOLD_EVERY:
                told = now
                node.changed(seat)

        def progress(done: int) -> None:
            with contextlib.suppress(RuntimeError):  # the agent has ended
                loop.call_soon_threadsafe(counted, done)

        return progress

    def _see_lacking(self, seat: Seat, error: KybernateError) -> None:
        """Raise RetryableError, unless it has been so for a while: of what was put, or put again, a
        store may show the state of before."""
        if seat.backoff.lacks(self._ground.world.now()) < BELIEVED_AFTER:
            raise RetryableError(f"{error}; the store is asked again") from error

    def _transferred(self, seat: Seat) -> None:
        seat.saved.sank()
        self._ground.kick()

    def _transfer_failed(self, seat: Seat, step: str, error: Exception) -> None:
        metrics.failed(step)
        metrics.TIER_STEPS.labels(step, "failed").inc()
        until = self._ground.world.now() + pause(error, 0)
        seat.backoff.settle(until, asleep=seat.demand.called)
        self._ground.node.complain(seat, "TransferFailed", f"{error}; trying again")


async def to_its_end(coming: asyncio.Task[None]) -> None:
    """Await what nobody else does: it is cancelled with its caller. Raises as it does."""
    try:
        await asyncio.shield(coming)
    except asyncio.CancelledError:
        coming.cancel()
        raise
