"""What each table of faults is made of: what breaks, what comes of it, and the test of that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """A row: `fault` is what breaks, `end` what comes of it for the user; `test` its own test."""

    fault: str
    end: str
    test: str

    def lines(self) -> tuple[str, ...]:
        """What the page says: a line, and those below it."""
        return f"**{self.fault}**: {self.end}", f"`{self.test.rpartition('/')[2]}`"
