"""What is under way for a seat on the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    import asyncio


@dataclass(slots=True)
class Tasks:
    """`work`: the action that is being carried out; `watch`: waits for its processes to be gone."""

    work: asyncio.Task[None] | None = None
    watch: asyncio.Task[None] | None = None

    def begun(self, work: asyncio.Task[None]) -> None:
        """This is carried out from now on."""
        self.work = work

    def watched(self, watch: asyncio.Task[None]) -> None:
        """This waits for its processes to be gone."""
        self.watch = watch
