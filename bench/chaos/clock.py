"""An event loop of timers only: no descriptors, no system calls, time jumps to the next timer."""

from __future__ import annotations

import asyncio
from typing import Any

_SPIN_LIMIT = 50_000


class Spinning(Exception):  # noqa: N818 - a finding
    """Something goes on for ever without time passing."""


class TimerLoop(asyncio.BaseEventLoop):
    """Cheap to make, so that each life of an agent has its own. Begins at `start` seconds."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self._virtual = start
        self._selector = self
        self._spins = 0
        self.problems: list[str] = []
        self.set_exception_handler(self._note)

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual

    def select(self, timeout: float | None) -> tuple[()]:
        """What a selector does, without anything to select."""
        if timeout is None:
            raise Spinning("nothing is left that could ever happen")
        if timeout > 0:
            self._spins = 0
            self._virtual += timeout
        else:
            self._spins += 1
            if self._spins > _SPIN_LIMIT:
                raise Spinning(f"the agent spins at {self._virtual:.3f} s")
        return ()

    def _process_events(self, _: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self.problems.append(f"unhandled {error!r}: {context.get('message')}")
