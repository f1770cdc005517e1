"""Threads that run beside the serving ones, from the start of the process to its end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[threading.Event], None]

ENDS_WITHIN = 5.0
"""Seconds that a thread gets to end what it is at."""


class Background:
    """Threads by name; each runs until the event that it is given is set."""

    def __init__(self, **runs: Run) -> None:
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=run, args=(self._stopping,), name=name, daemon=True)
            for name, run in runs.items()
        ]

    def start(self) -> None:
        """Start all."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Have all end."""
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(ENDS_WITHIN)
