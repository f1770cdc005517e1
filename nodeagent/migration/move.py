"""One move of a seat to another node, as the agent that carries it out has it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate.core.seat.operations import Progress, Verdict
from kybernate.errors import RefusedError
from nodeagent.offload.leaving import persistently

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kybernate.core.migration.notes import MoveNote
    from nodeagent.operations.record import Operation
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat


@dataclass(slots=True, eq=False)
class Move:
    """`noted` is told of what has changed about the operation.

    `note`: who was asked, and what the other node keeps; `met`: the successor was there and waited;
    `gone`: the tree here is ended, or will be; `served`: requests were answered when it began;
    `began`: when that was; `phases`: seconds since then by what had been reached.
    """

    operation: Operation
    noted: Callable[[Operation], None]
    began: float
    note: MoveNote | None = None
    met: bool = False
    gone: bool = False
    served: bool = False
    sentence: str = "the successor is looked for"
    verdict: Verdict | None = None
    phases: dict[str, float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def artifact(self) -> str:
        """What the other node keeps; empty if it keeps nothing yet."""
        return self.note.artifact if self.note is not None else ""

    def say(self, sentence: str) -> None:
        """How far it is, for people."""
        if self.sentence != sentence:
            self.sentence = sentence
            self.noted(self.operation)

    async def until_done(self, call: Callable[[], Awaitable[None]]) -> None:
        """As `persistently`; people read why it takes so long."""
        await persistently(call, self.say)

    def reached(self, phase: str, now: float) -> None:
        """It has come so far."""
        self.phases[phase] = now - self.began

    def end(self, progress: Progress, sentence: str) -> None:
        """Nothing more becomes of it."""
        self.verdict = Verdict(progress, sentence)
        self.operation.phases = self.phases
        self.noted(self.operation)


def seat_of(one: Move, node: Node) -> Seat:
    """Raises RefusedError if there is none any more."""
    seat = node.seats.get(one.operation.uid)
    if seat is None:
        raise RefusedError("its pod is gone, and with it what the seat held")
    return seat
