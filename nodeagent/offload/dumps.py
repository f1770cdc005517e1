"""A seat's way down: its tree is written down in stages, each with its own inverse, and ended.

    DUMPING        the intent
      hold         TCP is held back, the tree is looked at; undone: TCP passes
      write        CRIU writes the tree down, frozen before and after; undone: it stands as before
      seal         what was written becomes an artifact; undone: nobody may continue from it
      deliver      a successor's node keeps the artifact, if one waits for it
      note         DUMPING with `artifact`, on the disk; undone: a record without it
    PARKED_NVME    the tree is ended, which nothing undoes

An undo is idempotent, and needn't know how far its stage came: a dump that failed, and one that an
agent which died had begun, are undone alike, from the last stage to the first. A seat that is
wake-requested before the note stays in RAM: that is the shortest way back.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.core.seat.seats import SeatEvent
from kybernate.dataclass import dataclass
from kybernate.errors import DumpError, KybernateError, NotFoundError
from kybernate.lib.retry import AGAIN, retry
from kybernate.types import ArtifactId
from nodeagent import metrics
from nodeagent.offload.ground import init_of
from nodeagent.seat.steps import Broken, Reverted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kybernate.ports import Phases
    from kybernate.types import PodUid
    from nodeagent.artifacts.store import Sealer
    from nodeagent.artifacts.succession import Succession
    from nodeagent.offload.departures import Departures
    from nodeagent.offload.gates import Gates
    from nodeagent.offload.ground import Ground
    from nodeagent.offload.lazies import Lazies
    from nodeagent.seat.parts.tree import Process
    from nodeagent.seat.record import Seat

_CHECK_DEADLINE = 5.0
_LOOK_DEADLINE = 10.0
_NONE = ArtifactId("")


@dataclass(slots=True)
class _Dump:
    """One that is under way. `key` names the `folder` of its images. `stays`: its tree will not be
    ended, and it is not asked whether it is wake-requested; `called`: it continues though it is."""

    seat: Seat
    key: PodUid
    stays: bool = False
    called: bool = False
    folder: Path = Path()
    artifact: ArtifactId = _NONE
    phases: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Stage:
    """`do` returns seconds by phase, and raises what keeps the tree in RAM. `undo` says whether
    there still is a tree."""

    do: Callable[[_Dump], Awaitable[Phases]]
    undo: Callable[[Seat], Awaitable[bool]]


class Dumps:
    """Writes trees down."""

    def __init__(
        self,
        ground: Ground,
        gates: Gates,
        lazies: Lazies,
        sealer: Sealer,
        succession: Succession,
        departures: Departures,
    ) -> None:
        self._ground = ground
        self._gates = gates
        self._lazies = lazies
        self._sealer = sealer
        self._custody = sealer.custody
        self._succession = succession
        self._departures = departures
        self._written = (
            _Stage(self._hold, self._let_through),
            _Stage(self._write, self._heal),
        )
        self._stages = (
            *self._written,
            _Stage(self._seal, self._void),
            _Stage(self._deliver, _stands),
            _Stage(self._note, self._unnote),
        )

    # --- a dump as a whole ----------------------------------------------------------------------

    def begin(self, seat: Seat, why: str) -> None:
        """From PARKED: write the intent, then do it."""
        self._ground.work(seat, self._dump(seat, self.dumping(seat, why)))

    def dumping(self, seat: Seat, why: str) -> Awaitable[None]:
        """From PARKED to DUMPING; await it before anything is done."""
        seat.tree.named_inside(*self._named_inside(seat))
        # A state of before, which the tree was restored from, is not what it is now.
        # That it is to go is noted before the seat's record names it no more.
        if seat.saved.borrowed:
            self._succession.outgrown(seat, seat.saved.artifact)
        elif seat.saved.artifact:
            self._custody.void(seat.saved.artifact, "its workload has continued since")
        seat.saved.dumping()
        return self._ground.node.transition(seat, SeatEvent.DUMP, why, synced=True)

    def _named_inside(self, seat: Seat) -> tuple[tuple[Process, ...], tuple[int, ...]]:
        """Its processes on the GPUs that are left, and what they are called in the container."""
        named = []
        for one in seat.tree.cuda:
            with contextlib.suppress(NotFoundError):
                named.append((one, self._ground.world.procs.pid_in_container(one.pid)))
        return tuple(one for one, _ in named), tuple(inner for _, inner in named)

    async def _dump(self, seat: Seat, written: Awaitable[None]) -> None:
        now = self._ground.world.now
        began = now()
        # One that is wake-requested goes where nobody would get on else: it comes back.
        called = seat.demand.called or seat.uid in self._departures.under_way
        dump = _Dump(seat, seat.uid, called=called)
        try:
            await written
            dump.phases["intent"] = now() - began
            await self._do(dump, self._stages)
        except NotFoundError as error:
            for stage in (self._unnote, self._void):
                await stage(seat)
            self._ground.is_gone(seat, error)
            return
        except (KybernateError, OSError) as error:
            await self.keep(seat, error)
            return
        self._custody.unnoted.pop(seat.uid, None)
        noted = now()
        await self.finish_end(seat)
        ended = now()
        seat.history.timed({**dump.phases, "end": ended - noted, "all": ended - began})
        metrics.observe_step("dump", seat.history.phases, seat.saved.size)

    async def _do(self, dump: _Dump, stages: tuple[_Stage, ...]) -> None:
        for stage in stages:
            dump.phases.update(await stage.do(dump))

    async def _undo(self, seat: Seat) -> bool:
        """Whether there is a tree, which stands in RAM as before."""
        for stage in reversed(self._stages):
            if not await stage.undo(seat):
                return False
        return True

    async def write_down(self, seat: Seat, key: PodUid) -> tuple[Path, dict[str, float]]:
        """The frozen tree's images, in the folder of `key`, and seconds by phase; the tree
        continues, see `stay`. Raises what keeps it as it is."""
        dump = _Dump(seat, key, stays=True)
        await self._do(dump, self._written)
        return dump.folder, dump.phases

    async def stay(self, seat: Seat, why: str) -> bool:
        """Its tree was written down, and stands in RAM as before; whether there still is one.
        Raises Broken if it doesn't."""
        if not await self._undo(seat):
            return False
        self._ground.node.transition(seat, SeatEvent.SAVED, why)
        self._ground.kick()
        return True

    async def keep(self, seat: Seat, why: BaseException) -> None:
        """It stays in RAM: frozen, as it was. Raises Broken if it isn't."""
        if not await self._undo(seat):
            return
        node, called = self._ground.node, seat.demand.called or seat.ending.asked
        pause = AGAIN.first if called else node.settings.dump_retry_s
        seat.backoff.settle(node.world.now() + pause)
        node.transition(seat, SeatEvent.DUMP_REVERTED, f"parked in RAM: {why}")
        self._ground.life.aside(self._lazies.abandon(seat))
        metrics.TIER_STEPS.labels("dump", "called" if called else "kept").inc()
        if not called:
            metrics.failed("dump")
            node.tell(seat, "Warning", "KeptInRam", f"it stays parked in RAM: {why}")
        self._ground.kick()

    async def finish_end(self, seat: Seat) -> None:
        """Its state is sealed and journalled: end the tree, however long it takes."""
        if not await self._ground.end(seat):
            return
        node, now = self._ground.node, self._ground.world.now()
        seat.tree.ran_out()
        seat.saved.offloaded()
        node.ram_freed()
        seat.saved.moved(now)
        written = node.transition(seat, SeatEvent.DUMPED, "parked on NVMe", synced=True)
        self._ground.kick()
        with contextlib.suppress(OSError):
            await written  # else a restart ends the tree once more, which changes nothing
        metrics.TIER_STEPS.labels("dump", "done").inc()

    # --- hold -----------------------------------------------------------------------------------

    async def _hold(self, dump: _Dump) -> Phases:
        """An empty folder for its images, while TCP is held back and it is looked at: each of them
        mostly waits. Raises what any of them does, after the last has ended; Reverted if it can't
        be dumped."""
        seat, now = dump.seat, self._ground.world.now
        began = now()
        seconds, shut, images = await asyncio.gather(
            self._looked(seat),
            self._gates.shut(seat),
            self._ground.offloading.vault.begin(dump.key),
            return_exceptions=True,
        )
        if isinstance(seconds, BaseException):
            raise seconds
        if isinstance(shut, BaseException):
            raise shut
        if isinstance(images, BaseException):
            raise images
        dump.folder = images
        if not dump.stays:
            await self._gates.see_looked(seat)
            await _see_uncalled(dump)
        return {"check": seconds, "gate": now() - began - seconds}

    async def _looked(self, seat: Seat) -> float:
        """The seconds that the look took."""
        began, dumper = self._ground.world.now(), self._ground.offloading.dumper
        problems = await dumper.check(init_of(seat), seat.tree.handle, _CHECK_DEADLINE)
        if problems:
            seat.saved.refused("; ".join(problems))
            raise Reverted(f"it can't be dumped: {seat.saved.undumpable}")
        return self._ground.world.now() - began

    async def _let_through(self, seat: Seat) -> bool:
        await self._gates.open(seat)
        return True

    # --- write ----------------------------------------------------------------------------------

    async def _write(self, dump: _Dump) -> Phases:
        seat, offloading, began = dump.seat, self._ground.offloading, self._ground.world.now()
        deadline = self._ground.node.settings.dump_deadline_s
        dumping = offloading.dumper.dump(
            init_of(seat), seat.tree.handle, dump.folder, deadline, continues=dump.stays
        )
        departure = self._departures.under_way.get(dump.key)
        phases = await (departure.follow(dump.folder, dumping) if departure else dumping)
        seat.saved.written(offloading.first(dump.folder))
        return {**phases, "dump": self._ground.world.now() - began}

    async def _heal(self, seat: Seat) -> bool:
        """Raises Broken if it can't be."""
        deadline = self._ground.node.settings.dump_deadline_s
        try:
            await retry(
                lambda: self._ground.offloading.dumper.keep(
                    init_of(seat), seat.tree.handle, deadline
                ),
                self._ground.complains(seat, "KeepIncomplete"),
                on=KybernateError,
                but=(NotFoundError, DumpError),
            )
        except NotFoundError as error:
            self._ground.is_gone(seat, error)
            return False
        except DumpError as error:
            raise Broken(f"a dump that failed has left it unfit to run: {error}") from error
        await self._ground.steps.settle(seat)
        return True

    # --- seal, deliver, note ------------------------------------------------------------------

    async def _seal(self, dump: _Dump) -> Phases:
        seat, offloading, began = dump.seat, self._ground.offloading, self._ground.world.now()
        await _see_uncalled(dump)
        facts, deadline = await offloading.facts(seat), self._ground.node.settings.dump_deadline_s
        dump.artifact = await self._sealer.seal(
            offloading.vault, seat.uid, dump.folder, facts, deadline
        )
        self._custody.unnoted[seat.uid] = dump.artifact
        return {"seal": self._ground.world.now() - began}

    async def _void(self, seat: Seat) -> bool:
        if (artifact := self._custody.unnoted.get(seat.uid)) is not None:
            self._custody.void(artifact, "its seat stayed in RAM")
            self._custody.unnoted.pop(seat.uid)
        return True

    async def _deliver(self, dump: _Dump) -> Phases:
        await _see_uncalled(dump)
        if departure := self._departures.under_way.get(dump.seat.uid):
            await departure.deliver(dump.artifact)
        return {}

    async def _note(self, dump: _Dump) -> Phases:
        """Raises Reverted if what was sealed is gone: that is not the container's end."""
        began = self._ground.world.now()
        try:
            manifest = await self._ground.offloading.vault.manifest(dump.artifact, _LOOK_DEADLINE)
        except NotFoundError as error:
            raise Reverted(f"its artifact is gone: {error}") from error
        dump.seat.saved.sealed(dump.artifact, manifest.stored)
        await self._ground.node.save(dump.seat, synced=True)
        return {"note": self._ground.world.now() - began}

    async def _unnote(self, seat: Seat) -> bool:
        """A record that could not be written may be there all the same, and would have the tree
        ended after a restart: nothing continues before another one has taken its place."""
        noted = bool(seat.saved.artifact)
        seat.saved.unsealed_yet()
        if noted:
            save = partial(self._ground.node.save, seat, synced=True)
            await retry(save, self._ground.complains(seat, "JournalStuck"), on=OSError)
        return True


async def _stands(seat: Seat) -> bool:
    """The undo of what changes nothing."""
    return True


async def _see_uncalled(dump: _Dump) -> None:
    # What arrived before the gate was shut is told by the loop's next round.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if (dump.seat.comes_back and not dump.called) or dump.seat.ending.asked:
        raise Reverted("a wake was requested")
