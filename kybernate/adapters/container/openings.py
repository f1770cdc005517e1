"""Openings of devices that take rights, and may hang in the kernel: what comes too late is undone.

A thread that hangs can't be ended. Each device has one thread at most, so that there are never more
than `_AT_ONCE`, and nothing is opened beside what still hangs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    Undo = Callable[[], None]

log = logging.getLogger(__name__)

_AT_ONCE = 8


class _Opening:
    """One that is under way on a thread. Nobody waits for it any more once it is given up."""

    def __init__(self, opens: Callable[[], Undo]) -> None:
        self._opens = opens
        self._lock = threading.Lock()
        self._undo: Undo | None = None
        self._given_up = False

    def run(self) -> None:
        """On its thread."""
        if self._given_up:
            return
        undo = self._opens()
        with self._lock:
            self._undo, late = undo, self._given_up
        if late:
            undone(undo)

    def give_up(self) -> Undo | None:
        """How to undo what is done already; what is done later undoes itself."""
        with self._lock:
            self._given_up = True
            return self._undo


class Openings:
    """Those of all devices. All methods are for one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_AT_ONCE, "devices")
        self._under_way: dict[str, Future[None]] = {}

    async def settled(self, device_id: str) -> None:
        """Return once nothing is under way for the device: its list is what it stays."""
        while (future := self._under_way.get(device_id)) is not None:
            await asyncio.wait([_heard(future)])
            if self._under_way.get(device_id) is future:
                del self._under_way[device_id]

    async def open(self, device_id: str, opens: Callable[[], Undo], *, stays: bool) -> None:
        """Have a thread call `opens`, which returns how to undo it; raises what that raises. When
        this call is cancelled, it is undone as soon as it is done, unless it `stays`."""
        await self.settled(device_id)
        opening = _Opening(opens)
        future = self._under_way[device_id] = self._threads.submit(opening.run)
        try:
            (done,), _ = await asyncio.wait([_heard(future)])
        except asyncio.CancelledError:
            undo = None if stays else opening.give_up()
            if undo is not None:
                self._under_way[device_id] = self._threads.submit(undone, undo)
            raise
        if self._under_way.get(device_id) is future:
            del self._under_way[device_id]
        done.result()


def undone(undo: Undo) -> None:
    """Shut it again; who ended meanwhile opens nothing."""
    try:
        undo()
    except OSError as error:
        log.warning("a container may open its GPUs before its turn: %s", error)


def _heard(future: Future[None]) -> asyncio.Future[None]:
    """It as the loop's, whose error somebody has always seen."""
    here = asyncio.wrap_future(future)
    here.add_done_callback(lambda one: one.cancelled() or one.exception())
    return here
