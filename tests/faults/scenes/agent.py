"""The node agent with a journal that kills: after the n-th record of a seat, at a test's order.

It is started in place of the agent. Orders lie in the file $TEST_ORDERS; see `Orders`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.cuda.driver import CudaHelpers
from kybernate.runtime.load import command
from kybernate.runtime.serve import ProbeServer, configure_logging
from kybernate.settings.agent import AgentSettings
from nodeagent.offload import helper

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from kybernate.ports import Journal

ORDERS_ENV = "TEST_ORDERS"
HELPERS = "kyb-cuda"


class Orders:
    """The file by which a test tells whom to kill after which record of which seat."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def give(self, uid: str, step: int, victim: str) -> None:
        """After the `step`-th record of the seat `uid` from now on, kill `agent` or `helper`."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps({"uid": uid, "step": step, "victim": victim}))
        fresh.rename(self._file)

    def read(self) -> dict[str, str | int]:
        """The order that stands; empty if there is none."""
        try:
            found: dict[str, str | int] = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {}
        return found

    def withdraw(self) -> bool:
        """Take the order back, or carry it out; whether it still stood."""
        try:
            self._file.unlink()
        except FileNotFoundError:
            return False
        return True


class KillingJournal:
    """Implements `ports.Journal` around another one."""

    def __init__(self, real: Journal, orders: Orders) -> None:
        self._real = real
        self._orders = orders
        self._written = 0

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
        order = self._orders.read()
        if not order:
            self._written = 0
        elif key == f"seat/{order['uid']}":
            self._written += 1
            if self._written == order["step"]:
                self._kill(str(order["victim"]))
        return written

    def delete(self, key: str) -> Awaitable[None]:
        """See `ports.Journal.delete`."""
        return self._real.delete(key)

    def close(self) -> None:
        """See `ports.Journal.close`."""
        self._real.close()

    def _kill(self, victim: str) -> None:
        self._orders.withdraw()
        if victim == "agent":
            # The record is on the disk, and nothing that follows from it has begun.
            self._real.close()
            os.kill(os.getpid(), signal.SIGKILL)
        for pid in helpers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def helpers() -> list[int]:
    """The seats' helper processes that this process sees."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "comm").read_text().startswith(HELPERS):
                found.append(int(folder.name))
    return found


def run(settings: AgentSettings) -> None:
    """Serve until SIGTERM."""
    made = CudaHelpers(helper.command(settings))
    configure_logging(settings.log_level)
    asyncio.run(_run(settings, made))


async def _run(settings: AgentSettings, made: CudaHelpers) -> None:
    from nodeagent.app.wiring import Agent, file_journal  # noqa: PLC0415 - after the helpers

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    journal = KillingJournal(file_journal(settings), Orders(Path(os.environ[ORDERS_ENV])))
    agent = Agent(settings, made, journal)
    host, _, port = settings.probe_listen.rpartition(":")
    probes = ProbeServer(host, int(port), agent.not_ready)
    probes.start()
    try:
        await agent.run(stop)
    finally:
        probes.stop()


if __name__ == "__main__":
    command(AgentSettings, "KYB_AGENT", run, "The agent with a journal that kills.")()
