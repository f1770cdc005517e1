"""Rounds go on, whatever becomes of one."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from kybernate.errors import RetryableError
from kybernate.lib.rounds import rounds, rounds_blocking


class Work:
    """Fails in turn as it is told; at which seconds it was called."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.at: list[float] = []

    def blocking(self) -> None:
        error = self.errors.pop(0)
        if error is not None:
            raise error

    async def __call__(self) -> None:
        self.at.append(asyncio.get_running_loop().time() - 1000.0)
        self.blocking()


async def test_a_round_that_fails_is_told_and_the_next_one_comes(caplog):
    work = Work(None, RetryableError("not now"), KeyError("a bug"), None)
    task = asyncio.create_task(rounds(work, 2.0, "looking"))
    await asyncio.sleep(9.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.at == [2.0, 4.0, 6.0, 8.0]
    first, second = caplog.records
    assert first.getMessage() == "looking: not now; again in 2 s"
    assert (first.levelno, first.exc_info) == (logging.WARNING, None)
    assert second.exc_info is not None  # a bug is shown with where it is


class Stopping(threading.Event):
    """Counts the pauses instead of making them; is set after a few."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self.rounds = rounds

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        return len(self.pauses) > self.rounds


def test_a_threads_rounds_end_with_the_event_and_rest_after_a_failure(caplog):
    stopping, work = Stopping(4), Work(None, OSError("no disk"), KeyError("a bug"), None)
    rounds_blocking(work.blocking, stopping, 0.1, "writing", rest=3.0)
    assert stopping.pauses == [0.1, 0.1, 3.0, 3.0, 0.1]
    assert not work.errors
    first, second = caplog.records
    assert first.getMessage() == "writing: no disk; again in 3 s"
    assert (first.exc_info, second.exc_info is None) == (None, False)
