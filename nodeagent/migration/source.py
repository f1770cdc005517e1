"""The source of migrations: a seat's workload continues in another pod, with its state as it is
here, on another node or on this one (`within`), where nothing is sent and this agent is both ends.

`kybernate.core.migration.protocol` says what comes after what. Here each event of a move is taken
to its next state, the acts of that step are carried out in their order (`sourceacts`), and then the
work of the state is done (`sourcework`), until the migration is over. The journal has a note of
each, `move/<uid>`, from which the next agent continues.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kybernate.core.migration.plan import plan_move, why_unmovable
from kybernate.core.migration.protocol import (
    OVER,
    Act,
    Event,
    Migration,
    State,
    Survived,
    advance,
    resume,
    takes,
)
from kybernate.core.seat.operations import Progress, Verdict
from kybernate.errors import (
    DeadlineError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.lib.retry import AGAIN
from nodeagent.migration.cancel import CallOffs
from nodeagent.migration.journal import MoveJournal, handover_of, is_live, notes_of
from nodeagent.migration.move import Move
from nodeagent.migration.sourceacts import SourceActs
from nodeagent.migration.sourcework import Happened, SourceWork
from nodeagent.offload.departures import where
from nodeagent.operations.record import words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.core.migration.notes import MoveNote
    from kybernate.core.migration.protocol import Step
    from kybernate.core.seat.operations import SeatFacts
    from kybernate.ports import Peers
    from kybernate.types import PodUid
    from nodeagent.migration.agent import Agent
    from nodeagent.operations.record import Ask, Operation
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_FOR_GOOD = 10 * 365 * 86_400.0
"""Seconds. What must come to its end has no deadline any more."""
_LATER = (RetryableError, DeadlineError, NotFoundError)


class Source:
    """All migrations that begin on this node: implements `carrier.Carrier`. `noted` is told of what
    has changed about an operation. Implements `node.Observer`."""

    def __init__(self, agent: Agent, peers: Peers, noted: Callable[[Operation], None]) -> None:
        self._agent = agent
        self._node = agent.node
        self._departures = agent.offload.departures
        self._noted = noted
        self._all: dict[str, Move] = {}
        self._found: dict[str, MoveNote] = {}
        self._turns: KeyedLocks[PodUid, asyncio.Lock] = KeyedLocks(asyncio.Lock)
        self._offs = CallOffs(agent.node.world.journal, peers, agent.aside)
        self._journal = MoveJournal(agent.node.world.journal)
        self._acts = SourceActs(agent, self._journal, self._offs)
        self._work = SourceWork(agent, peers, self._offs, self._on)

    # --- the wish -------------------------------------------------------------------------------

    def why_refused(self, seat: SeatFacts | None, ask: Ask) -> str:
        """See `Carrier.why_refused`."""
        return why_unmovable(seat, ask.successor) if seat else "it has no seat here"

    def plan(self, seat: SeatFacts | None, ask: Ask) -> tuple[str, ...]:
        """See `Carrier.plan`."""
        if self._departures.went_to(ask.uid, ask.successor):
            return (f"{self._departures.where(ask.uid)}: nothing is moved.",)
        return plan_move(seat, ask.uid, ask.successor) if seat else ()

    def begin(self, operation: Operation, *, again: bool = False) -> None:
        """See `Carrier.begin`."""
        if self._departures.went_to(operation.uid, operation.successor):
            # Also one whose end the last agent had no time to note.
            one = Move(operation, self._noted, Migration(self._node.world.now(), State.MOVED))
            one.end(Progress.SUCCEEDED, self._departures.where(operation.uid))
        else:
            one = self._resumed(operation) if again else self._new(operation)
            one.task = asyncio.create_task(self._carry_out(one))
        self._all[operation.name] = one

    def verdict(self, operation: Operation, seat: SeatFacts | None) -> Verdict:
        """See `Carrier.verdict`."""
        one = self._all.get(operation.name)
        if one is None:
            return Verdict(operation.state, operation.sentence)
        return one.verdict or Verdict(one.progress, one.sentence)

    def drop(self, operation: Operation) -> None:
        """See `Carrier.drop`. Raises RefusedError once its processes are ended."""
        # One that is overdue when the next agent comes is not begun again.
        one = self._all.get(operation.name) or self._resumed(operation)
        if one.at.state in (State.CANCELLING, State.STAYED):
            return
        if not takes(one.at.state, Event.CANCEL):
            raise RefusedError(
                f"{operation} can't be taken back: the state is the successor's; delete that pod "
                "if nobody is to continue"
            )
        if one.task is not None:
            one.task.cancel()
        self._agent.aside(self._see_cancelled(one, self._step(one, Happened(Event.CANCEL))))

    def ended(self, operation: Operation) -> None:
        """See `Carrier.ended`."""
        self._all.pop(operation.name, None)
        # Once the end is noted: until then the next agent tells by the note how it ended.
        asyncio.get_running_loop().call_soon(self._forget_done, operation.uid)

    def look(self) -> None:
        """See `Carrier.look`."""
        for one in self._all.values():
            one.changed.set()

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`: operations have each move look."""

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._forget_done(seat.uid)

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """See `node.Observer`."""

    def _forget_done(self, uid: PodUid) -> None:
        """That nothing wakes it here again is noted for nobody, once it has neither a seat nor an
        operation that would end by it."""
        moves = any(one.operation.uid == uid for one in self._all.values())
        if self._journal.is_done(uid) and not moves and uid not in self._node.seats:
            self._departures.forget(uid)
            self._journal.delete(uid)

    # --- over restarts --------------------------------------------------------------------------

    def resume(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """What the last agent noted; before operations are put again."""
        self._offs.load(records)
        self._journal.load(records)
        for note in notes_of(records):
            uid, live = note.pod.uid, is_live(records, note)
            if live:
                self._found[note.operation] = note  # its operation is put again
            if live and not note.done:
                continue
            at, step = resume(self._survived(uid, note, live=live), self._node.world.now())
            self._do_at_once(step, uid, at.note)
            if at.state is State.CANCELLING:
                self._agent.aside(self._offs.tell(handover_of(note)))

    def _resumed(self, operation: Operation) -> Move:
        left = self._survived(operation.uid, self._found.pop(operation.name, None), live=True)
        at, step = resume(left, self._node.world.now())
        self._do_at_once(step, operation.uid, at.note)
        return Move(operation, self._noted, at, why=at.note.lost if at.note else "")

    def _new(self, operation: Operation) -> Move:
        return Move(operation, self._noted, Migration(self._node.world.now()))

    def _survived(self, uid: PodUid, note: MoveNote | None, *, live: bool) -> Survived:
        seat = self._node.seats.get(uid)
        if seat is None:
            return Survived(note, live, None)
        return Survived(note, live, seat.state, seat.saved.artifact)

    def _do_at_once(self, step: Step, uid: PodUid, note: MoveNote | None) -> None:
        """The acts of a step that `resume` gives: none of them has to be waited for."""
        for act in step.acts:
            self._acts.do(act, uid, note)

    # --- one move -------------------------------------------------------------------------------

    async def _carry_out(self, one: Move) -> None:
        async with self._turns[one.operation.uid]:
            pass  # one that was cancelled a moment ago has left the seat as it was
        while one.at.state not in OVER:
            try:
                await self._on(one, await self._work.of(one))
            except (KybernateError, OSError) as error:
                await self._failed(one, error)
            except Exception as error:
                log.exception("%s failed unexpectedly", one.operation)
                why = RefusedError(f"the agent failed unexpectedly: {error}")
                await self._failed(one, why)
        self._conclude(one)

    async def _failed(self, one: Move, error: Exception) -> None:
        """What may yet succeed is tried again; so is all once the successor may have the state:
        then the seat does not continue here but by a claim of its own."""
        state = one.at.state
        if isinstance(error, _LATER) and takes(state, Event.NOT_YET):
            one.again(error)
            await self._on(one, Happened(Event.NOT_YET))
        elif takes(state, Event.FAILED):
            one.why = str(error)
            await self._on(one, Happened(Event.FAILED))
            return
        else:
            one.again(error)
        await asyncio.sleep(AGAIN.first)

    async def _see_cancelled(self, one: Move, step: Step) -> None:
        async with self._turns[one.operation.uid]:
            await self._do(one, step)
        await self._on(one, await self._work.of(one))

    async def _on(self, one: Move, what: Happened) -> None:
        """Take an event: the acts of its step are done when this returns."""
        await self._do(one, self._step(one, what))

    def _step(self, one: Move, what: Happened) -> Step:
        now = self._node.world.now()
        of = {"note": what.note, "artifact": what.artifact, "why": what.why}
        one.at, step = advance(one.at, what.event, now, **of)  # type: ignore[arg-type]
        return step

    async def _do(self, one: Move, step: Step) -> None:
        uid, note = one.operation.uid, one.at.note
        for act in step.acts:
            if act is Act.NOTE_SYNCED:
                # From here on it must come to its end, also under the next agent.
                one.operation.lasts(self._node.world.wall() + _FOR_GOOD)
                one.noted(one.operation)
            if act is Act.SERVE:
                self._serve(one)
            elif (done := self._acts.do(act, uid, note)) is not None:
                await done
            if act is Act.STAY and one.served:
                why = "it continues here: its move came to nothing"
                self._agent.operators.request_wake(uid, why)

    def _serve(self, one: Move) -> None:
        """An agent that died may have sent it away for this already: while its successor is waited
        for, its requests are answered here."""
        seat = self._node.seats.get(one.operation.uid)
        if seat is not None and seat.wishes.leave == words(one.operation):
            self._acts.serve(seat.uid)

    def _conclude(self, one: Move) -> None:
        if one.at.state is State.MOVED:
            there = where(handover_of(one.note))
            sentence = f"{there} ({one.note.artifact}); delete this pod"
            one.end(Progress.SUCCEEDED, sentence)
        else:
            one.end(Progress.FAILED, one.why)
