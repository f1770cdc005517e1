"""CRIU's dumper with what the agent does before, beside and after its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.lib.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kybernate.ports import Dumper, DumpState, Phases
    from nodeagent.offload.images.carried import Carried
    from nodeagent.offload.images.first import Marks


class AgentDumper:
    """Implements `ports.Dumper` by another. `forget` ends the watch of a tree's sockets before each
    dump: the duplicates would be dumped with it. `carried`: files that travel with the images;
    `marks`: pages that come first."""

    def __init__(
        self,
        dumper: Dumper,
        forget: Callable[[str], None],
        carried: Carried | None = None,
        marks: Marks | None = None,
    ) -> None:
        self._dumper = dumper
        self._forget = forget
        self._carried = carried
        self._marks = marks

    async def check(self, init: int, handle: str, deadline: float) -> tuple[str, ...]:
        """As the dumper's."""
        return await self._dumper.check(init, handle, deadline)

    async def dump(
        self, init: int, handle: str, images: Path, deadline: float, *, continues: bool = False
    ) -> Phases:
        """As the dumper's, once no duplicate of its sockets is open; with the files beside it, and
        the marks after it."""
        self._forget(handle)
        until = Deadline(deadline)
        dumping = self._dumper.dump(init, handle, images, deadline, continues=continues)
        if self._carried is None:
            phases = await dumping
        else:
            phases = await self._carried.beside(dumping, init, images, until)
        if self._marks is None:
            return phases
        return {**phases, "mark": await self._marks.put(handle, images)}

    async def end(self, init: int, handle: str, deadline: float) -> None:
        """As the dumper's."""
        if self._carried is not None:
            self._carried.forget(init)
        await self._dumper.end(init, handle, deadline)

    async def keep(self, init: int, handle: str, deadline: float) -> None:
        """As the dumper's."""
        if self._carried is not None:
            self._carried.forget(init)
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
        until = Deadline(deadline)
        if self._carried is not None:
            await self._carried.lay_out(init, images, until)
        return await self._dumper.restore(
            init, handle, images, until.left, lazy=lazy, stopped=stopped
        )

    async def pages_done(self, init: int, deadline: float) -> None:
        """As the dumper's."""
        await self._dumper.pages_done(init, deadline)

    def state(self, init: int) -> DumpState:
        """As the dumper's."""
        return self._dumper.state(init)
