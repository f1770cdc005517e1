"""Work for callers who may give up before it is done."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = logging.getLogger(__name__)

T = TypeVar("T")


async def seen_through(work: Coroutine[object, object, T]) -> T:
    """What it returns; it comes to its end though its caller is cancelled. A thread of its can't be
    stopped, and who comes next must not meet it: so it keeps the locks that it has. Raises what it
    raises."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_heard)
    return await asyncio.shield(task)


def _heard(task: asyncio.Task[T]) -> None:
    """Also where nobody waits for it any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.info("what was asked for is not done: %s", error)
