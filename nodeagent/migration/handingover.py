"""The end of a move: the tree here is ended, and the successor told to go on, whatever it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.migration.notes import done
from kybernate.core.seat.operations import Progress
from kybernate.core.seat.seats import WITHOUT_TREE
from kybernate.errors import (
    ConflictError,
    CorruptError,
    DeadlineError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.types import ArtifactId, SeatState
from nodeagent.migration.journal import handover_of
from nodeagent.offload.leaving import see_there, where

if TYPE_CHECKING:
    from kybernate.core.migration.notes import MoveNote
    from kybernate.ports import Peers
    from nodeagent.app.loop import Loop
    from nodeagent.migration.journal import MoveJournal
    from nodeagent.migration.move import Move
    from nodeagent.seat.record import Seat

_DEADLINE = 10.0


class HandingOver:
    """Of this node's seats to their successors. Lives on the loop."""

    def __init__(self, loop: Loop, peers: Peers, journal: MoveJournal) -> None:
        self._loop = loop
        self._node = loop.node
        self._leavers = loop.dumps.leavers
        self._peers = peers
        self._journal = journal
        self._patience = loop.node.settings.transfer_deadline_s

    async def hand_over(self, one: Move, note: MoveNote) -> str:
        """Why the seat goes on here, where the successor never does; empty if the move is at its
        end. Raises KybernateError, OSError for what must be tried again."""
        seat = await self._ended(one)
        # From here on the successor may run: whoever calls for the seat, it does not wake.
        self._leavers.hand(one.operation.uid)
        one.say(f"the successor on node {note.node} is told to go on")
        if seat is not None:
            self._loop.adopted.stopped(seat, f"moved to node {note.node}")
        try:
            await one.until_done(lambda: self._told(note))
        except (RefusedError, ConflictError, CorruptError) as error:
            return await self._go_back(one, note, str(error))
        await self._seen_off(one, note, seat)
        return ""

    async def _ended(self, one: Move) -> Seat | None:
        """Once nothing of its tree is left: the seat, if there still is one."""
        while True:
            one.changed.clear()
            seat = self._node.seats.get(one.operation.uid)
            if seat is None:
                return None
            idle = seat.tasks.work is None or seat.tasks.work.done()
            if seat.state is SeatState.WAITING or (seat.state in WITHOUT_TREE and idle):
                return seat
            await one.changed.wait()

    async def _told(self, note: MoveNote) -> None:
        to, artifact = handover_of(note), ArtifactId(note.artifact)
        await self._loop.reports.flush(_DEADLINE)
        try:
            await self._peers.take_over(to, artifact, self._patience)
        except NotFoundError:
            # What it kept is gone meanwhile: it is here, too.
            await self._peers.deliver(to, artifact, self._patience)
            await self._peers.take_over(to, artifact, self._patience)
        except (RetryableError, DeadlineError):
            # Of a pod of this node its own journal knows as well who goes on.
            if self._node.world.registry is not None or self._is_here(note):
                await see_there(self._peers, to, _DEADLINE)
            raise

    async def _seen_off(self, one: Move, note: MoveNote, seat: Seat | None) -> None:
        """The successor goes on."""
        there = where(handover_of(note))
        self._leavers.leave(one.operation.uid, there, note.successor.name)
        await self._journal.write_at_last(done(note))
        one.reached("all", self._node.world.now())
        if seat is not None:
            seat.history.explained(there)
            self.let_go(note)
            self._node.changed(seat)
            self._loop.life.aside(self._loop.dumps.open(seat))
        one.end(Progress.SUCCEEDED, f"{there} ({note.artifact}); delete this pod")

    def let_go(self, note: MoveNote) -> None:
        """The successor has the state, on this node: no other seat here names it. After the move is
        noted as done, since until then the seat's record tells how far it is."""
        seat = self._node.seats.get(note.pod.uid)
        if seat is not None and seat.saved.artifact == note.artifact and self._is_here(note):
            self._loop.dumps.let_go(seat)

    def _is_here(self, note: MoveNote) -> bool:
        return note.node == self._node.settings.node

    async def _go_back(self, one: Move, note: MoveNote, why: str) -> str:
        """The successor never goes on: the pod succeeds itself, unless somebody else did."""
        uid, namespace = one.operation.uid, one.operation.namespace

        async def claimed() -> None:
            artifact = ArtifactId(note.artifact)
            await self._loop.registry.claim(namespace, uid, artifact, uid, _DEADLINE)

        try:
            await one.until_done(claimed)
        except (ConflictError, RefusedError) as error:
            lost = f"{why}, and it can't go on here: {error}"
            self._leavers.leave(uid, lost)
            await self._journal.write_at_last(done(note, lost))
            one.end(Progress.FAILED, lost)
            return ""
        return f"{why}; it goes on here"
