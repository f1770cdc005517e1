"""A seat's way up: its images are found, its tree is recreated in its container.

RESTORING               the intent; half a tree may be there, and is ended before the next try
PARKED                  the tree is back, frozen, and TCP passes
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.core.artifacts.into import see_fit
from kybernate.core.artifacts.match import UNKNOWN, Target
from kybernate.core.seat.seats import SeatEvent
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    KybernateError,
    LockedError,
    NotFoundError,
    RefusedError,
    UnfitError,
)
from kybernate.lib.retry import retry
from kybernate.types import ArtifactId, Tier
from nodeagent import metrics
from nodeagent.artifacts.clones import cut_off, leave_gpus_alone, stays_stopped
from nodeagent.offload.ground import init_of
from nodeagent.offload.retries import is_unsure, pause, speaks_against, told, waits
from nodeagent.seat.parts.tree import Process
from nodeagent.seat.steps import Broken

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from kybernate.core.artifacts.into import Into
    from kybernate.ports import Phases
    from nodeagent.offload.gates import Gates
    from nodeagent.offload.ground import Ground
    from nodeagent.offload.lazies import Lazies
    from nodeagent.offload.transfers import Transfers
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_GLANCE = 1.0
_RESTORES = 3


class Restores:
    """Brings trees back to RAM."""

    def __init__(self, ground: Ground, gates: Gates, lazies: Lazies, transfers: Transfers) -> None:
        self._ground = ground
        self._gates = gates
        self._lazies = lazies
        self._transfers = transfers

    def begin(self, seat: Seat, why: str) -> None:
        """From PARKED_NVME: write the intent, then do it."""
        seat.saved.pages(seat.saved.artifact if self._lazies.pays(seat) else "")
        written = self._ground.node.transition(seat, SeatEvent.RESTORE, why, synced=True)
        self._ground.work(seat, self._restore(seat, written))

    async def _restore(self, seat: Seat, written: Awaitable[None]) -> None:
        began = self._ground.world.now()
        try:
            await written
            await cut_off(self._ground.offloading, seat)
            if self._ground.world.resizing is not None:
                await self._ground.world.resizing.take(seat)
            await self._ground.steps.open_devices(seat)
            images, coming = await self._images(seat)
            if seat.saved.paging:
                self._lazies.fillings.begin(seat)
            read = self._ground.world.now()
            if coming is None:
                phases = await self._recreate(seat, images)
            else:
                phases = await self._recreate_as_it_comes(seat, images, coming)
        except NotFoundError as error:
            self._ground.is_gone(seat, error)
            return
        except (CorruptError, RefusedError) as error:
            raise Broken(f"its artifact can't be used: {error}") from error
        except (KybernateError, OSError) as error:
            await self._restore_failed(seat, error)
            return
        restored = self._ground.world.now()
        await self.finish(seat)
        took = {"read": read - began, **phases, "restore": restored - read}
        seat.history.timed({**took, "all": self._ground.world.now() - began})
        if coming is None:
            self._lazies.learn(seat, phases)
            if not seat.saved.paging:
                seat.history.came(Tier.NVME, seat.history.phases["all"])
        metrics.observe_step("restore", seat.history.phases, seat.saved.size)

    async def _recreate(self, seat: Seat, images: Path, more: float = 0.0) -> Phases:
        """`more`: seconds for which its memory may be waited for."""
        deadline, stopped = self._ground.node.settings.dump_deadline_s, stays_stopped(seat)
        return await self._ground.offloading.dumper.restore(
            init_of(seat),
            seat.tree.handle,
            images,
            deadline + more,
            lazy=bool(seat.saved.paging),
            stopped=stopped,
        )

    async def _recreate_as_it_comes(
        self, seat: Seat, images: Path, coming: asyncio.Task[None]
    ) -> Phases:
        """The tree stands when this returns, and all that it was made of was verified. If that
        doesn't come, why it doesn't is raised, and not what CRIU made of that."""
        settings = self._ground.node.settings
        recreating = asyncio.create_task(self._recreate(seat, images, settings.transfer_deadline_s))
        try:
            await asyncio.wait({recreating, coming}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done() and recreating.exception() is not None:
                # What was said to be lost fails a restore before it is told here.
                await asyncio.wait({coming}, timeout=_GLANCE)
            if coming.done() or recreating.exception() is None:
                await self._see_come(coming)
                metrics.TIER_STEPS.labels("fetch", "done").inc()
            async with asyncio.timeout(settings.dump_deadline_s):
                return await recreating
        except TimeoutError as error:
            raise DeadlineError("its images are here, and it isn't recreated from them") from error
        finally:
            seat.saved.sank()
            for task in (recreating, coming):
                task.cancel()
            await asyncio.gather(recreating, coming, return_exceptions=True)

    async def _see_come(self, coming: Awaitable[None]) -> None:
        """Raises CorruptError, RefusedError if it can't be used, and what stands against it now."""
        try:
            await coming
        except (NotFoundError, CorruptError) as error:
            # Of a copy in a store that is away nobody can tell; then this says so.
            await self._ground.offloading.vault.ls(Tier.OBJECT)
            raise CorruptError(str(error)) from error

    async def _images(self, seat: Seat) -> tuple[Path, asyncio.Task[None] | None]:
        """And the fetch of what isn't there yet, of which the restore is to see the end."""
        if (coming := self._transfers.take(seat)) is not None:
            return coming
        if seat.saved.images:
            await self._see_fit(seat)
            return Path(seat.saved.images), None
        if Tier.NVME not in seat.saved.copies and Tier.OBJECT in seat.saved.copies:
            return await self._other_images(seat)
        return await self._own_images(seat)

    async def _own_images(self, seat: Seat) -> tuple[Path, asyncio.Task[None] | None]:
        """Of its copy on NVMe, or of another one if that can't be used."""
        vault, deadline = self._ground.offloading.vault, self._ground.node.settings.dump_deadline_s
        artifact, into = ArtifactId(seat.saved.artifact), await self._ground.offloading.into(seat)
        try:
            if seat.saved.paging:
                return await vault.lend(artifact, seat.uid, deadline, into), None
            return await vault.images(artifact, deadline, into), None
        except LockedError as error:
            if Tier.OBJECT not in seat.saved.copies:
                raise
            log.warning("%s: %s; its copy in the object store is tried", seat, error)
            try:
                return await self._other_images(seat)
            except (NotFoundError, CorruptError, RefusedError) as other:
                # What is here may be opened yet, whatever the other copy is.
                raise error from other
        except (NotFoundError, CorruptError, RefusedError) as error:
            if Tier.OBJECT not in seat.saved.copies:
                raise CorruptError(str(error)) from error
            log.warning("%s: %s; its copy in the object store is fetched", seat, error)
        return await self._other_images(seat)

    async def _see_fit(self, seat: Seat) -> None:
        """What was fetched may have lain here for long. Raises UnfitError."""
        into = await self._ground.offloading.into(seat)
        if seat.saved.needs and into.container is not None:
            saved = Target(UNKNOWN, UNKNOWN, **seat.saved.needs)
            see_fit(seat.saved.artifact, saved, into.container.target)
        elif not seat.saved.needs:
            await self._look_up_fit(seat, into)

    async def _look_up_fit(self, seat: Seat, into: Into) -> None:
        """An older release fetched it, and noted nothing. A store that is away keeps nobody from
        what is here."""
        try:
            async with asyncio.timeout(_GLANCE):
                await self._ground.offloading.vault.admit(
                    ArtifactId(seat.saved.artifact), into, _GLANCE
                )
        except UnfitError:
            raise
        except (KybernateError, OSError) as error:
            log.info("%s: what its artifact needs isn't looked up again: %s", seat, error)

    async def _other_images(self, seat: Seat) -> tuple[Path, asyncio.Task[None] | None]:
        """Of its copy in the object store. Raises CorruptError, RefusedError if that can't be used
        either."""
        into = await self._ground.offloading.into(seat)
        if seat.saved.paging:
            # It would run before all of its memory is known to be what was saved.
            await self._see_come(self._transfers.bring(seat, into))
            return Path(seat.saved.images), None
        images, coming = await self._transfers.begin_bring(seat, into)
        if coming.done():
            await self._see_come(coming)
        return images, coming

    async def _restore_failed(self, seat: Seat, error: Exception) -> None:
        metrics.failed("restore")
        metrics.TIER_STEPS.labels("restore", "failed").inc()
        seat.backoff.restore_failed(waits=waits(error), unsure=is_unsure(error))
        seat.backoff.held_against(speaks_against(error, seat.backoff.unsure_restores))
        if seat.backoff.failed_restores >= _RESTORES:
            raise Broken(f"it could not be recreated from its artifact: {error}") from error
        wait = pause(error, seat.backoff.waiting_restores)
        seat.backoff.settle(self._ground.world.now() + wait, asleep=True)
        self._ground.node.complain(seat, "RestoreFailed", told(error))
        await self.revert(seat, f"not restored: {error}")

    async def revert(self, seat: Seat, why: str) -> None:
        """Half of its tree may be there, and must never run."""
        self._lazies.fillings.stop(seat)
        if await self._ground.end(seat):
            seat.saved.pages("")
            self._ground.node.transition(seat, SeatEvent.RESTORE_REVERTED, why)
            self._ground.life.aside(self._lazies.abandon(seat))
            self._ground.kick()

    def _unwritten(self, seat: Seat, error: Exception) -> None:
        why = f"it waits, restored: the agent's journal can't be written: {error}; trying again"
        self._ground.node.complain(seat, "PutOff", why)

    async def finish(self, seat: Seat) -> None:
        """Its tree is back: name its processes again, see it stand, let TCP pass."""
        procs, init = self._ground.world.procs, init_of(seat)
        try:
            tree = procs.child_of(init)
            root = Process(tree, procs.start_time(tree))
            by_inner = {
                procs.pid_in_container(pid): pid
                for pid in self._ground.world.freezer.pids(seat.tree.handle)
            }
            pids = [by_inner[inner] for inner in seat.tree.inner]
            seat.tree.recreated(root, tuple(Process(pid, procs.start_time(pid)) for pid in pids))
        except NotFoundError as error:
            self._ground.is_gone(seat, error)
            return
        except KeyError as error:
            raise Broken(f"process {error} of it was not recreated") from error
        leave_gpus_alone(seat)
        if seat.saved.paging:
            self._lazies.begin(seat)
        await retry(lambda: self._ground.node.save(seat), partial(self._unwritten, seat), OSError)
        try:
            await self._ground.steps.settle(seat)
        except Broken as error:
            if self._ground.node.has_gpus(seat):
                raise
            # Of a GPU that was lost meanwhile NVML says nothing. The artifact is as it was.
            await self.revert(seat, f"not restored: {error}")
            return
        await self._gates.open(seat)
        seat.backoff.restored()
        seat.saved.moved(self._ground.world.now())
        self._ground.node.transition(
            seat, SeatEvent.RESTORED, "parked in RAM, restored from its artifact"
        )
        metrics.TIER_STEPS.labels("restore", "done").inc()
        self._ground.kick()
