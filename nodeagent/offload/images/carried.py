"""The files that a tree's container changed: they travel with its images."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kybernate.adapters import treefiles
from kybernate.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kybernate.lib.deadline import Deadline
    from kybernate.ports import Phases

T = TypeVar("T")

_BEHIND = 0.01
"""Seconds that the files come after a dump's begin, which they would hold up till CRIU works."""
_STOPPING = 5.0
"""Seconds for which the end of a thread that was told to stop is waited for: it does so between two
pieces of a file, if the disk answers."""


class Carried:
    """Writes them beside a dump, and lays them out before a restore. `limit`: bytes that travel at
    most."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._missing: dict[int, str] = {}
        self._at_work: dict[Path, _Aside[Any]] = {}

    def missing(self, init: int) -> str:
        """Why the files of this container's last dump did not travel, or empty."""
        return self._missing.get(init, "")

    def forget(self, init: int) -> None:
        """The container's last dump is done with."""
        self._missing.pop(init, None)

    async def left(self, images: Path) -> None:
        """Whoever is at work on the files of these images stops: returns once it has, or after
        seconds, as of a disk that doesn't answer."""
        work = self._at_work.get(images)
        if work is not None:
            await work.stopped()

    async def beside(
        self, dumping: Awaitable[Phases], init: int, images: Path, until: Deadline
    ) -> Phases:
        """What `dumping` returns, and the seconds of the files, which are gathered while the tree
        stands still. If it fails, they stop: see `left`."""
        files = _Aside(lambda stop: self._gather(init, images, until, stop))
        self._keep(images, files)
        try:
            phases = await dumping
            self._missing[init], seconds = await files.result(until)
        finally:
            files.stop()
        return {**phases, "files": seconds}

    async def lay_out(self, init: int, images: Path, until: Deadline) -> None:
        """Put the files into a container that isn't the one dumped. Raises DeadlineError, and what
        `treefiles.lay_out` raises."""
        await self.left(images)

        def lay_out(stop: threading.Event) -> int:
            return treefiles.lay_out(init, images, self._limit, until.left, stop=stop)

        files = _Aside(lay_out)
        self._keep(images, files)
        try:
            await files.result(until)
        finally:
            files.stop()

    def _gather(
        self, init: int, images: Path, until: Deadline, stop: threading.Event
    ) -> tuple[str, float]:
        """Why they don't travel, and the seconds that it took."""
        stop.wait(_BEHIND)
        began = time.monotonic()
        note = treefiles.gather(init, images, self._limit, until.left, stop=stop)
        return note.missing, time.monotonic() - began

    def _keep(self, images: Path, work: _Aside[Any]) -> None:
        self._at_work[images] = work
        work.when_done(lambda: self._forget(images, work))

    def _forget(self, images: Path, work: _Aside[Any]) -> None:
        if self._at_work.get(images) is work:
            del self._at_work[images]


class _Aside(Generic[T]):
    """A call in a thread, which a disk that doesn't answer may hold up. It ends soon after the
    event that it is given was set."""

    def __init__(self, call: Callable[[threading.Event], T]) -> None:
        self._stop = threading.Event()
        self._work = asyncio.ensure_future(asyncio.to_thread(call, self._stop))

    async def result(self, until: Deadline) -> T:
        """What `call` returns. Raises DeadlineError, and what `call` raises."""
        try:
            async with asyncio.timeout(until.left):
                return await asyncio.shield(self._work)
        except TimeoutError as error:
            raise DeadlineError(
                "The files that its container had changed are neither read nor written in time; "
                "look whether the node's disk answers."
            ) from error

    def stop(self) -> None:
        """Nobody wants what it does any more; nothing if it has ended."""
        self._stop.set()

    async def stopped(self) -> None:
        """Stop it, and wait for its end, seconds at most."""
        self.stop()
        await asyncio.wait([self._work], timeout=_STOPPING)

    def when_done(self, call: Callable[[], None]) -> None:
        """Have it called when the thread has ended."""

        def done(work: asyncio.Future[T]) -> None:
            if not work.cancelled():
                work.exception()  # is known by now, or nobody wants to
            call()

        self._work.add_done_callback(done)
