"""A dumper that has the files which a tree's container changed travel with its images."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from kybernate.adapters import treefiles
from kybernate.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kybernate.ports import Dumper, DumpState, Phases

T = TypeVar("T")

_BEHIND = 0.01
"""Seconds that the files come after a dump's begin, which they would hold up till CRIU works."""


class CarryingDumper:
    """Implements `ports.Dumper` by another. `limit`: bytes of files that travel at most."""

    def __init__(self, dumper: Dumper, limit: int) -> None:
        self._dumper = dumper
        self._limit = limit
        self._missing: dict[int, str] = {}

    def missing(self, init: int) -> str:
        """Why the files of this container's last dump did not travel, or empty."""
        return self._missing.get(init, "")

    async def check(self, init: int, handle: str, deadline: float) -> tuple[str, ...]:
        """As the dumper's."""
        return await self._dumper.check(init, handle, deadline)

    async def dump(
        self, init: int, handle: str, images: Path, deadline: float, *, goes_on: bool = False
    ) -> Phases:
        """As the dumper's, and the files beside it, while the tree stands still."""
        gathering = asyncio.ensure_future(self._gather(init, images, deadline))
        try:
            phases = await self._dumper.dump(init, handle, images, deadline, goes_on=goes_on)
        except asyncio.CancelledError:
            gathering.cancel()
            raise
        finally:
            # Whoever removes the images next must be alone with them.
            await asyncio.gather(gathering, return_exceptions=True)
        return {**phases, "files": gathering.result()}

    async def _gather(self, init: int, images: Path, deadline: float) -> float:
        """Seconds that it took."""
        end = time.monotonic() + deadline
        await asyncio.sleep(_BEHIND)
        began = time.monotonic()
        note = await _aside(treefiles.gather, init, images, self._limit, end)
        self._missing[init] = note.missing
        return time.monotonic() - began

    async def end(self, init: int, handle: str, deadline: float) -> None:
        """As the dumper's."""
        self._missing.pop(init, None)
        await self._dumper.end(init, handle, deadline)

    async def keep(self, init: int, handle: str, deadline: float) -> None:
        """As the dumper's."""
        self._missing.pop(init, None)
        await self._dumper.keep(init, handle, deadline)

    async def restore(
        self,
        init: int,
        handle: str,
        images: Path,
        deadline: float,
        *,
        lazy: bool = False,
        stopped: bool = False,
    ) -> Phases:
        """As the dumper's, once its files are there, in a container that isn't the one dumped."""
        end = time.monotonic() + deadline
        await _aside(treefiles.lay_out, init, images, self._limit, end)
        return await self._dumper.restore(
            init, handle, images, _left(end), lazy=lazy, stopped=stopped
        )

    async def pages_done(self, init: int, deadline: float) -> None:
        """As the dumper's."""
        await self._dumper.pages_done(init, deadline)

    def state(self, init: int) -> DumpState:
        """As the dumper's."""
        return self._dumper.state(init)


async def _aside(
    call: Callable[[int, Path, int, float], T], init: int, images: Path, limit: int, end: float
) -> T:
    """In a thread, which a disk that doesn't answer may hold up. Raises DeadlineError, and what
    `call` raises."""
    try:
        async with asyncio.timeout(_left(end)):
            return await asyncio.to_thread(lambda: call(init, images, limit, _left(end)))
    except TimeoutError as error:
        raise DeadlineError(
            "The files that its container had changed are neither read nor written in time; look "
            "whether the node's disk answers."
        ) from error


def _left(end: float) -> float:
    """Seconds; never negative."""
    return max(0.0, end - time.monotonic())
