"""What the journal has of moves: how far each is, for the agent after this one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.core.migration.notes import MoveNote, note_of
from kybernate.core.seat.operations import ENDED
from kybernate.lib.retry import retry
from kybernate.ports import Handover
from nodeagent.operations.record import OPERATION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kybernate.ports import Journal
    from kybernate.types import PodUid

log = logging.getLogger(__name__)

MOVE = "move/"
"""Journal keys of moves of seats, by the pod's UID."""


class MoveJournal:
    """The notes of this node's moves, one for a pod. Lives on the loop."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last: dict[PodUid, MoveNote] = {}

    def load(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """What the last agent has left."""
        self._last = {note.pod.uid: note for note in notes_of(records)}

    def is_done(self, uid: PodUid) -> bool:
        """Whether it is noted that nothing wakes the seat here again."""
        note = self._last.get(uid)
        return note is not None and note.done

    def put(self, note: MoveNote) -> None:
        """Noted, before whatever is noted later."""
        if self._last.get(note.pod.uid) != note:
            self._last[note.pod.uid] = note
            self._journal.put(MOVE + note.pod.uid, note.record(), synced=False)

    async def write(self, note: MoveNote) -> None:
        """On the disk when this returns. Raises OSError."""
        self._last[note.pod.uid] = note
        await self._journal.put(MOVE + note.pod.uid, note.record(), synced=True)

    async def write_at_last(self, note: MoveNote) -> None:
        """The same, however long the disk takes."""

        def say(error: Exception) -> None:
            log.warning("how %s was moved can't be written: %s", note.pod, error)

        await retry(lambda: self.write(note), say, on=OSError)

    def delete(self, uid: PodUid) -> None:
        """Nothing becomes of it any more."""
        self._last.pop(uid, None)
        self._journal.delete(MOVE + uid)


def may_be_elsewhere(records: Mapping[str, Mapping[str, object]]) -> set[PodUid]:
    """The seats whose successors may continue, by the journal: of moves that have not ended."""
    return {note.pod.uid for note in notes_of(records) if note.artifact and is_live(records, note)}


def handover_of(note: MoveNote) -> Handover:
    """Who goes where."""
    return Handover(note.pod, note.successor, note.node)


def notes_of(records: Mapping[str, Mapping[str, object]]) -> Iterator[MoveNote]:
    """What the last agent has left."""
    return (note_of(record) for key, record in records.items() if key.startswith(MOVE))


def is_live(records: Mapping[str, Mapping[str, object]], note: MoveNote) -> bool:
    """Whether the operation of the note has not ended."""
    operation = records.get(OPERATION + note.operation)
    return operation is not None and operation["state"] not in ENDED
