"""An event loop whose time jumps to the next timer, so that tests of minutes take milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_ROUNDS = 3


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` stands still while there is something to do, then jumps to the next timer.

    For code that waits by the loop's timers only: threads and sockets are not waited for. A
    test in which nothing is left that could ever happen ends with RuntimeError.
    """

    def __init__(self, start: float = 1000.0) -> None:
        self._virtual = start
        self._looking: list[asyncio.Future[None]] = []
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual

    def jump(self, seconds: float) -> None:
        """Let time pass at once."""
        self._virtual += seconds

    async def stands(self) -> None:
        """Wait until there is nothing to do but to let time pass."""
        self._looking.append(self.create_future())
        await self._looking[-1]

    def look(self) -> bool:
        """Have those go on who wait for that; False if there is none."""
        looking = [one for one in self._looking if not one.done()]
        self._looking = []
        for one in looking:
            one.set_result(None)
        return bool(looking)


class _Jumping(selectors.SelectSelector):
    """Before each jump those who wait for a moment of rest look once."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._looked = False

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        self._looked = not self._looked and self._loop.look()
        if self._looked:
            return ready
        if timeout is None:
            raise RuntimeError("nothing is left that could ever happen")
        self._loop.jump(timeout)
        return ready


async def until(condition: Callable[[], object], limit: float) -> bool:
    """Wait until the condition is true, for `limit` seconds at most; whether it is. On a
    VirtualLoop it is looked at whenever time is about to pass: nothing changes meanwhile."""
    loop = asyncio.get_running_loop()
    rests = loop.stands if isinstance(loop, VirtualLoop) else partial(asyncio.sleep, 0.01)
    end = loop.time() + limit
    over = loop.call_at(end, lambda: None)
    try:
        while not condition() and loop.time() < end:
            await rests()
    finally:
        over.cancel()
    return bool(condition())


def run_virtual(main: Coroutine[Any, Any, T], start: float = 1000.0) -> T:
    """`asyncio.run` on a VirtualLoop that begins at `start` seconds. What is left at the end is
    cancelled, and what begins because of that, too."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start)) as runner:
        try:
            return runner.run(main)
        finally:
            runner.run(_end_all())


async def _end_all() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(_ROUNDS):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        for error in await asyncio.gather(*left, return_exceptions=True):
            if isinstance(error, Exception):
                loop.call_exception_handler({"message": "a task's end failed", "exception": error})
        await asyncio.sleep(0)
