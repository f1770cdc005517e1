"""The agent of one real pod, with a journal that kills: started as a process by `test_below.py`.

`python -m tests.faults.scenes.lodge FILE`: the settings and more as JSON. On stdin come commands,
a JSON object a line: `{"kill": PART, "after": N}` has the N-th record from now on kill it, and
`{"park": TIER}` asks as an operator would; `{}` asks what is kept. On stdout go lines too: answers,
what each record of the seat says, when an order was carried out, and when CRIU is looked for no
more, which may be after that.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kybernate.adapters.files.journal import FileJournal
from kybernate.settings.agent import AgentSettings
from kybernate.types import PodUid, SeatState, Tier
from tests.integration.tiers.room import Above

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from kybernate.ports import Journal

_SOON = 1.0
"""Seconds within which CRIU comes after the record that it depends on."""


def say(**what: object) -> None:
    """A line to whoever has started this."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Orders:
    """Whom to kill after which record. `criu` is the program by which it is known."""

    def __init__(self, criu: Path) -> None:
        self._criu = str(criu)
        self._part = ""
        self._left = 0

    def give(self, part: str, after: int) -> None:
        """From now on."""
        self._part, self._left = part, after

    def record(self, journal: Journal, record: Mapping[str, Any]) -> None:
        """Another record is written."""
        if not self._left:
            return
        self._left -= 1
        if self._left == 0:
            self._carry_out(journal, record)

    def _carry_out(self, journal: Journal, record: Mapping[str, Any]) -> None:
        # The record is on the disk, and nothing that follows from it has begun.
        say(killed=self._part)
        if self._part == "agent":
            journal.close()
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._part == "kyb-init":
            os.kill(record["init"][0], signal.SIGKILL)
        else:
            threading.Thread(target=self._kill_criu, daemon=True).start()

    def _kill_criu(self) -> None:
        end = time.monotonic() + _SOON
        while time.monotonic() < end and not self._killed_criu():
            pass
        say(looked_for="criu")

    def _killed_criu(self) -> bool:
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(entry / "exe") == self._criu:
                    os.kill(int(entry.name), signal.SIGKILL)
                    return True
        return False


class KillingJournal:
    """Implements `ports.Journal` around another one."""

    def __init__(self, real: Journal, orders: Orders) -> None:
        self._real = real
        self._orders = orders

    @property
    def damage(self) -> str:
        """See `ports.Journal.damage`."""
        return self._real.damage

    def load(self) -> Mapping[str, Mapping[str, object]]:
        """See `ports.Journal.load`."""
        return self._real.load()

    def put(
        self, key: str, record: Mapping[str, object], *, synced: bool, late: bool = False
    ) -> Awaitable[None]:
        """See `ports.Journal.put`."""
        written = self._real.put(key, record, synced=synced, late=late)
        if key.startswith("seat/"):
            say(state=record["state"], copies=record["copies"])
            self._orders.record(self._real, record)
        return written

    def delete(self, key: str) -> Awaitable[None]:
        """See `ports.Journal.delete`."""
        return self._real.delete(key)

    def close(self) -> None:
        """See `ports.Journal.close`."""
        self._real.close()


async def main(told: dict[str, Any]) -> None:
    """Serve until killed."""
    settings = AgentSettings.model_validate(told["settings"])
    assert settings.criu is not None
    orders = Orders(settings.criu)
    journal = KillingJournal(FileJournal(Path(told["journal"]), "a boot"), orders)
    above = Above(settings, PodUid(told["uid"]), journal)
    loop = await above.agent()
    if above.uid not in loop.node.seats:
        say(door=str(await above.add()))
    loop.node.save(above.seat())
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        await _obey(above, orders, json.loads(line))


async def _obey(above: Above, orders: Orders, command: dict[str, Any]) -> None:
    loop = above.loop
    assert loop is not None
    if "kill" in command:
        orders.give(command["kill"], command["after"])
    elif "park" in command:
        above.park(Tier(command["park"]))
    else:
        offloading = loop.node.world.offloading
        assert offloading is not None
        kept = {tier.value: len(await offloading.vault.ls(tier)) for tier in offloading.limits}
        seat = above.seat()
        resting = seat.state is SeatState.ACTIVE and not (seat.wishes.leave or seat.saved.artifact)
        say(
            kept=kept,
            resting=resting,
            of=[seat.state, seat.wishes.leave, seat.saved.artifact, seat.history.reason],
        )


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
