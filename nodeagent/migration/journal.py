"""What the journal has of moves: how far each is, for the agent after this one."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kybernate.core.migration.notes import Found, MoveNote, found, note_of, outdated
from kybernate.core.seat.operations import ENDED
from kybernate.lib.retry import AGAIN
from kybernate.ports import Handover
from nodeagent.operations.record import OPERATION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from kybernate.ports import Journal
    from kybernate.types import PodUid
    from nodeagent.operations.record import Operation

log = logging.getLogger(__name__)

MOVE = "move/"
"""Journal keys of moves of seats, by the pod's UID."""


class MoveJournal:
    """The notes of this node's moves, one for a pod. Lives on the loop."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._left: dict[PodUid, MoveNote] = {}

    def load(
        self, records: Mapping[str, Mapping[str, object]], seated: Collection[PodUid]
    ) -> Iterator[tuple[MoveNote, Found]]:
        """What the last agent has left, and what is to be done about each; `seated`: pods that have
        seats here."""
        for note in _notes(records):
            do = found(note, seated=note.pod.uid in seated, live=_is_live(records, note))
            if do is not Found.CALL_OFF:
                self._left[note.pod.uid] = note
            yield note, do

    def recall(self, operation: Operation) -> MoveNote | None:
        """What the last agent has left of the operation's move."""
        note = self._left.get(operation.uid)
        return note if note is not None and note.operation == operation.name else None

    def outdate(self, uid: PodUid) -> None:
        """The workload may go on here from now on, and no later agent may believe what was noted of
        its state."""
        note = self._left.pop(uid, None)
        if note is not None and note.artifact:
            self.put(outdated(note))

    def put(self, note: MoveNote) -> None:
        """Noted, before whatever is noted later."""
        self._journal.put(MOVE + note.pod.uid, note.record(), synced=False)

    async def write(self, note: MoveNote) -> None:
        """On the disk when this returns. Raises OSError."""
        await self._journal.put(MOVE + note.pod.uid, note.record(), synced=True)

    async def write_at_last(self, note: MoveNote) -> None:
        """The same, however long the disk takes."""
        while True:
            try:
                await self.write(note)
                break
            except OSError as error:
                log.warning("how %s was moved can't be written: %s", note.pod, error)
                await asyncio.sleep(AGAIN.first)

    def delete(self, uid: PodUid) -> None:
        """Nothing becomes of it any more."""
        self._journal.delete(MOVE + uid)


def handed_over(records: Mapping[str, Mapping[str, object]]) -> set[PodUid]:
    """The seats whose successors may go on, by the journal: of moves that have not ended."""
    return {note.pod.uid for note in _notes(records) if note.artifact and _is_live(records, note)}


def handover_of(note: MoveNote) -> Handover:
    """Who goes where."""
    return Handover(note.pod, note.successor, note.node)


def _notes(records: Mapping[str, Mapping[str, object]]) -> Iterator[MoveNote]:
    return (note_of(record) for key, record in records.items() if key.startswith(MOVE))


def _is_live(records: Mapping[str, Mapping[str, object]], note: MoveNote) -> bool:
    operation = records.get(OPERATION + note.operation)
    return operation is not None and operation["state"] not in ENDED
