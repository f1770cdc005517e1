"""The agent's warden: who uses the GPUs, what the host can take, and who died while parked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.guard.deaths import ParkedDeaths
from nodeagent.guard.enforce import Enforcer
from nodeagent.guard.pressure import Pressure

if TYPE_CHECKING:
    from kybernate.types import PodUid
    from nodeagent.guard.outside import Deciding, Outside


class Warden:
    """Made before the journal is read, so that no decision is taken without it."""

    def __init__(self, deciding: Deciding, outside: Outside) -> None:
        node, memory = deciding.node, outside.memory
        self.enforcer = Enforcer(deciding, outside)
        self.pressure = Pressure(node, deciding.kick, memory, deciding.tiers.makes_room)
        self.deaths = ParkedDeaths(node, deciding.life, outside.deaths, memory, self._excused)
        node.refusals = self.pressure
        node.observers.append(self.deaths)

    def _excused(self, uid: PodUid) -> bool:
        return uid in self.enforcer.parking_again

    async def run(self) -> None:
        """Watch for ever; to be begun once the journal was read."""
        self.deaths.begin()
        await asyncio.gather(self.enforcer.run(), self.pressure.run())
