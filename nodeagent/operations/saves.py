"""Snapshots: a copy of a seat's state that is kept, while the seat continues.

    the operation's record  the wish; the seat is sent away, if it serves
    DUMPING                 the frozen tree is written down, in a folder of the save's own
    PARKED                  the tree stands as before, and wakes; what was written is sealed aside
    `saved/<artifact>`      it is sealed and kept: nothing drops it but who deletes it

An agent that dies before the last of these begins again: what was written is thrown away, and the
state as of then is saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import field, replace
from typing import TYPE_CHECKING

from kybernate.core.artifacts.holds import PersonHold
from kybernate.core.seat.saves import (
    Next,
    Phase,
    SaveFacts,
    judge_save,
    keeping_tier,
    next_step,
    plan_save,
    why_given_up,
    why_refused,
)
from kybernate.core.seat.seats import WITHOUT_TREE
from kybernate.dataclass import dataclass
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
)
from kybernate.lib.retry import retry
from kybernate.types import ArtifactId, PodUid, SeatState, Tier
from nodeagent import metrics
from nodeagent.operations import precopy
from nodeagent.operations.record import words
from nodeagent.seat.steps import Reverted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from kybernate.core.seat.operations import SeatFacts, Verdict
    from nodeagent.offload.offload import Offload
    from nodeagent.operations.record import Ask, Operation
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.operatorside import OperatorSide
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

OF_SAVE = "-save"
"""Behind a pod's UID: the folder of its save, beside that of its dumps."""


@dataclass(slots=True, eq=False)
class _Save:
    """`ready`: there is room for it, `need` bytes; `again`: an agent that died may have begun it;
    `dropped`: nobody wants it any more; `drained_at`: since when its requests wait."""

    operation: Operation
    goal: Tier
    phase: Phase = Phase.WANTED
    why: str = ""
    ready: bool = False
    need: int = 0
    again: bool = False
    dropped: bool = False
    drained_at: float | None = None
    phases: dict[str, float] = field(default_factory=dict)


class Saves:
    """All saves that are under way. `facts` is a seat as operations see it; `noted` is told of
    what has changed about an operation."""

    def __init__(
        self,
        operators: OperatorSide,
        offload: Offload,
        life: Lifecycle,
        facts: Callable[[Seat], SeatFacts],
        noted: Callable[[Operation], None],
    ) -> None:
        self._operators = operators
        self._node = operators.node
        self._offload = offload
        self._life = life
        self._facts = facts
        self._noted = noted
        self._all: dict[str, _Save] = {}
        self._taken = offload.saves
        self._sealing: set[PodUid] = set()

    @property
    def _offloading(self) -> Offloading:
        return self._offload.ground.offloading

    # --- the wish -------------------------------------------------------------------------------

    def why_refused(self, seat: SeatFacts | None, ask: Ask) -> str:
        """Why this can't be asked, whatever happens; empty if it can."""
        return why_refused(seat, ask.kind, ask.tier) if seat else "it has no seat here"

    def plan(self, seat: SeatFacts | None, ask: Ask) -> tuple[str, ...]:
        """What it would do, in order."""
        return plan_save(seat, ask.tier) if seat else ()

    def begin(self, operation: Operation, *, again: bool = False) -> None:
        """Put the wish; `again` after a restart of the agent."""
        seat = self._node.seats.get(operation.uid)
        goal = keeping_tier(self._facts(seat), operation.tier) if seat else Tier.NVME
        one = self._all[operation.name] = _Save(operation, goal, again=again)
        hold = self._offload.custody.kept_by(operation.name)
        if hold is not None:
            operation.artifact, one.phase = hold.artifact, Phase.COPYING
            self._life.aside(self._copy(one, hold))
        elif seat is not None and self._node.world.offloading is not None:
            seat.wishes.ask_for_copy(wanted=True)
            self._life.aside(self._see_room(one, seat))
        else:
            one.ready = True

    def verdict(self, operation: Operation, seat: SeatFacts | None) -> Verdict:
        """How far it is."""
        one = self._all.get(operation.name)
        if one is not None:
            save = SaveFacts(one.phase, one.goal, operation.artifact, one.why)
            return judge_save(seat, save)
        hold = self._offload.custody.kept_by(operation.name)
        phase = Phase.COPYING if hold else Phase.WANTED
        return judge_save(seat, SaveFacts(phase, Tier.OBJECT, hold.artifact if hold else ""))

    def drop(self, operation: Operation) -> None:
        """Take the wish back. What is written is thrown away, what is sealed stays. A pre-copy is
        sent no further: its eviction would share the store with it."""
        one = self._all.pop(operation.name, None)
        if one is not None:
            one.dropped = True
            if one.phase is Phase.WANTED:
                self._taken.pop(operation.name, None)
                self._continue(one)

    def ended(self, operation: Operation) -> None:
        """Nothing more becomes of it."""
        one = self._all.pop(operation.name, None)
        if one is not None and one.phase is Phase.WANTED:
            self._taken.pop(operation.name, None)

    def look(self) -> None:
        """Do for each that is wanted what can be done now."""
        for one in tuple(self._all.values()):
            self._time(one)
            if one.phase is Phase.WANTED and one.ready:
                self._step(one)

    async def _see_room(self, one: _Save, seat: Seat) -> None:
        try:
            self._offload.custody.listed(Tier.NVME, await self._offloading.vault.ls(Tier.NVME))
        except (KybernateError, OSError) as error:
            self._fail(one, f"what is on NVMe can't be listed: {error}")
            return
        # Of one that is being dumped, or has been, what is there is kept: that takes no more.
        there = seat.state is SeatState.DUMPING or seat.state in WITHOUT_TREE
        room, need = self._offload.free(), 0 if there else sum(self._node.dump_size(seat))
        if need > max(0, room):
            self._fail(
                one,
                f"NVMe has room for {room} bytes, and it takes {need} or more; delete "
                "artifacts (kybernate artifacts rm), or give the agent more (nvme_bytes)",
            )
            return
        if one.dropped or self._all.get(one.operation.name) is not one:
            return
        one.ready, one.need = True, need
        self._taken[one.operation.name] = need
        self.look()

    def _step(self, one: _Save) -> None:
        seat = self._node.seats.get(one.operation.uid)
        facts = self._facts(seat) if seat else None
        match next_step(facts, busy=seat is not None and self._busy(seat)):
            case Next.SEND_AWAY if seat is not None and not seat.wishes.stays_away:
                one.operation.wakes = True
                self._noted(one.operation)
                self._operators.send_away(seat.uid, words(one.operation), stays_away=True)
            case Next.WRITE if seat is not None:
                one.phase = Phase.WRITING
                seat.wishes.ask_for_copy(wanted=False)
                self._sealing.add(seat.uid)
                # From here on it is counted as its seat's dump.
                self._taken.pop(one.operation.name, None)
                written = self._offload.dumps.dumping(seat, words(one.operation))
                self._offload.ground.work(seat, self._write(one, seat, written))
            case Next.KEEP_ARTIFACT if seat is not None:
                one.phase = Phase.COPYING
                seat.wishes.ask_for_copy(wanted=False)
                self._taken.pop(one.operation.name, None)
                self._life.aside(self._keep(one, self._of_seat(one, seat)))
            case Next.GIVE_UP:
                self._fail(one, why_given_up(facts))
            case _:
                pass

    def _busy(self, seat: Seat) -> bool:
        working = seat.tasks.work is not None and not seat.tasks.work.done()
        return working or seat.unverified or bool(seat.saved.paging) or seat.uid in self._sealing

    def _time(self, one: _Save) -> None:
        """How long requests had to wait: from its drain to when it serves again."""
        seat = self._node.seats.get(one.operation.uid)
        if seat is None or not one.operation.wakes:
            return
        if one.drained_at is None:
            one.drained_at = seat.history.drain_since
        elif seat.state is SeatState.ACTIVE and one.phase not in (Phase.WANTED, Phase.WRITING):
            one.phases.setdefault("pause", self._node.world.now() - one.drained_at)
            one.operation.phases = one.phases

    def _fail(self, one: _Save, why: str) -> None:
        if one.phase is Phase.WANTED:
            self._taken.pop(one.operation.name, None)
        one.phase, one.why = Phase.FAILED, why
        metrics.failed("save")
        self._continue(one)
        self._noted(one.operation)

    def _continue(self, one: _Save) -> None:
        """Whoever served does so again; who was parked stays as it was."""
        seat = self._node.seats.get(one.operation.uid)
        if seat is None:
            return
        seat.wishes.ask_for_copy(wanted=False)
        if one.operation.wakes:
            self._operators.let_stay(seat.uid)
            self._operators.request_wake(seat.uid, "it continues after it was saved")

    # --- writing --------------------------------------------------------------------------------

    async def _write(self, one: _Save, seat: Seat, written: Awaitable[None]) -> None:
        """The tree is written down, and continues. Raises Broken."""
        try:
            await written
            if one.again:
                await self._drop_unnoticed(seat)
            dumps, key = self._offload.dumps, _folder(seat.uid)
            images, one.phases = await dumps.write_down(seat, key)
            facts = await self._offloading.facts(seat)
        except NotFoundError as error:
            self._offload.ground.is_gone(seat, error)
            self._unwritten(one, f"its container ended while it was saved: {error}")
            return
        except (Reverted, KybernateError, OSError) as error:
            try:
                await self._offload.dumps.keep(seat, error)
            finally:
                self._unwritten(one, f"it was not saved, and continues as it was: {error}")
            return
        except BaseException:
            # Its container has ended, which the next look tells; or the agent ends.
            self._sealing.discard(seat.uid)
            one.phase = Phase.WANTED
            if one.operation.name in self._all:
                self._taken[one.operation.name] = one.need
            raise
        one.phase = Phase.SEALING
        try:
            await self._offload.dumps.stay(seat, "its state is written down, and it stays")
        finally:
            # Whatever becomes of the tree now, what was written is whole.
            self._taken[one.operation.name] = one.need
            self._continue(one)
            self._life.aside(self._seal(one, images, facts))
            self._noted(one.operation)

    async def _drop_unnoticed(self, seat: Seat) -> None:
        """What the agent that died has sealed, and not noted: nobody else knows of it, unless a
        lost line of the journal did."""
        if self._node.world.journal.damage:
            return
        for found in await self._offloading.vault.ls(Tier.NVME):
            if found.uid == seat.uid:
                self._offload.custody.void(found.id, "the agent was restarted before it was kept")

    def _unwritten(self, one: _Save, why: str) -> None:
        self._fail(one, why)
        self._life.aside(self._abandon(one))

    async def _abandon(self, one: _Save) -> None:
        """Until its folder is gone nothing else is written there."""
        await self._offload.lazies.remove(_folder(one.operation.uid), lambda: False)
        self._sealing.discard(one.operation.uid)
        self._taken.pop(one.operation.name, None)

    # --- sealing, copying -----------------------------------------------------------------------

    async def _seal(self, one: _Save, images: Path, facts: Mapping[str, object]) -> None:
        began, vault, uid = self._node.world.now(), self._offloading.vault, one.operation.uid
        deadline = self._node.settings.transfer_deadline_s
        try:
            if one.dropped:
                return
            artifact = await self._offload.sealer.begin(vault, uid, images, facts, deadline)
            if one.dropped:
                self._offload.custody.void(artifact, "its save was cancelled")
                return
            size = next((s.size for s in await vault.ls(Tier.NVME) if s.id == artifact), 0)
            one.phases["seal"] = self._node.world.now() - began
            metrics.observe_step("save", one.phases, size)
            hold = PersonHold(artifact, one.operation.name, uid, {Tier.NVME: size})
            self._taken.pop(one.operation.name, None)  # the hold counts from now on
            await self._keep(one, hold)
        except (KybernateError, OSError) as error:
            self._fail(one, f"it was written down and could not be sealed: {error}")
        finally:
            await self._abandon(one)

    def _of_seat(self, one: _Save, seat: Seat) -> PersonHold:
        """What a seat that is offloaded has there; known as kept at once."""
        if Tier.OBJECT in seat.saved.copies:
            one.goal = Tier.OBJECT
        places = dict.fromkeys(seat.saved.copies, seat.saved.size)
        hold = PersonHold(ArtifactId(seat.saved.artifact), one.operation.name, seat.uid, places)
        self._put(hold)
        return hold

    def _put(self, hold: PersonHold) -> Awaitable[None]:
        return asyncio.ensure_future(self._offload.custody.keep(hold))

    async def _keep(self, one: _Save, hold: PersonHold) -> None:
        """It is sealed: from now on nothing drops it."""
        await self._note(hold)
        one.operation.artifact = hold.artifact
        one.operation.saved = one.operation.bytes_total = max(hold.places.values(), default=0)
        await self._copy(one, hold)

    async def _note(self, hold: PersonHold) -> None:
        def say(error: Exception) -> None:
            log.warning("that %s is kept can't be written yet: %s", hold.artifact, error)

        await retry(lambda: self._offload.custody.keep(hold), say, on=OSError)

    async def _copy(self, one: _Save, hold: PersonHold) -> None:
        """To where it is to be kept. Its copy on NVMe goes then, unless the seat needs it."""
        if one.goal is Tier.OBJECT and Tier.OBJECT not in hold.places:
            one.phase = Phase.COPYING
            self._noted(one.operation)
            if not await self._packed(one, hold):
                self._noted(one.operation)  # nothing reads what is kept any more
                return
            size = max(hold.places.values(), default=0)
            hold = replace(hold, places={**hold.places, Tier.OBJECT: size})
            await self._note(hold)
        if one.goal is Tier.OBJECT and Tier.NVME in hold.places:
            await self._clear(hold)
        one.phase = Phase.HELD
        one.operation.bytes_done = one.operation.bytes_total
        one.operation.saved_in = one.goal
        one.operation.phases = one.phases
        self._noted(one.operation)

    async def _packed(self, one: _Save, hold: PersonHold) -> bool:
        deadline = self._node.settings.transfer_deadline_s
        never = (NotFoundError, CorruptError, RefusedError)

        loop, operation = asyncio.get_running_loop(), one.operation
        operation.bytes_total = max(hold.places.values(), default=0)

        def copied(done: int) -> None:
            operation.bytes_done = min(done, operation.bytes_total)

        def progress(done: int) -> None:
            # The thread that copies tells it, and the loop alone writes it.
            if one.dropped and precopy.eviction_of(operation.name):
                raise DeadlineError("the eviction for which it was copied doesn't wait for it")
            with contextlib.suppress(RuntimeError):  # the agent has ended
                loop.call_soon_threadsafe(copied, done)

        async def packed() -> bool:
            if not one.dropped:
                await self._offloading.vault.pack(hold.artifact, Tier.OBJECT, deadline, progress)
                return True
            return False

        def say(error: Exception) -> None:
            log.warning("%s is not in the object store yet: %s", hold.artifact, error)

        try:
            return await retry(packed, say, but=never)
        except never as error:
            self._fail(one, f"{hold.artifact} is on NVMe, and can't be copied: {error}")
            return False

    async def _clear(self, hold: PersonHold) -> None:
        seat = self._node.seats.get(hold.uid)
        if seat is not None and seat.saved.artifact == hold.artifact:
            return
        with contextlib.suppress(KybernateError, OSError):
            await self._offloading.vault.drop(hold.artifact, Tier.NVME)
            await self._note(replace(hold, places={Tier.OBJECT: hold.places[Tier.OBJECT]}))


def _folder(uid: PodUid) -> PodUid:
    """What names the folder of a seat's save: its tree may be dumped again while it is sealed."""
    return PodUid(uid + OF_SAVE)
