"""A seat's way between RAM and the tiers below: dump, seal, end; fetch, restore.

Each step is journalled before the next one relies on it, and each can be done again:

    DUMPING                 the intent; TCP is held back, the tree is written down, frozen
    DUMPING with `artifact` the saved state is sealed: from here on the tree may be ended
    PARKED_NVME             the tree is ended
    RESTORING               the intent; half a tree may be there, and is ended before the next try
    PARKED                  the tree is back, frozen, and TCP passes

A seat that is called for before its tree is ended stays in RAM: that is the shortest way back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.core.artifacts.into import see_fit
from kybernate.core.artifacts.match import UNKNOWN, Target
from kybernate.core.seat.seats import SeatEvent
from kybernate.errors import (
    CorruptError,
    DumpError,
    KybernateError,
    LockedError,
    NotFoundError,
    RefusedError,
    UnfitError,
)
from kybernate.lib.retry import AGAIN, retry
from kybernate.types import ArtifactId, Tier
from nodeagent import metrics
from nodeagent.artifacts.clones import cut_off, leave_gpus_alone, stays_stopped
from nodeagent.offload.retries import is_unsure, pause, speaks_against, told, waits
from nodeagent.offload.transfers import Transfers
from nodeagent.seat.parts.tree import Process
from nodeagent.seat.steps import Broken, Reverted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kybernate.core.artifacts.into import Into
    from kybernate.types import PodUid
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_CHECK_DEADLINE = 5.0
_LOOK_DEADLINE = 10.0
_GLANCE = 1.0
_RESTORES = 3


class Dumps(Transfers):
    """Carries out the tier manager's steps."""

    # --- down: dump, seal, end ------------------------------------------------------------------

    def begin_dump(self, seat: Seat, why: str) -> None:
        """From PARKED: write the intent, then do it."""
        self.work(seat, self._dump(seat, self.dumping(seat, why)))

    def dumping(self, seat: Seat, why: str) -> Awaitable[None]:
        """From PARKED to DUMPING; await it before anything is done."""
        seat.tree.named_inside(*self._named_inside(seat))
        # A state of before, which the tree was restored from, is not what it is now.
        # That it is to go is noted before the seat's record names it no more.
        if seat.saved.borrowed:
            self.succession.outgrown(seat, seat.saved.artifact)
        elif seat.saved.artifact:
            self.custody.void(seat.saved.artifact, "its workload has gone on since")
        seat.saved.dumping()
        return self._node.move(seat, SeatEvent.DUMP, why, synced=True)

    def _named_inside(self, seat: Seat) -> tuple[tuple[Process, ...], tuple[int, ...]]:
        """Its processes on the GPUs that are left, and what they are called in the container."""
        named = []
        for one in seat.tree.cuda:
            with contextlib.suppress(NotFoundError):
                named.append((one, self._world.procs.pid_in_container(one.pid)))
        return tuple(one for one, _ in named), tuple(inner for _, inner in named)

    async def _dump(self, seat: Seat, written: Awaitable[None]) -> None:
        began = self._world.now()
        # One that is called for goes all the same where nobody would get on else: it comes back.
        called = seat.demand.called or seat.uid in self.departures.going
        try:
            await written
            noted = self._world.now()
            phases = await self._write_down(seat, called=called)
        except NotFoundError as error:
            self.is_gone(seat, error)
            return
        except (Reverted, KybernateError, OSError) as error:
            await self.keep(seat, error)
            return
        sealed = self._world.now()
        await self.finish_end(seat)
        took = {"intent": noted - began, **phases, "end": self._world.now() - sealed}
        seat.history.timed({**took, "all": self._world.now() - began})
        metrics.observe_move("dump", seat.history.phases, seat.saved.size)

    async def _write_down(self, seat: Seat, *, called: bool) -> dict[str, float]:
        """Up to the sealed state. Raises what keeps it in RAM: also a call, if it had none."""

        async def settled() -> None:
            await self.see_looked(seat)
            await self._see_uncalled(seat, called=called)

        images, times = await self.write_down(seat, seat.uid, settled)
        began = self._world.now()
        await self._see_uncalled(seat, called=called)
        facts = await self.below.facts(seat)
        vault, deadline = self.below.vault, self._node.settings.dump_deadline_s
        artifact = await self.sealer.seal(vault, seat.uid, images, facts, deadline)
        self.custody.unnoted[seat.uid] = artifact
        times["seal"] = self._world.now() - began
        try:
            await self._see_uncalled(seat, called=called)
            if going := self.departures.going.get(seat.uid):
                await going.deliver(artifact)
            began = self._world.now()
            size = await self._size_of(artifact)
            await self._note_sealed(seat, artifact, size)
        except (KybernateError, OSError):
            await self._note_unsealed(seat)
            self.custody.void(artifact, "its seat stayed in RAM")
            self.custody.unnoted.pop(seat.uid, None)
            raise
        self.custody.unnoted.pop(seat.uid, None)
        times["note"] = self._world.now() - began
        return times

    async def _size_of(self, artifact: ArtifactId) -> int:
        """Raises Reverted if it is gone: that is not the container's end."""
        try:
            return (await self.below.vault.manifest(artifact, _LOOK_DEADLINE)).stored
        except NotFoundError as error:
            raise Reverted(f"its saved state is gone: {error}") from error

    async def write_down(
        self,
        seat: Seat,
        key: PodUid,
        settled: Callable[[], Awaitable[None]] | None = None,
        *,
        goes_on: bool = False,
    ) -> tuple[Path, dict[str, float]]:
        """The frozen tree's images, in the folder of `key`, and seconds by phase; TCP is held back
        then. `goes_on`: the tree will not be ended. Raises what keeps it as it is, and what
        `settled` does, once TCP is held back."""
        below, init = self.below, _init(seat)
        times, now = {}, self._world.now
        began = now()
        images, times["check"] = await self._made_ready(seat, key)
        if settled is not None:
            await settled()
        times["gate"], began = now() - began - times["check"], now()
        deadline = self._node.settings.dump_deadline_s
        dumping, going = (
            below.dumper.dump(init, seat.tree.handle, images, deadline, goes_on=goes_on),
            self.departures.going.get(key),
        )
        times |= await (going.follow(images, dumping) if going else dumping)
        times["dump"] = now() - began
        seat.saved.written(below.first(images))
        return images, times

    async def _made_ready(self, seat: Seat, key: PodUid) -> tuple[Path, float]:
        """An empty folder for its images, while TCP is held back and it is looked at: each of them
        mostly waits. And the seconds that the look took. Raises what any of them does, after the
        last has ended; Reverted if it can't be dumped."""
        began, below = self._world.now(), self.below

        async def looked() -> float:
            problems = await below.dumper.check(_init(seat), seat.tree.handle, _CHECK_DEADLINE)
            if problems:
                seat.saved.refused("; ".join(problems))
                raise Reverted(f"it can't be dumped: {seat.saved.undumpable}")
            return self._world.now() - began

        seconds, shut, images = await asyncio.gather(
            looked(), self.shut(seat), below.vault.begin(key), return_exceptions=True
        )
        if isinstance(seconds, BaseException):
            raise seconds
        if isinstance(shut, BaseException):
            raise shut
        if isinstance(images, BaseException):
            raise images
        return images, seconds

    async def _note_unsealed(self, seat: Seat) -> None:
        """A record that could not be written may be there all the same, and would have the tree
        ended after a restart: nothing goes on before another one has taken its place."""
        noted = bool(seat.saved.artifact)
        seat.saved.unsealed_yet()
        if noted:
            save = partial(self._node.save, seat, synced=True)
            await retry(save, self._complains(seat, "JournalStuck"), on=OSError)

    def _complains(self, seat: Seat, event: str) -> Callable[[Exception], None]:
        return lambda error: self._life.complain(seat, event, f"{error}; trying again")

    async def _note_sealed(self, seat: Seat, artifact: ArtifactId, size: int) -> None:
        seat.saved.sealed(artifact, size)
        await self._node.save(seat, synced=True)

    async def _see_uncalled(self, seat: Seat, *, called: bool) -> None:
        # What arrived before the gate was shut is told by the loop's next round.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if (seat.demand.called and not called) or seat.ending.asked:
            raise Reverted("it was called for")

    async def finish_end(self, seat: Seat) -> None:
        """Its state is sealed and journalled: end the tree, however long it takes."""
        if not await self.end(seat):
            return
        seat.tree.ran_out()
        seat.saved.offloaded()
        self._node.ram_freed_at = self._world.now()
        self._moved(seat)
        written = self._node.move(seat, SeatEvent.DUMPED, "parked on NVMe", synced=True)
        self._kick()
        with contextlib.suppress(OSError):
            await written  # else a restart ends the tree once more, which changes nothing
        metrics.TIER_MOVES.labels("dump", "done").inc()

    async def end(self, seat: Seat) -> bool:
        """End what there is of the tree, all or half of it; whether its container is left."""
        deadline = self._node.settings.confirm_deadline_s
        try:
            await retry(
                lambda: self.below.dumper.end(_init(seat), seat.tree.handle, deadline),
                self._complains(seat, "EndIncomplete"),
                on=KybernateError,
                but=NotFoundError,
            )
        except NotFoundError as error:
            self.is_gone(seat, error)
            return False
        return True

    async def stay(self, seat: Seat, why: str) -> bool:
        """Its tree was written down, and stands in RAM as before; whether there still is one.
        Raises Broken if it doesn't."""
        if not await self._stands(seat):
            return False
        self._node.move(seat, SeatEvent.SAVED, why)
        self._kick()
        return True

    async def _stands(self, seat: Seat) -> bool:
        if not await self._heal(seat):
            return False
        await self._steps.settle(seat)
        await self.open(seat)
        return True

    async def keep(self, seat: Seat, why: BaseException) -> None:
        """It stays in RAM: frozen, as it was. Raises Broken if it isn't."""
        if not await self._stands(seat):
            return
        await self._abandon(seat)
        called = seat.demand.called or seat.ending.asked
        pause = AGAIN.first if called else self._node.settings.dump_retry_s
        seat.backoff.settle(self._world.now() + pause)
        self._node.move(seat, SeatEvent.DUMP_REVERTED, f"parked in RAM: {why}")
        metrics.TIER_MOVES.labels("dump", "called" if called else "kept").inc()
        if not called:
            metrics.failed("dump")
            self._node.tell(seat, "Warning", "KeptInRam", f"it stays parked in RAM: {why}")
        self._kick()

    async def _heal(self, seat: Seat) -> bool:
        """Whether there still is a tree, which stands."""
        deadline = self._node.settings.dump_deadline_s
        try:
            await retry(
                lambda: self.below.dumper.keep(_init(seat), seat.tree.handle, deadline),
                self._complains(seat, "KeepIncomplete"),
                on=KybernateError,
                but=(NotFoundError, DumpError),
            )
        except NotFoundError as error:
            self.is_gone(seat, error)
            return False
        except DumpError as error:
            raise Broken(f"a dump that failed has left it unfit to run: {error}") from error
        return True

    # --- up: restore ----------------------------------------------------------------------------

    def begin_restore(self, seat: Seat, why: str) -> None:
        """From PARKED_NVME: write the intent, then do it."""
        seat.saved.pages(seat.saved.artifact if self.lazies.pays(seat) else "")
        written = self._node.move(seat, SeatEvent.RESTORE, why, synced=True)
        self.work(seat, self._restore(seat, written))

    async def _restore(self, seat: Seat, written: Awaitable[None]) -> None:
        began = self._world.now()
        try:
            await written
            await cut_off(self.below, seat)
            await self._steps.open_devices(seat)
            images = await self._images(seat)
            if seat.saved.paging:
                self.lazies.fillings.begin(seat)
            read = self._world.now()
            deadline, stopped = self._node.settings.dump_deadline_s, stays_stopped(seat)
            phases = await self.below.dumper.restore(
                _init(seat),
                seat.tree.handle,
                images,
                deadline,
                lazy=bool(seat.saved.paging),
                stopped=stopped,
            )
        except NotFoundError as error:
            self.is_gone(seat, error)
            return
        except (CorruptError, RefusedError) as error:
            raise Broken(f"its saved state can't be used: {error}") from error
        except (KybernateError, OSError) as error:
            await self._restore_failed(seat, error)
            return
        restored = self._world.now()
        await self.finish_restore(seat)
        took = {"read": read - began, **phases, "restore": restored - read}
        seat.history.timed({**took, "all": self._world.now() - began})
        self.lazies.learn(seat, phases)
        metrics.observe_move("restore", seat.history.phases, seat.saved.size)

    async def _images(self, seat: Seat) -> Path:
        if seat.saved.images:
            await self._see_fit(seat)
            return Path(seat.saved.images)
        vault, deadline = self.below.vault, self._node.settings.dump_deadline_s
        artifact, into = ArtifactId(seat.saved.artifact), await self.below.into(seat)
        try:
            if seat.saved.paging:
                return await vault.lend(artifact, seat.uid, deadline, into)
            return await vault.images(artifact, deadline, into)
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
        into = await self.below.into(seat)
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
                await self.below.vault.admit(ArtifactId(seat.saved.artifact), into, _GLANCE)
        except UnfitError:
            raise
        except (KybernateError, OSError) as error:
            log.info("%s: what its saved state needs isn't looked up again: %s", seat, error)

    async def _other_images(self, seat: Seat) -> Path:
        """Of its copy in the object store. Raises CorruptError, RefusedError if that can't be used
        either."""
        vault, into = self.below.vault, await self.below.into(seat)
        try:
            await self.bring(seat, into)
        except (NotFoundError, CorruptError) as error:
            # Of a copy in a store that is away nobody can tell; then this says so.
            await vault.ls(Tier.OBJECT)
            raise CorruptError(str(error)) from error
        return Path(seat.saved.images)

    async def _restore_failed(self, seat: Seat, error: Exception) -> None:
        metrics.failed("restore")
        metrics.TIER_MOVES.labels("restore", "failed").inc()
        seat.backoff.restore_failed(waits=waits(error), unsure=is_unsure(error))
        seat.backoff.held_against(speaks_against(error, seat.backoff.unsure_restores))
        if seat.backoff.failed_restores >= _RESTORES:
            raise Broken(f"it could not be recreated from its saved state: {error}") from error
        wait = pause(error, seat.backoff.waiting_restores)
        seat.backoff.settle(self._world.now() + wait, asleep=True)
        self._life.complain(seat, "RestoreFailed", told(error))
        await self.revert_restore(seat, f"not restored: {error}")

    async def revert_restore(self, seat: Seat, why: str) -> None:
        """Half of its tree may be there, and must never run."""
        self.lazies.fillings.stop(seat)
        if await self.end(seat):
            seat.saved.pages("")
            self._node.move(seat, SeatEvent.RESTORE_REVERTED, why)
            self._kick()

    async def finish_restore(self, seat: Seat) -> None:
        """Its tree is back: name its processes anew, see it stand, let TCP pass."""
        procs, init = self._world.procs, _init(seat)
        try:
            tree = procs.child_of(init)
            root = Process(tree, procs.start_time(tree))
            by_inner = {
                procs.pid_in_container(pid): pid
                for pid in self._world.freezer.pids(seat.tree.handle)
            }
            pids = [by_inner[inner] for inner in seat.tree.inner]
            seat.tree.recreated(root, tuple(Process(pid, procs.start_time(pid)) for pid in pids))
        except NotFoundError as error:
            self.is_gone(seat, error)
            return
        except KeyError as error:
            raise Broken(f"process {error} of it was not recreated") from error
        leave_gpus_alone(seat)
        if seat.saved.paging:
            self.lazies.begin(seat)
        await self._node.save(seat)
        await self._steps.settle(seat)
        await self.open(seat)
        seat.backoff.restored()
        self._moved(seat)
        self._node.move(seat, SeatEvent.RESTORED, "parked in RAM, restored from its saved state")
        metrics.TIER_MOVES.labels("restore", "done").inc()
        self._kick()


def _init(seat: Seat) -> int:
    if seat.tree.init is None:
        raise NotFoundError("its container has ended")
    return seat.tree.init.pid
