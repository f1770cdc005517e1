"""A dumper that has the files which a tree's container changed travel with its images."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from kybernate.adapters import treefiles

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.ports import Dumper, DumpState, Phases


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

    async def dump(self, init: int, handle: str, images: Path, deadline: float) -> Phases:
        """As the dumper's, and the files, while the tree stands still."""
        phases = dict(await self._dumper.dump(init, handle, images, deadline))
        began = time.monotonic()
        note = await asyncio.to_thread(treefiles.gather, init, images, self._limit)
        self._missing[init] = note.missing
        return {**phases, "files": time.monotonic() - began}

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
        await asyncio.to_thread(treefiles.lay_out, init, images, self._limit)
        return await self._dumper.restore(
            init, handle, images, deadline, lazy=lazy, stopped=stopped
        )

    async def pages_done(self, init: int, deadline: float) -> None:
        """As the dumper's."""
        await self._dumper.pages_done(init, deadline)

    def state(self, init: int) -> DumpState:
        """As the dumper's."""
        return self._dumper.state(init)
