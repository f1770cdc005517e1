"""What carries out operations that take more than a wish put into a seat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kybernate.core.seat.operations import SeatFacts, Verdict
    from nodeagent.operations.record import Ask, Operation


class Carrier(Protocol):
    """Operations of one kind. `seat` is None where an operation is about the node, or its seat is
    gone. Calls come on the loop and are quick."""

    def why_refused(self, seat: SeatFacts | None, ask: Ask) -> str:
        """Why this can't be asked, whatever happens; empty if it can."""
        ...

    def plan(self, seat: SeatFacts | None, ask: Ask) -> tuple[str, ...]:
        """What it would do, in order."""
        ...

    def begin(self, operation: Operation, *, again: bool = False) -> None:
        """Put the wish; `again` after a restart of the agent."""
        ...

    def verdict(self, operation: Operation, seat: SeatFacts | None) -> Verdict:
        """How far it is."""
        ...

    def drop(self, operation: Operation) -> None:
        """Take the wish back. Raises RefusedError if it is too late for that."""
        ...

    def ended(self, operation: Operation) -> None:
        """Nothing more becomes of it."""
        ...

    def look(self) -> None:
        """Something has changed: do what can be done now."""
        ...
