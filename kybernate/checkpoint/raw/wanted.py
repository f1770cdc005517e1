"""In which order the memory of a lent artifact is verified: what CRIU waits for first, then what
comes behind it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from kybernate.checkpoint import marks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kybernate.lib.deadline import Deadline

_POLL = 0.001


class Filled:
    """One pages file: `left` has a zero for each piece that nobody works on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks = marks.Marks(path)
        self.left = self.marks.states()


Piece = tuple[Filled, int]


class Order:
    """Gives each piece to one thread."""

    def __init__(self, files: list[Filled]) -> None:
        self._files = files
        self._at = (0, 0)
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Nothing more is given."""
        self._stopped = True

    def wanted(self, deadline: Deadline) -> Iterator[Piece]:
        """What CRIU waits for, as soon as it does; until nothing is left. Raises DeadlineError."""
        while self._any_left():
            deadline.check()
            with self._lock:
                found = self._given(next(self._asked_for(), None))
            if found is None:
                time.sleep(_POLL)
            else:
                yield found

    def following(self) -> Iterator[Piece]:
        """What comes behind the last one that was given; until nothing is left."""
        while not self._stopped:
            with self._lock:
                found = self._given(next(self._next(), None))
            if found is None:
                return
            yield found

    def _given(self, found: tuple[int, int] | None) -> Piece | None:
        if found is None:
            return None
        number, piece = found
        self._files[number].left[piece] = marks.THERE
        self._at = number, piece + 1
        return self._files[number], piece

    def _any_left(self) -> bool:
        return not self._stopped and any(file.left.find(0) >= 0 for file in self._files)

    def _asked_for(self) -> Iterator[tuple[int, int]]:
        for number, file in enumerate(self._files):
            piece = file.marks.wanted()
            if 0 <= piece < len(file.left) and not file.left[piece]:
                yield number, piece

    def _next(self) -> Iterator[tuple[int, int]]:
        number, piece = self._at
        for step in range(len(self._files)):
            other = (number + step) % len(self._files)
            file = self._files[other]
            found = file.left.find(0, 0 if step else piece)
            if found < 0:
                found = file.left.find(0)
            if found >= 0:
                yield other, found
