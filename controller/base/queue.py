"""What is to be looked at, when: each key once, by one thread at a time, later after a failure.

Namespaces take turns: however much one asks for, another waits for one look at most of each.
"""

from __future__ import annotations

import heapq
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING

from kybernate.lib.retry import Pauses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Key = tuple[str, str]
"""Namespace and name."""

_PAUSES = Pauses(0.2, 60.0)


class Queue:
    """Safe to use from several threads. `clock` gives seconds.

    A key that is added while a thread has it is due again once it is done; of several times at
    which a key is due the first counts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._lines: dict[str, dict[Key, None]] = {}
        self._first: dict[Key, None] = {}
        self._held: set[Key] = set()
        self._pauses: dict[Key, Iterator[float]] = {}
        self._closed = False

    def add(self, key: Key, after: float = 0.0, *, first: bool = False) -> None:
        """Have the key looked at in so many seconds, or earlier; `first`: once it is due, before
        others of its namespace."""
        at = self._clock() + after
        with self._changed:
            if first:
                self._first[key] = None
            if at < self._due.get(key, float("inf")):
                self._due[key] = at
                heapq.heappush(self._heap, (at, key))
                self._changed.notify()

    def get(self) -> Key | None:
        """The next key that is due, once it is; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                wait = self._line_up()
                if (key := self._take_turn()) is not None:
                    return key
                self._changed.wait(wait)
            return None

    def done(self, key: Key, *, failed: bool = False) -> None:
        """The thread that got the key has looked at it. After a failure it is due again, later each
        time."""
        with self._changed:
            self._held.discard(key)
            if not failed:
                self._pauses.pop(key, None)
            pause = next(self._pauses.setdefault(key, iter(_PAUSES))) if failed else None
            self._changed.notify()
        if pause is not None:
            self.add(key, pause)

    def close(self) -> None:
        """Whoever waits for a key gets None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        now = self._clock()
        with self._changed:
            return sum(at <= now for at in self._due.values())

    def _line_up(self) -> float | None:
        """Put what is due behind the others of its namespace; in how many seconds the next will be,
        None: not until a change."""
        now = self._clock()
        while self._heap:
            at, key = self._heap[0]
            current = self._due.get(key) == at
            if current and at > now:
                return at - now
            heapq.heappop(self._heap)
            if current:
                self._lines.setdefault(key[0], {})[key] = None
        return None

    def _take_turn(self) -> Key | None:
        """The first key that no thread has, of the namespace whose turn it is."""
        for namespace, line in self._lines.items():
            ahead = (one for one in self._first if one in line)
            key = next((one for one in chain(ahead, line) if one not in self._held), None)
            if key is not None:
                self._take(namespace, key)
                return key
        return None

    def _take(self, namespace: str, key: Key) -> None:
        line = self._lines.pop(namespace)
        del line[key], self._due[key]
        self._first.pop(key, None)
        if line:
            # Behind the others.
            self._lines[namespace] = line
        self._held.add(key)
