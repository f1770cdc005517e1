"""Saved states that are verified while trees are restored from them.

CRIU reads nothing of a state's memory before it has been verified: it waits, so that whoever begins
a restore must see the verifying through, also over a restart of the agent.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from kybernate.errors import CorruptError, DeadlineError, KybernateError
from kybernate.lib.retry import OUTSIDE, retry
from kybernate.types import ArtifactId

if TYPE_CHECKING:
    from kybernate.types import PodUid
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)


class Fillings:
    """One for each seat whose memory is on its way."""

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

    async def give_back(self, seat: Seat) -> None:
        """All that was lent the seat is in its memory."""
        below = self._node.world.below
        if below is None or seat.saved.images:
            return
        try:
            await below.vault.abandon(seat.uid)
        except (KybernateError, OSError) as error:
            log.warning("%s: what its memory came from can't be removed yet: %s", seat, error)

    async def _fill(self, seat: Seat, artifact: ArtifactId) -> None:
        deadline = self._node.settings.dump_deadline_s
        below = self._node.world.below
        if below is None:
            return

        def say(error: Exception) -> None:
            if isinstance(error, DeadlineError):
                log.warning("%s: %s; going on with it", seat, error)
            elif isinstance(error, OUTSIDE):
                why = f"what its memory comes from can't be verified: {error}; trying again"
                self._life.complain(seat, "MemoryUnknown", why)
            else:
                log.error("%s: its memory can't be verified", seat, exc_info=error)

        try:
            fill = partial(below.vault.fill, artifact, seat.uid, deadline)
            await retry(fill, say, on=Exception, but=CorruptError)
        except CorruptError as error:
            log.warning("%s: %s", seat, error)
