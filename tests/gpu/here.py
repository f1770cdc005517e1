"""What a part of the day has to work with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Value = bool | float | str | None
Answer = tuple[str, Value, str]
"""An answer's name, its value, and a sentence; a value of None says by the sentence why."""


@dataclass(frozen=True, slots=True)
class Here:
    """GPUs by index, when the part is to end (`time.monotonic`), answers of parts before, and
    the most rounds of what is otherwise repeated until the time is over."""

    uuids: tuple[str, ...]
    until: float
    known: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 1 << 30
    disk: Path = Path("/var/tmp")

    @property
    def uuid(self) -> str:
        """The GPU that is asked."""
        return self.uuids[0]

    def left(self) -> float:
        """Seconds until the part is to end."""
        return self.until - time.monotonic()

    def another(self, until: float, least: int = 1) -> Callable[[int], bool]:
        """Whether another round is to be begun, after so many: at least so many, and then as long
        as one more fits before `until`, by what those since the first question have taken."""
        began = time.monotonic()

        def fits(number: int) -> bool:
            if number < least:
                return True
            now = time.monotonic()
            return number < self.rounds and now + 1.2 * (now - began) / number < until

        return fits
