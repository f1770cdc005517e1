"""An event loop whose time jumps to the next timer, so that tests of minutes take milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

_ROUNDS = 3


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` stands still while there is something to do, then jumps to the next timer.

    For code that waits by the loop's timers only: threads and sockets are not waited for. A
    test in which nothing is left that could ever happen ends with RuntimeError.
    """

    def __init__(self, start: float = 1000.0) -> None:
        self._virtual = start
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual

    def jump(self, seconds: float) -> None:
        """Let time pass at once."""
        self._virtual += seconds


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("nothing is left that could ever happen")
        self._loop.jump(timeout)
        return ready


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
