"""The end of a call, for all that is done for it."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kybernate.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALL_S = 10.0
"""Seconds of one call to the registry, to another node's agent or to a library of the driver's.
Each takes milliseconds: an answer that takes a thousand times as long won't come, and a caller
still has the time to ask again within the minute that a move or a restore is given."""

LATE = "it was not done with in time; what is done is kept"


class Deadline:
    """`seconds` from now on, or less: until it is cancelled. Any thread may ask, any may cancel."""

    def __init__(
        self,
        seconds: float,
        late: str = LATE,
        cancelled: threading.Event | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`late` is the sentence of its errors; `clock` is the machine's if none is given."""
        self._clock = clock or time.monotonic
        self._ends = self._clock() + seconds
        self._late = late
        self._cancelled = cancelled or threading.Event()

    @property
    def left(self) -> float:
        """Seconds until it passes; 0.0 if it has."""
        return 0.0 if self._cancelled.is_set() else max(0.0, self._ends - self._clock())

    @property
    def passed(self) -> bool:
        """Whether nothing is left."""
        return not self.left

    def cancel(self) -> None:
        """As if it had passed: the operation ends at its next step."""
        self._cancelled.set()

    def check(self, late: str = "") -> None:
        """Raises DeadlineError, which says so, if it has passed."""
        if self._cancelled.is_set():
            raise DeadlineError("it was given up, since nobody waits for it any more")
        if self._clock() >= self._ends:
            raise DeadlineError(late or self._late)

    @contextmanager
    def holding(self, lock: threading.Lock, late: str) -> Iterator[None]:
        """With the lock, if it can be had in time. Raises DeadlineError."""
        if not lock.acquire(timeout=self.left):
            raise DeadlineError(late)
        try:
            self.check()
            yield
        finally:
            lock.release()
