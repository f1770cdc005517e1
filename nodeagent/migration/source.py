"""Moves: a seat's workload goes on in another pod, with its state as it is here: on another node,
or on this one (`within`), where nothing is sent and this agent is that of both.

    the operation's record     the wish: the successor is found, and asked whether it waits and
                               whether its node has room
    `move/<uid>`               it does
    (blocks go in advance)     those of a state of before, if one lies here
    DUMPING                    the tree is written down, and sent while it is
    `move/<uid>` `artifact`    the successor's node has verified and kept it: it may go on
    DUMPING with `artifact`    from here on the tree is ended, and the successor goes on
    `move/<uid>` `done`        it does, and nothing ever wakes the seat here again
    (lets go)                  on the same node: its record names the state no more

An agent that dies before the seat's record has the artifact leaves the tree here, and its successor
begins the move anew; afterwards the move is brought to its end, however long that takes. Where the
other node says that its pod never takes the state, the seat goes on here, from the same state.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import TYPE_CHECKING

from kybernate.core.migration.notes import Found, goes_on_there, outdated
from kybernate.core.migration.plan import plan_move, why_unmovable
from kybernate.core.seat.operations import Progress, Verdict
from kybernate.errors import KybernateError, RefusedError
from kybernate.lib.retry import AGAIN
from nodeagent.migration.cancel import CallOffs
from nodeagent.migration.departure import Departure
from nodeagent.migration.handingover import HandingOver
from nodeagent.migration.journal import MoveJournal, handover_of
from nodeagent.migration.meeting import Meeting
from nodeagent.migration.move import Move
from nodeagent.offload.leaving import where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.core.migration.notes import MoveNote
    from kybernate.core.seat.operations import SeatFacts
    from kybernate.ports import Peers
    from kybernate.types import PodUid
    from nodeagent.app.loop import Loop
    from nodeagent.operations.record import Ask, Operation

log = logging.getLogger(__name__)


class Moves:
    """All moves that begin on this node: implements `carrier.Carrier`. `noted` is told of what has
    changed about an operation."""

    def __init__(self, loop: Loop, peers: Peers, noted: Callable[[Operation], None]) -> None:
        self._loop = loop
        self._node = loop.node
        self._leavers = loop.dumps.leavers
        self._noted = noted
        self._all: dict[str, Move] = {}
        self._turns: weakref.WeakValueDictionary[PodUid, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._journal = MoveJournal(loop.node.world.journal)
        self._offs = CallOffs(loop.node.world.journal, peers, loop.life.aside)
        self._meeting = Meeting(loop, peers, self._journal, self._offs)
        self._departure = Departure(loop, peers, self._journal)
        self._handing = HandingOver(loop, peers, self._journal)

    # --- the wish -------------------------------------------------------------------------------

    def why_refused(self, seat: SeatFacts | None, ask: Ask) -> str:
        """See `Carrier.why_refused`."""
        return why_unmovable(seat, ask.successor) if seat else "it has no seat here"

    def plan(self, seat: SeatFacts | None, ask: Ask) -> tuple[str, ...]:
        """See `Carrier.plan`."""
        if self._leavers.went_to(ask.uid, ask.successor):
            return (f"{self._leavers.where(ask.uid)}: nothing is moved.",)
        return plan_move(seat, ask.uid, ask.successor) if seat else ()

    def begin(self, operation: Operation, *, again: bool = False) -> None:
        """See `Carrier.begin`."""
        uid = operation.uid
        if self._leavers.went_to(uid, operation.successor):
            # Also one whose end the last agent had no time to note.
            one = self._all[operation.name] = Move(operation, self._noted, self._node.world.now())
            one.end(Progress.SUCCEEDED, self._leavers.where(uid))
            return
        one = self._all[operation.name] = self._move(operation, again=again)
        if not one.gone:
            self._journal.outdate(uid)
            self._leavers.stay(uid)
        one.task = asyncio.create_task(self._guarded(one))

    def verdict(self, operation: Operation, seat: SeatFacts | None) -> Verdict:
        """See `Carrier.verdict`."""
        one = self._all.get(operation.name)
        if one is None:
            return Verdict(operation.state, operation.sentence)
        running = Progress.RUNNING if one.met else Progress.PENDING
        return one.verdict or Verdict(running, one.sentence)

    def drop(self, operation: Operation) -> None:
        """See `Carrier.drop`. Raises RefusedError once its processes are ended."""
        # One that is overdue when the next agent comes is not begun again.
        one = self._all.get(operation.name) or self._move(operation, again=True)
        if one.gone:
            raise RefusedError(
                f"{operation} can't be taken back: the state is the successor's; delete that pod "
                "if nobody is to go on"
            )
        if one.task is not None:
            one.task.cancel()
        self._loop.life.aside(self._stay(one))

    def ended(self, operation: Operation) -> None:
        """See `Carrier.ended`."""
        self._all.pop(operation.name, None)

    def look(self) -> None:
        """See `Carrier.look`."""
        for one in self._all.values():
            one.changed.set()

    # --- over restarts --------------------------------------------------------------------------

    def resume(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """What the last agent noted; before operations are put again."""
        self._offs.load(records)
        for note, do in self._journal.load(records, self._node.seats):
            match do:
                case Found.FORGET:
                    self._journal.delete(note.pod.uid)
                case Found.KEEP_ASLEEP:
                    self._leave(note)
                    self._loop.life.aside(self._loop.dumps.open(self._node.seats[note.pod.uid]))
                case Found.CALL_OFF:
                    self._call_off(note)
                case Found.GO_ON:
                    pass  # its operation is put again

    def _leave(self, note: MoveNote) -> None:
        """It goes on elsewhere, or nowhere, as the last agent saw."""
        uid = note.pod.uid
        if note.lost:
            self._leavers.leave(uid, note.lost)
        else:
            self._leavers.leave(uid, where(handover_of(note)), note.successor.name)
            self._handing.let_go(note)

    def _call_off(self, note: MoveNote) -> None:
        """The last agent died before it did."""
        self._loop.arrived.call_off(note.pod.uid, note.successor.uid)
        self._offs.owe(to := handover_of(note))
        self._journal.delete(note.pod.uid)
        self._loop.life.aside(self._offs.tell(to))

    def _move(self, operation: Operation, *, again: bool) -> Move:
        """`again`: perhaps past the point from where on the successor goes on."""
        one = Move(operation, self._noted, began=self._node.world.now())
        if again and (note := self._journal.recall(operation)) is not None:
            seat = self._node.seats.get(operation.uid)
            state, artifact = (seat.state, seat.saved.artifact) if seat is not None else (None, "")
            one.gone = one.met = goes_on_there(note, state, artifact)
            one.note = note if one.gone else outdated(note)
            if not one.gone:
                # The workload may go on here: nobody goes on from what was handed over before.
                self._loop.arrived.call_off(note.pod.uid, note.successor.uid)
        return one

    # --- one move -------------------------------------------------------------------------------

    async def _guarded(self, one: Move) -> None:
        try:
            async with self._turn(one):
                pass  # one that was cancelled a moment ago has left the seat as it was
            if not one.gone:
                note = await self._meeting.meet(one)
                one.met = True
                await self._meeting.stage(one, note)
                await self._departure.leave(one, note)
        except (KybernateError, OSError) as error:
            await self._fail(one, str(error))
        except Exception as error:
            log.exception("%s failed unexpectedly", one.operation)
            await self._fail(one, f"the agent failed unexpectedly: {error}")
        else:
            await self._see_through(one)

    async def _see_through(self, one: Move) -> None:
        """The successor may have the state: whatever goes wrong, the seat doesn't go on here but by
        a claim of its own."""
        while one.verdict is None and one.note is not None:
            try:
                if why := await self._handing.hand_over(one, one.note):
                    await self._fail(one, why)
            except (KybernateError, OSError) as error:
                one.say(f"{error}; trying again")
            except Exception as error:
                log.exception("%s failed unexpectedly", one.operation)
                one.say(f"the agent failed unexpectedly: {error}; trying again")
            if one.verdict is None:
                await asyncio.sleep(AGAIN.first)

    async def _fail(self, one: Move, why: str) -> None:
        await self._stay(one)
        one.end(Progress.FAILED, why)

    async def _stay(self, one: Move) -> None:
        """The seat goes on here as if nothing had been."""
        async with self._turn(one):
            await self._taken_back(one)
        if one.note is not None:
            await self._offs.tell(handover_of(one.note))

    async def _taken_back(self, one: Move) -> None:
        uid = one.operation.uid
        self._leavers.going.pop(uid, None)
        if one.note is not None:
            one.note = outdated(one.note)
            if one.met:
                await self._journal.write_at_last(one.note)
            # One that says no may have had something from the agent before this one.
            self._offs.owe(handover_of(one.note))
        self._journal.delete(uid)
        self._leavers.stay(uid)
        if uid in self._node.seats:
            self._loop.ask_for_tier(uid, None)
            self._loop.let_stay(uid)
            if one.served:
                self._loop.call_for(uid, "it goes on here: its move came to nothing")

    def _turn(self, one: Move) -> asyncio.Lock:
        lock = self._turns.get(one.operation.uid)
        if lock is None:
            lock = self._turns[one.operation.uid] = asyncio.Lock()
        return lock
