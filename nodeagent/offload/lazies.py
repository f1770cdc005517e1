"""Trees that run before all of their memory is in.

A process of CRIU's serves it from the images: they stay, and nothing is dumped, until it is done.
If that process dies the tree waits for ever for what is missing, rather than see zeros, and is
ended: what it was is in no memory any more, and it has continued since it was saved.

CRIU reads nothing of a state's memory before it has been verified: it waits, so that whoever begins
a restore must see the verifying through, also over a restart of the agent.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from kybernate.core.seat.lazily import Rates, pays
from kybernate.errors import (
    CorruptError,
    DeadlineError,
    NotFoundError,
    RestoreError,
)
from kybernate.lib.retry import OUTSIDE, retry, steadily
from kybernate.types import ArtifactId, SeatState, Tier
from nodeagent import metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.types import PodUid
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_DEADLINE = 60.0
_PAUSES = steadily(1.0)


class Lazies:
    """All trees whose memory is on its way in."""

    def __init__(self, node: Node, life: Lifecycle, kick: Callable[[], None]) -> None:
        self._node = node
        self._life = life
        self._kick = kick
        self._rates = Rates()
        # Of one state several copies may be on their way.
        self._coming: dict[str, list[asyncio.Event]] = {}
        self.fillings = Fillings(node, life)

    def pays(self, seat: Seat) -> bool:
        """Whether the seat is restored so; not where a restore has failed: this kernel may not."""
        if (
            not self._node.settings.lazy_restores
            or not seat.saved.artifact
            or seat.backoff.failed_restores
        ):
            return False
        held = seat.tree.held.values()
        return pays(seat.saved.size, sum(held), self._rates, seat.saved.first, len(held))

    def learn(self, seat: Seat, phases: Mapping[str, float]) -> None:
        """It was restored; `phases` are the dumper's seconds."""
        if not seat.saved.paging:
            self._rates = self._rates.learned(seat.saved.size, phases.get("criu", 0.0), lazy=False)

    def begin(self, seat: Seat) -> None:
        """Its tree is there, and its memory is not: also after a restart of the agent."""
        seat.saved.pages(seat.saved.paging or seat.saved.artifact)
        done = asyncio.Event()
        self._coming.setdefault(seat.saved.paging, []).append(done)
        self.fillings.ensure(seat)
        self._life.aside(self._see_in(seat, done))

    def resume(self) -> None:
        """After a restart, before anything is dropped or moved."""
        for seat in self._node.seats.values():
            if seat.saved.paging and seat.state is not SeatState.RESTORING:
                self.begin(seat)

    async def all_in(self, artifact: str) -> None:
        """Returns once nobody reads its images any more."""
        while coming := self._coming.get(artifact):
            await coming[0].wait()

    async def abandon(self, seat: Seat, paging: str = "") -> None:
        """Remove what was dumped, or fetched, of the seat, once nobody reads it: tried until it
        succeeds, or until the seat needs its folder again, which is emptied then."""
        await self.all_in(paging or seat.saved.paging)
        await self.remove(seat.uid, lambda: _needs_folder(seat))

    async def remove(self, uid: PodUid, needed: Callable[[], bool]) -> None:
        """Remove what `Vault.begin` gave this one: tried until it succeeds, or is `needed`."""
        offloading = self._node.world.offloading

        async def removed() -> None:
            if offloading is not None and not needed():
                await offloading.vault.abandon(uid)

        def say(error: Exception) -> None:
            log.warning("%s: what was dumped can't be removed yet: %s", uid, error)

        await retry(removed, say)

    async def _see_in(self, seat: Seat, done: asyncio.Event) -> None:
        began, artifact = self._node.world.now(), seat.saved.paging
        size = max(0, seat.saved.size - seat.saved.first)
        try:
            if why := await self._come_in(seat):
                metrics.failed("restore", "MemoryLost")
                sentence = f"its memory can't be brought in: {why}; the workload is started again"
                self._node.tell(seat, "Warning", "MemoryLost", sentence)
                self._life.watch_end(seat)
            else:
                took = self._node.world.now() - began
                self._rates = self._rates.learned(size, took, lazy=True)
        finally:
            self.fillings.stop(seat)
            seat.saved.pages("")
            self._is_in(artifact, done)
        self._node.save(seat)
        self._life.aside(self.abandon(seat))
        self._kick()

    def _is_in(self, artifact: str, done: asyncio.Event) -> None:
        self._coming[artifact].remove(done)
        if not self._coming[artifact]:
            del self._coming[artifact]
        done.set()

    async def _come_in(self, seat: Seat) -> str:
        """Why it never comes; empty once it is in, or nobody needs it."""
        offloading, init = self._node.world.offloading, seat.tree.init

        async def came() -> None:
            if offloading is not None and init is not None and seat.tree.init == init:
                await offloading.dumper.pages_done(init.pid, _DEADLINE)

        def say(error: Exception) -> None:
            if not isinstance(error, DeadlineError):
                self._node.complain(seat, "MemoryUnknown", f"{error}; trying again")

        try:
            await retry(came, say, but=(NotFoundError, RestoreError), pauses=_PAUSES)
        except NotFoundError:
            return ""
        except RestoreError as error:
            return str(error)
        return ""


def _needs_folder(seat: Seat) -> bool:
    """Whether the seat's folder holds, or will hold, what it is in the middle of using."""
    saved, busy = seat.saved, seat.state in {SeatState.DUMPING, SeatState.RESTORING}
    return busy or bool(saved.images or saved.paging) or saved.sinks_to is Tier.NVME


class Fillings:
    """The verifying of artifacts, one for each seat whose memory is on its way."""

    def __init__(self, node: Node, life: Lifecycle) -> None:
        self._node = node
        self._life = life
        self._under_way: dict[PodUid, asyncio.Task[None]] = {}

    def begin(self, seat: Seat) -> None:
        """Before CRIU does: verify what the seat was lent, from its first piece on."""
        self.stop(seat)
        what = self._fill(seat, ArtifactId(seat.saved.paging))
        self._under_way[seat.uid] = asyncio.create_task(what)

    def ensure(self, seat: Seat) -> None:
        """Also after a restart of the agent, if the last one was not done with it."""
        if seat.uid not in self._under_way:
            self.begin(seat)

    def stop(self, seat: Seat) -> None:
        """Nobody waits for it any more."""
        if (task := self._under_way.pop(seat.uid, None)) is not None:
            task.cancel()

    async def _fill(self, seat: Seat, artifact: ArtifactId) -> None:
        deadline = self._node.settings.dump_deadline_s
        offloading = self._node.world.offloading
        if offloading is None:
            return

        def say(error: Exception) -> None:
            if isinstance(error, DeadlineError):
                log.warning("%s: %s; continuing with it", seat, error)
            elif isinstance(error, OUTSIDE):
                why = f"what its memory comes from can't be verified: {error}; trying again"
                self._node.complain(seat, "MemoryUnknown", why)
            else:
                log.error("%s: its memory can't be verified", seat, exc_info=error)

        try:
            fill = partial(offloading.vault.fill, artifact, seat.uid, deadline)
            await retry(fill, say, on=Exception, but=CorruptError)
        except CorruptError as error:
            log.warning("%s: %s", seat, error)
