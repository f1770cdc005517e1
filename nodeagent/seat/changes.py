"""Hearing of changes: a bell that rings for everyone who waits, and sleeps for no one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeagent.seat.record import Seat


class Changes:
    """Implements `node.Observer`: streams wait here instead of looking again and again."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()

    def ring(self) -> None:
        """Something changed."""
        for event in self._waiting:
            event.set()

    async def wait(self, limit: float) -> None:
        """Until the next change, or for `limit` seconds: for what changes without a word."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), limit)
        finally:
            self._waiting.discard(event)

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self.ring()

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self.ring()

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """What is told is in the seat, too."""
