"""The acts of a migration's steps at its source: what each changes on this node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.migration.protocol import Act
from nodeagent.migration.journal import handover_of
from nodeagent.offload.departures import where

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from kybernate.core.migration.notes import MoveNote
    from kybernate.types import PodUid
    from nodeagent.migration.agent import Agent
    from nodeagent.migration.cancel import CallOffs
    from nodeagent.migration.journal import MoveJournal


class SourceActs:
    """Each may be done again without harm. Lives on the loop."""

    def __init__(self, agent: Agent, journal: MoveJournal, offs: CallOffs) -> None:
        self._agent = agent
        self._node = agent.node
        self._departures = agent.offload.departures
        self._journal = journal
        self._offs = offs

    def do(self, act: Act, uid: PodUid, note: MoveNote | None) -> Awaitable[None] | None:
        """What must be awaited before the next act, if anything. `note`: as it has to be after the
        step, None if no successor was found. Raises what the awaited one does."""
        match act:
            case Act.FORGET_NOTE:
                self._journal.delete(uid)
            case Act.MAY_WAKE:
                self._departures.stay(uid)
            case Act.STAY:
                self._departures.stay(uid)
                self.serve(uid)
            case Act.SLEEP:
                self._departures.hand(uid)
            case Act.OPEN:
                self._open(uid)
            case _ if note is not None:
                return self._do_noted(act, uid, note)
            case _:
                pass
        return None

    def _do_noted(self, act: Act, uid: PodUid, note: MoveNote) -> Awaitable[None] | None:
        """With the successor."""
        match act:
            case Act.NOTE:
                self._journal.put(note)
            case Act.NOTE_SYNCED:
                return self._journal.write(note)
            case Act.NOTE_AT_LAST:
                return self._journal.write_at_last(note)
            case Act.WITHDRAW_CANCEL:
                return self._offs.withdraw(handover_of(note))
            case Act.OWE_CANCEL:
                self._offs.owe(handover_of(note))
            case Act.TAKE_BACK:
                self._agent.custody.call_off(uid, note.successor.uid)
            case Act.SLEEP_FOR_GOOD:
                self._leave(uid, note)
            case Act.REPORT_STOPPED:
                self._stopped(uid, note)
            case Act.LET_GO:
                self._let_go(uid, note)
            case _:
                raise AssertionError(f"{act} is none of the source's")
        return None

    def serve(self, uid: PodUid) -> None:
        """The seat may be on its GPUs."""
        if uid in self._node.seats:
            self._agent.operators.ask_for_tier(uid, None)
            self._agent.operators.let_stay(uid)

    def _open(self, uid: PodUid) -> None:
        if (seat := self._node.seats.get(uid)) is not None:
            self._agent.aside(self._agent.offload.gates.open(seat))

    def _leave(self, uid: PodUid, note: MoveNote) -> None:
        there = note.lost or where(handover_of(note))
        self._departures.leave(uid, there, "" if note.lost else note.successor.name)
        if (seat := self._node.seats.get(uid)) is not None:
            seat.history.explained(there)
            self._node.changed(seat)

    def _stopped(self, uid: PodUid, note: MoveNote) -> None:
        if (seat := self._node.seats.get(uid)) is not None:
            self._agent.succession.stopped(seat, f"moved to node {note.node}")

    def _let_go(self, uid: PodUid, note: MoveNote) -> None:
        """The successor has the state, on this node: no other seat here names it. After the move is
        noted as done, since until then the seat's record tells how far it is."""
        seat = self._node.seats.get(uid)
        named = seat is not None and seat.saved.artifact == note.artifact
        if seat is not None and named and self._agent.is_here(note.node):
            self._agent.offload.let_go(seat)
