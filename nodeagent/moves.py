"""Moves: a seat's workload goes on in another pod, on another node, with its state as it is here.

    the operation's record     the wish: the successor is found, and asked whether it waits and
                               whether its node has room
    (blocks go in advance)     those of a state of before, if one lies here
    DUMPING                    the tree is written down, and sent while it is
    `move/<uid>` `artifact`    the successor's node has verified and kept it: it may go on
    DUMPING with `artifact`    from here on the tree is ended, and the successor goes on
    `move/<uid>` `done`        it does, and nothing ever wakes the seat here again

An agent that dies before the seat's record has the artifact leaves the tree here, and its successor
begins the move anew; afterwards the move is brought to its end, however long that takes. Where the
other node says that its pod never takes the state, the seat goes on here, from the same state.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate.core.moving import plan_move, why_unmovable
from kybernate.core.operations import Progress, Verdict
from kybernate.core.seats import OCCUPYING, WITHOUT_TREE
from kybernate.errors import (
    ConflictError,
    CorruptError,
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.ports import Handover
from kybernate.types import ArtifactId, PodRef, PodUid, SeatState, Tier
from nodeagent import metrics
from nodeagent.below import weight
from nodeagent.calloffs import CallOffs
from nodeagent.leaving import (
    MOVE,
    Going,
    handover_of,
    has_ended,
    persistently,
    record_of,
    see_there,
    where,
)
from nodeagent.operation import words
from nodeagent.transfers import AGAIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from kybernate.core.operations import SeatFacts
    from kybernate.ports import Peers
    from nodeagent.loop import Loop
    from nodeagent.operation import Ask, Operation
    from nodeagent.seat import Seat

log = logging.getLogger(__name__)

_DEADLINE = 10.0
_FOR_GOOD = 10 * 365 * 86_400.0
"""Seconds. What must come to its end has no deadline any more."""


@dataclass(slots=True, eq=False)
class _Move:
    """One move. `to`: who takes it; `asked`: who was asked, and perhaps said no. `artifact`: what
    the other node keeps; `gone`: the tree here is ended, or will be; `served`: requests were
    answered when it began."""

    operation: Operation
    to: Handover | None = None
    asked: Handover | None = None
    artifact: str = ""
    gone: bool = False
    served: bool = False
    sentence: str = "the successor is looked for"
    verdict: Verdict | None = None
    began: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Moves:
    """All moves that begin on this node. `noted` is told of what has changed about an operation."""

    def __init__(self, loop: Loop, peers: Peers, noted: Callable[[Operation], None]) -> None:
        self._loop = loop
        self._node = loop.node
        self._dumps = loop.dumps
        self._peers = peers
        self._offs = CallOffs(loop.node.world.journal, peers, loop.life.aside)
        self._noted = noted
        self._all: dict[str, _Move] = {}
        self._records: dict[PodUid, Mapping[str, object]] = {}
        self._patience = loop.node.settings.transfer_deadline_s

    # --- the wish (see `operations.Carrier`) ----------------------------------------------------

    def why_refused(self, seat: SeatFacts | None, ask: Ask) -> str:
        """Why this can't be asked, whatever happens; empty if it can."""
        return why_unmovable(seat, ask.successor) if seat else "it has no seat here"

    def plan(self, seat: SeatFacts | None, ask: Ask) -> tuple[str, ...]:
        """What it would do, in order."""
        return plan_move(seat, ask.uid, ask.successor) if seat else ()

    def begin(self, operation: Operation, *, again: bool = False) -> None:
        """Put the wish; `again` after a restart of the agent."""
        one = self._all[operation.name] = self._recalled(operation) if again else _Move(operation)
        one.began = self._node.world.now()
        if not one.gone:
            self._outdate(operation.uid)
        one.task = asyncio.create_task(self._guarded(one))

    def verdict(self, operation: Operation, seat: SeatFacts | None) -> Verdict:
        """How far it is."""
        one = self._all.get(operation.name)
        if one is None:
            return Verdict(operation.state, operation.sentence)
        running = Progress.PENDING if one.to is None else Progress.RUNNING
        return one.verdict or Verdict(running, one.sentence)

    def drop(self, operation: Operation) -> None:
        """Take the wish back. Raises RefusedError once its processes are ended."""
        # One that is overdue when the next agent comes is not begun again.
        one = self._all.get(operation.name) or self._recalled(operation)
        if one.gone:
            raise RefusedError(
                f"{operation} can't be taken back: the state is on the other node; delete the "
                "successor's pod if nobody is to go on"
            )
        if one.task is not None:
            one.task.cancel()
        self._loop.life.aside(self._stay(one))

    def ended(self, operation: Operation) -> None:
        """Nothing more becomes of it."""
        self._all.pop(operation.name, None)

    def look(self) -> None:
        """Something has changed."""
        for one in self._all.values():
            one.changed.set()

    # --- over restarts --------------------------------------------------------------------------

    def resume(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """What the last agent noted; before operations are put again."""
        self._records = {
            PodUid(key.removeprefix(MOVE)): record
            for key, record in records.items()
            if key.startswith(MOVE)
        }
        self._offs.load(records)
        for uid, record in self._records.items():
            seat = self._node.seats.get(uid)
            if seat is None and record["done"]:
                self._node.world.journal.delete(MOVE + uid)
            elif seat is not None and record["done"]:
                self._dumps.moved[seat.uid] = where(handover_of(record))
                self._loop.life.aside(self._dumps.open(seat))
            elif has_ended(records, record):
                self._offs.owe(to := handover_of(record))
                self._node.world.journal.delete(MOVE + uid)
                self._loop.life.aside(self._offs.tell(to))

    def _recalled(self, operation: Operation) -> _Move:
        """A move that another agent began; past the point from where on the successor goes on, if
        that was passed."""
        one, record = _Move(operation), self._records.get(operation.uid)
        if record is None or record["operation"] != operation.name:
            return one
        artifact, seat = str(record["artifact"]), self._node.seats.get(operation.uid)
        ended = seat is None or seat.state is SeatState.WAITING
        one.asked = handover_of(record)
        if artifact and (ended or (seat is not None and seat.artifact == artifact)):
            one.to, one.artifact, one.gone = one.asked, artifact, True
        return one

    def _outdate(self, uid: PodUid) -> None:
        """The workload may go on here from now on: what was noted of its state is not true then,
        and no later agent may believe it."""
        record = self._records.pop(uid, None)
        if record is not None and record["artifact"]:
            put = self._node.world.journal.put
            put(MOVE + uid, {**record, "artifact": ""}, synced=False)
        self._dumps.handed.discard(uid)

    async def _note(self, one: _Move, *, done: bool = False) -> None:
        to, uid = one.to, one.operation.uid
        if to is None:
            return
        record = record_of(to, one.operation.name, one.artifact, done=done)
        await self._node.world.journal.put(MOVE + uid, record, synced=True)

    async def _written(self, one: _Move, *, done: bool = False) -> None:
        """Note how it ended, however long the disk takes."""
        while True:
            try:
                await self._note(one, done=done)
                break
            except OSError as error:
                log.warning("%s: its end can't be written: %s", one.operation, error)
                await asyncio.sleep(AGAIN)

    # --- one move -------------------------------------------------------------------------------

    async def _guarded(self, one: _Move) -> None:
        try:
            if not one.gone:
                to = one.to = await self._meet(one)
                await self._stage(one, to)
                await self._leave(one, to)
        except (KybernateError, OSError) as error:
            await self._fail(one, str(error))
        except Exception as error:
            log.exception("%s failed unexpectedly", one.operation)
            await self._fail(one, f"the agent failed unexpectedly: {error}")
        else:
            await self._see_through(one)

    async def _see_through(self, one: _Move) -> None:
        """The successor may have the state: whatever goes wrong, the seat doesn't go on here but by
        a claim of its own."""
        while one.verdict is None:
            try:
                await self._hand_over(one)
            except (KybernateError, OSError) as error:
                self._say(one, f"{error}; trying again")
            except Exception as error:
                log.exception("%s failed unexpectedly", one.operation)
                self._say(one, f"the agent failed unexpectedly: {error}; trying again")
            if one.verdict is None:
                await asyncio.sleep(AGAIN)

    def _say(self, one: _Move, sentence: str) -> None:
        if one.sentence != sentence:
            one.sentence = sentence
            self._noted(one.operation)

    async def _until_done(self, one: _Move, call: Callable[[], Awaitable[None]]) -> None:
        await persistently(call, lambda why: self._say(one, why))

    async def _meet(self, one: _Move) -> Handover:
        found: list[Handover] = []
        pod = PodRef(one.operation.namespace, one.operation.pod, one.operation.uid)

        async def met() -> None:
            name = one.operation.successor
            successor, node = await self._peers.find(pod.namespace, name, _DEADLINE)
            one.asked = Handover(pod, successor, node)
            found[:] = [one.asked]
            await self._offs.withdraw(one.asked)
            await self._peers.expect(one.asked, _DEADLINE, size=self._size(pod.uid))

        def waits(why: str) -> None:
            self._say(one, why)
            self._serve_on(pod.uid, words(one.operation))

        await persistently(met, waits)
        # From here on something may come there, and somebody must call it off.
        record = record_of(found[0], one.operation.name, "", done=False)
        self._node.world.journal.put(MOVE + pod.uid, record, synced=False)
        self._time(one, "met")
        return found[0]

    def _serve_on(self, uid: PodUid, why: str) -> None:
        """An agent that died may have sent it away for this already: while its successor is waited
        for, its requests are answered here."""
        seat = self._node.seats.get(uid)
        if seat is not None and seat.leave == why:
            self._loop.ask_for_tier(uid, None)
            self._loop.let_stay(uid)

    def _size(self, uid: PodUid) -> int:
        """About how many bytes will be sent."""
        seat = self._node.seats.get(uid)
        if seat is None:
            return 0
        if seat.state in WITHOUT_TREE:
            return seat.saved if Tier.NVME in seat.copies else 0
        return sum(weight(self._node, seat))

    async def _stage(self, one: _Move, to: Handover) -> None:
        """The blocks of a state of before go first; without them it only takes longer."""
        seat = self._seat(one)
        try:
            listed = await self._dumps.below.vault.ls(Tier.NVME)
            mine = [found.id for found in listed if found.uid == seat.uid and found.verified]
            if mine and seat.state not in WITHOUT_TREE:
                newest = max(mine, key=lambda artifact: artifact.rpartition("@")[2])
                self._say(one, f"the memory of {newest} is sent in advance")
                _count(await self._peers.stage(to, newest, self._patience))
        except (KybernateError, OSError) as error:
            log.warning("%s: nothing is sent in advance: %s", one.operation, error)
        self._time(one, "staged")

    async def _leave(self, one: _Move, to: Handover) -> None:
        """Up to where its tree is ended, and its state at the other node."""
        seat = self._seat(one)
        one.served = seat.state in OCCUPYING

        async def send(images: Path, dumped: asyncio.Event) -> None:
            await self._sent(one, to, images, dumped)

        async def keep(artifact: ArtifactId) -> None:
            await self._delivered(one, to, artifact)

        going = self._dumps.going[seat.uid] = Going(send, keep)
        why = words(one.operation)
        self._say(one, f"it is parked, written down and sent to node {to.node}")
        self._loop.send_away(seat.uid, why, stays_away=True)
        try:
            if seat.state is not SeatState.PARKED_OBJECT:
                self._loop.ask_for_tier(seat.uid, Tier.NVME)
                seat.move_not_before = 0.0
                await self._parked(one, going)
            await self._passed_on(one, to, going)
        finally:
            self._dumps.going.pop(seat.uid, None)
        self._time(one, "ended")

    async def _parked(self, one: _Move, going: Going) -> None:
        """Until it is parked below RAM. Raises RefusedError if it won't be."""
        while True:
            one.changed.clear()
            seat = self._seat(one)
            idle = seat.work is None or seat.work.done()
            if seat.state in WITHOUT_TREE and idle:
                return
            if seat.ending or seat.state in (SeatState.WAITING, SeatState.FAILED):
                raise RefusedError(f"its workload ended before it was moved ({seat.reason})")
            stays = seat.state is SeatState.PARKED and idle
            if stays and not seat.tier_asked:
                # It was being woken when that was asked for, and whoever wakes is asked no more.
                self._loop.ask_for_tier(seat.uid, Tier.NVME)
            if stays and (going.problem or seat.undumpable):
                raise RefusedError(going.problem or seat.undumpable)
            if seat.unparkable and seat.state in OCCUPYING:
                self._say(one, f"it can't be parked now: {seat.unparkable}")
            await one.changed.wait()

    async def _passed_on(self, one: _Move, to: Handover, going: Going) -> None:
        """What lay below RAM already is sent now."""
        seat = self._seat(one)
        if not one.artifact:
            artifact = ArtifactId(seat.artifact)
            if Tier.NVME in seat.copies and not seat.images:
                await going.deliver(artifact)
            else:
                await self._kept(one, artifact)
        one.gone = True

    async def _hand_over(self, one: _Move) -> None:
        """The tree is ended, or is being: the successor goes on, whatever it takes."""
        to, artifact = one.to, ArtifactId(one.artifact)
        if to is None:
            return
        seat = await self._ended(one)
        # From here on the successor may run: whoever calls for the seat, it does not wake.
        self._dumps.handed.add(one.operation.uid)
        self._say(one, f"the successor on node {to.node} is told to go on")
        if seat is not None:
            self._loop.adoptions.stopped(seat, f"moved to node {to.node}")

        async def told() -> None:
            await self._loop.reports.flush(_DEADLINE)
            try:
                await self._peers.take_over(to, artifact, self._patience)
            except NotFoundError:
                # What it kept is gone meanwhile: it is here, too.
                await self._peers.deliver(to, artifact, self._patience)
                await self._peers.take_over(to, artifact, self._patience)
            except (RetryableError, DeadlineError):
                if self._node.world.registry is not None:
                    await see_there(self._peers, to, _DEADLINE)
                raise

        try:
            await self._until_done(one, told)
        except (RefusedError, ConflictError, CorruptError) as error:
            await self._go_back(one, str(error))
            return
        self._dumps.moved[one.operation.uid] = where(to)
        await self._written(one, done=True)
        self._time(one, "all")
        if seat is not None:
            seat.reason = where(to)
            self._node.changed(seat)
            self._loop.life.aside(self._dumps.open(seat))
        self._end(one, Progress.SUCCEEDED, f"{where(to)} ({artifact}); delete this pod")

    async def _ended(self, one: _Move) -> Seat | None:
        """Once nothing of its tree is left: the seat, if there still is one."""
        while True:
            one.changed.clear()
            seat = self._node.seats.get(one.operation.uid)
            if seat is None:
                return None
            idle = seat.work is None or seat.work.done()
            if seat.state is SeatState.WAITING or (seat.state in WITHOUT_TREE and idle):
                return seat
            await one.changed.wait()

    async def _go_back(self, one: _Move, why: str) -> None:
        """The successor never goes on: the pod succeeds itself, unless somebody else did."""
        uid, namespace = one.operation.uid, one.operation.namespace

        async def claimed() -> None:
            artifact = ArtifactId(one.artifact)
            await self._loop.registry.claim(namespace, uid, artifact, uid, _DEADLINE)

        try:
            await self._until_done(one, claimed)
        except (ConflictError, RefusedError) as error:
            self._dumps.moved[uid] = f"{why}; {error}"
            await self._written(one, done=True)
            self._end(one, Progress.FAILED, f"{why}, and it can't go on here: {error}")
            return
        await self._fail(one, f"{why}; it goes on here")

    async def _fail(self, one: _Move, why: str) -> None:
        await self._stay(one)
        self._end(one, Progress.FAILED, why)

    async def _stay(self, one: _Move) -> None:
        """The seat goes on here as if nothing had been."""
        uid = one.operation.uid
        self._dumps.going.pop(uid, None)
        one.artifact = ""
        await self._written(one)
        # One that says no may have had something from the agent before this one.
        if (told := one.to or one.asked) is not None:
            self._offs.owe(told)
        self._node.world.journal.delete(MOVE + uid)
        self._dumps.handed.discard(uid)
        if uid in self._node.seats:
            self._loop.ask_for_tier(uid, None)
            self._loop.let_stay(uid)
            if one.served:
                self._loop.call_for(uid, "it goes on here: its move came to nothing")
        if told is not None:
            await self._offs.tell(told)

    def _end(self, one: _Move, progress: Progress, sentence: str) -> None:
        one.verdict = Verdict(progress, sentence)
        one.operation.phases = one.phases
        self._noted(one.operation)

    def _seat(self, one: _Move) -> Seat:
        seat = self._node.seats.get(one.operation.uid)
        if seat is None:
            raise RefusedError("its pod is gone, and with it what the seat held")
        return seat

    def _time(self, one: _Move, phase: str) -> None:
        one.phases[phase] = self._node.world.now() - one.began

    async def _sent(self, one: _Move, to: Handover, images: Path, dumped: asyncio.Event) -> None:
        """A dump is sent while it is written. What goes wrong is made good by `_delivered`."""
        try:
            _count(await self._peers.follow(to, images, dumped, self._patience))
        except (KybernateError, OSError) as error:
            log.warning("%s: is sent once it is sealed: %s", one.operation, error)
        self._time(one, "sent")

    async def _delivered(self, one: _Move, to: Handover, artifact: ArtifactId) -> None:
        """It is verified and kept there, and that is noted. Raises KybernateError, OSError."""
        await self._peers.deliver(to, artifact, self._patience)
        # A registry that is away would leave nobody to go on.
        await self._loop.reports.flush(_DEADLINE)
        await self._kept(one, artifact)
        self._time(one, "delivered")

    async def _kept(self, one: _Move, artifact: ArtifactId) -> None:
        """From here on it must come to its end, also under the next agent: no deadline ends it."""
        one.artifact = artifact
        one.operation.due_at = self._node.world.wall() + _FOR_GOOD
        self._noted(one.operation)
        await self._note(one)


def _count(sent: int) -> None:
    metrics.SAVED_BYTES.labels("send").inc(sent)
