"""A spot instance that its cloud takes away is evacuated within the time that is left."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.core.seat.operations import Kind
from kybernate.errors import RefusedError
from kybernate.lib.rounds import rounds
from nodeagent import metrics
from nodeagent.operations.record import Ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.operations.operations import Operations
    from nodeagent.seat.node import Node

    Notice = Callable[[str, float, float], float | None]

log = logging.getLogger(__name__)

_EVERY_S = 2.0
_CALL_S = 1.0
_SPARE_S = 3.0
"""Seconds that are left for people to read what came of it."""
_LEAST_S = 1.0
_CLOUD = "cloud"


class SpotWatch:
    """Asks the metadata server at `address`. `notice`: what it says, see `adapters.spot`; `boot`
    names this boot: an instance that is started again has another notice."""

    def __init__(
        self, notice: Notice, address: str, boot: str, node: Node, operations: Operations
    ) -> None:
        self._notice = notice
        self._address = address
        self._name = f"spot-{boot}"
        self._node = node
        self._operations = operations
        self._done = False

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        await rounds(self.look, _EVERY_S, "whether this spot instance goes")

    async def look(self) -> None:
        """Begin the evacuation if the instance goes. Raises KybernateError if nobody can tell."""
        if self._done:
            return
        world = self._node.world
        goes_at = await world.blocking(
            lambda: self._notice(self._address, world.wall(), _CALL_S), 3 * _CALL_S
        )
        if goes_at is None:
            return
        left = max(_LEAST_S, goes_at - world.wall() - _SPARE_S)
        why = f"the cloud takes this instance away in {max(0.0, goes_at - world.wall()):.0f} s"
        log.warning("%s", why)
        metrics.SPOT_NOTICES.inc()
        try:
            await self._operations.ask(
                Ask(Kind.EVACUATE, self._name, why=why, by=_CLOUD, limit=left)
            )
        except RefusedError as error:
            # One that people have begun continues; without an object store there is none to begin.
            log.warning("no evacuation is begun for it: %s", error)
        self._done = True
