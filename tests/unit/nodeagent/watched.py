"""A rig whose agent has its warden."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from nodeagent.guard.announce import Roster
from nodeagent.guard.outside import Outside
from nodeagent.guard.pressure import Pressure
from nodeagent.guard.warden import Warden
from tests.kit.warden import FakeAnnouncer, FakeCulprits, FakeDeaths, FakeMemory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Watched:
    """The warden of a rig's agent, and what it asks."""

    def __init__(self, rig: Any, budget: int = 1 << 40) -> None:
        self.rig = rig
        machine = rig.machine
        self.memory = FakeMemory(machine)
        self.deaths = FakeDeaths(machine, self.memory)
        self.culprits = FakeCulprits(machine)
        self.announcer = FakeAnnouncer()
        self.roster = Roster()
        self.pods_known = True
        rig.node.park_budget = budget
        loop = rig.loop
        self.pressure = loop.refusals = Pressure(
            rig.node, self.memory, loop.tiers.makes_room, loop._judge_parks, loop.kick
        )
        self.warden = Warden(
            rig.loop,
            Outside(
                self.culprits,
                self.memory,
                self.deaths,
                self.announcer,
                self.roster,
                lambda: self.pods_known,
            ),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Watched]:
        """The warden runs meanwhile."""
        task = asyncio.ensure_future(asyncio.gather(self.warden.run(), self.pressure.run()))
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def events(self, reason: str) -> list[str]:
        """Sentences of this kind that were told of seats."""
        return [said for told, said in self.rig.seen.events if told == reason]
