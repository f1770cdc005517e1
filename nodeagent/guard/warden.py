"""The agent's warden: who uses the GPUs, what the host can take, and who died while parked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.guard.deaths import ParkedDeaths
from nodeagent.guard.enforce import Enforcer
from nodeagent.guard.pressure import Pressure

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.ports import Culprits, Deaths, Memory
    from kybernate.types import PodUid
    from nodeagent.app.loop import Loop
    from nodeagent.guard.announce import Announcer, Roster


@dataclass(frozen=True, slots=True)
class Outside:
    """What the warden asks of the world, besides the loop's own ports.

    `pods_known`: whether the seat of every managed pod of the node is known by now.
    """

    culprits: Culprits
    memory: Memory
    deaths: Deaths
    announcer: Announcer
    roster: Roster
    pods_known: Callable[[], bool]


class Warden:
    """Made before the journal is read, so that no decision is taken without it."""

    def __init__(self, loop: Loop, outside: Outside) -> None:
        self.enforcer = Enforcer(loop, outside)
        self.pressure = Pressure(loop, outside.memory, self.enforcer.held)
        self.deaths = ParkedDeaths(loop, outside.deaths, outside.memory, self._excused)
        loop.node.refusals = self.pressure
        loop.node.observers.append(self.deaths)

    def _excused(self, uid: PodUid) -> bool:
        return uid in self.enforcer.parking_again

    async def run(self) -> None:
        """Watch for ever; to be begun once the journal was read."""
        self.deaths.begin()
        await asyncio.gather(self.enforcer.run(), self.pressure.run())
