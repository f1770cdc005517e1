"""Sockets whose close waits for the kernel: 5 to 35 ms, until no processor can still see them.

A packet socket's does, and that of a netlink socket after a table of packet rules was removed.
Nothing depends on it: the wait is that of a few threads, which end when nothing is left to close.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

THREADS = 4
"""At most; those that wait at the same time mostly wait for the same moment."""
WAITING = 64
"""Sockets that wait for one of them at most."""


class Closing:
    """What is still to be closed, and who closes it."""

    def __init__(self, threads: int = THREADS, waiting: int = WAITING) -> None:
        self._threads, self._waiting = threads, waiting
        self._lock = threading.Lock()
        self._left: deque[socket.socket] = deque()
        self._at_work = 0

    def aside(self, one: socket.socket) -> None:
        """Have it closed; quick, unless too many wait already: then this closes it itself."""
        with self._lock:
            full = len(self._left) >= self._waiting
            begins = not full and self._at_work < self._threads
            self._at_work += begins
            if not full:
                self._left.append(one)
        if full:
            one.close()
        elif begins:
            try:
                threading.Thread(target=self._close_all, name="closing", daemon=True).start()
            except RuntimeError:  # there may be no more threads, or the agent ends
                self._close_all()

    def _close_all(self) -> None:
        while (one := self._next()) is not None:
            with suppress(OSError):
                one.close()

    def _next(self) -> socket.socket | None:
        with self._lock:
            if self._left:
                return self._left.popleft()
            self._at_work -= 1
            return None


_closing = Closing()


def close_aside(one: socket.socket) -> None:
    """Let go of a socket that nobody reads from any more; quick."""
    _closing.aside(one)
