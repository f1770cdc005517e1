"""The agent's warden: who uses the GPUs, and who died while parked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.guard.deaths import ParkedDeaths
from nodeagent.guard.enforce import Enforcer

if TYPE_CHECKING:
    from kybernate.types import PodUid
    from nodeagent.guard.outside import Deciding, Outside


class Warden:
    """Made before the journal is read, so that no decision is taken without it."""

    def __init__(self, deciding: Deciding, outside: Outside) -> None:
        node = deciding.node
        self.enforcer = Enforcer(deciding, outside)
        self.deaths = ParkedDeaths(
            node, deciding.life, outside.deaths, outside.memory, self._excused
        )
        node.observe(self.deaths)

    def _excused(self, uid: PodUid) -> bool:
        return uid in self.enforcer.parking_again

    async def run(self) -> None:
        """Watch for ever; to be begun once the journal was read."""
        self.deaths.begin()
        await self.enforcer.run()
