"""Work that is done again and again, for as long as a process runs, whatever becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from kybernate.lib.retry import OUTSIDE

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

log = logging.getLogger(__name__)

REST = 1.0
"""Seconds before the next call after one that failed, unless the others are further apart."""


async def rounds(work: Callable[[], object], every: float, what: str) -> None:
    """Call `work` after each pause of `every` seconds, until the task is cancelled.

    What it raises is logged, with `what` in front, and the next call comes all the same.
    """
    pause = every
    while True:
        await asyncio.sleep(pause)
        pause = every
        try:
            done = work()
            if isinstance(done, Awaitable):
                await done
        except Exception as error:  # noqa: BLE001 - told of, and no reason to end
            pause = max(every, REST)
            _tell(error, what, pause)


def rounds_blocking(
    work: Callable[[], object],
    stopping: threading.Event,
    every: float,
    what: str,
    *,
    rest: float = REST,
) -> None:
    """As `rounds`, for a thread, until `stopping` is set. `rest` is the pause after a failure,
    where that is longer."""
    pause = every
    while not stopping.wait(pause):
        pause = every
        try:
            work()
        except Exception as error:  # noqa: BLE001 - as above
            pause = max(every, rest)
            _tell(error, what, pause)


def _tell(error: Exception, what: str, pause: float) -> None:
    unexpected = None if isinstance(error, OUTSIDE) else error
    log.warning("%s: %s; again in %g s", what, error, pause, exc_info=unexpected)
