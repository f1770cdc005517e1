"""A deadline that the threads of one operation look at between steps."""

from __future__ import annotations

import threading
import time

from kybernate.errors import DeadlineError


class Deadline:
    """`seconds` from now on. Any thread may ask, any may cancel."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds
        self._cancelled = threading.Event()

    @property
    def left(self) -> float:
        """Seconds until it passes; 0.0 if it has."""
        return max(0.0, self._ends - time.monotonic())

    def cancel(self) -> None:
        """As if it had passed: the operation ends at its next step."""
        self._cancelled.set()

    def check(self) -> None:
        """Raises DeadlineError if it has passed."""
        if self._cancelled.is_set() or not self.left:
            raise DeadlineError("the saved state was not done with in time; what is done is kept")
