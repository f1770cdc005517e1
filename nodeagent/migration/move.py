"""One migration as the agent at its source has it."""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.core.migration.protocol import State
from kybernate.core.seat.operations import Progress, Verdict
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.core.migration.notes import MoveNote
    from kybernate.core.migration.protocol import Migration
    from nodeagent.operations.record import Operation
    from nodeagent.seat.record import Seat

_PENDING = (State.SEEKING, State.ASKING)


@dataclass(slots=True, eq=False)
class Move:
    """`at`: how far it is, which `Source` alone changes; `noted` is told of what has changed about
    the operation; `served`: requests were answered when the seat was sent away; `why` it came to
    nothing; `changed`: something about its seat has."""

    operation: Operation
    noted: Callable[[Operation], None]
    at: Migration
    served: bool = False
    why: str = ""
    sentence: str = "the successor is looked for"
    verdict: Verdict | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def note(self) -> MoveNote:
        """Whom the state goes to; only once the successor was found."""
        assert self.at.note is not None  # noqa: S101 - the table has it from FOUND on
        return self.at.note

    @property
    def progress(self) -> Progress:
        """Whether anything has been done about the seat yet."""
        return Progress.PENDING if self.at.state in _PENDING else Progress.RUNNING

    def say(self, sentence: str) -> None:
        """How far it is, for people."""
        if self.sentence != sentence:
            self.sentence = sentence
            self.noted(self.operation)

    def again(self, error: Exception) -> None:
        """It failed, and is tried again: people read why it takes so long."""
        self.say(f"{error}; trying again")

    def end(self, progress: Progress, sentence: str) -> None:
        """Nothing more becomes of it."""
        self.verdict = Verdict(progress, sentence)
        self.operation.took(self.at.phases)
        self.noted(self.operation)


def is_idle(seat: Seat) -> bool:
    """Whether no step of the seat's own is under way."""
    return seat.tasks.work is None or seat.tasks.work.done()
