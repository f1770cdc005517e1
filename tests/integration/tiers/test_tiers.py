"""A real tree on its way to NVMe and an object store and back: connections, PIDs, output, death."""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from images import criu
from kybernate.errors import KybernateError
from kybernate.settings.agent import AgentSettings
from kybernate.types import SeatState, Tier
from tests.cluster.layout import REPOSITORY
from tests.integration.tiers.room import PORT, Room
from tests.kit.node.cable import THERE

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOLS = ("ip", "unshare", "mount")
ACTIVE, NVME, OBJECT = SeatState.ACTIVE, SeatState.PARKED_NVME, SeatState.PARKED_OBJECT


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a name that is short enough for a socket's."""
    with tempfile.TemporaryDirectory(prefix="kyt") as folder:
        yield Path(folder)


@pytest.fixture
def room(tmp_path: Path, short: Path) -> Iterator[Room]:
    enter = REPOSITORY / "build" / "kyb-enter"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing or not enter.exists():
        pytest.skip(f"needs root, build/kyb-enter and {', '.join(missing or TOOLS)}")
    try:
        found = criu.for_this_machine(print)
    except KybernateError as error:
        pytest.skip(f"needs CRIU: {error}")
    keys = tmp_path / "keys"
    words = [sys.executable, "-m", "kybernate.cli", "artifacts", "keys", "--dir", str(keys)]
    subprocess.run(words, check=True, cwd=REPOSITORY, timeout=60)
    (tmp_path / "objects").mkdir()
    settings = AgentSettings(
        node="n1",
        run_dir=short,
        state_dir=tmp_path / "state",
        criu=found,
        kyb_enter=enter,
        artifact_keys=keys,
        object_store=str(tmp_path / "objects"),
        tier_residency_s=0.0,
    )
    made = Room(tmp_path, settings)
    yield made
    made.pod.close()


class Client:
    """Somebody with one kept connection."""

    def __init__(self) -> None:
        self._kept = http.client.HTTPConnection(THERE, PORT, timeout=30)

    async def ask(self, *, anew: bool = False) -> tuple[int, str]:
        """Number of the answer, and who gave it; on the kept connection unless `anew`."""
        one = http.client.HTTPConnection(THERE, PORT, timeout=30) if anew else self._kept
        said = await asyncio.to_thread(_get, one)
        if anew:
            one.close()
        number, _, who = said.partition(" ")
        return int(number), who

    def close(self) -> None:
        self._kept.close()


def _get(one: http.client.HTTPConnection) -> str:
    one.request("GET", "/")
    return one.getresponse().read().decode()


async def quiet() -> None:
    """Until a request that was answered is no longer taken for one that waits."""
    await asyncio.sleep(5.5)


@pytest.mark.real_time
async def test_a_tree_goes_down_and_comes_back_with_connections_pids_and_output(room: Room) -> None:
    seat, client = await room.begin(ACTIVE), Client()
    _, who = await client.ask()
    for number, state in ((2, NVME), (4, OBJECT)):
        await quiet()
        room.park(Tier.NVME if state is NVME else Tier.OBJECT)
        await room.until(state)
        assert seat.tree.handle
        assert _procs(seat.tree.handle) == []
        lines = room.pod.lines()
        await asyncio.sleep(0.3)
        assert room.pod.lines() == lines
        assert await client.ask() == (number, who), "the connection that was open before"
        assert seat.state is ACTIVE
        assert await client.ask(anew=True) == (number + 1, who)
        await room.more_than(len(lines))
    numbers = [int(line.split()[1]) for line in room.pod.lines()]
    assert numbers == list(range(1, len(numbers) + 1))
    client.close()
    await room.end()


def _procs(handle: str) -> list[str]:
    with open(f"{handle}/cgroup.procs") as listed:
        return listed.read().split()


@pytest.mark.real_time
async def test_a_container_that_is_parked_below_ram_ends_at_once(room: Room) -> None:
    seat = await room.begin(ACTIVE)
    client = Client()
    await client.ask()
    await quiet()
    room.park(Tier.NVME)
    await room.until(NVME)
    assert seat.tree.init is not None
    assert room.loop is not None
    began = time.monotonic()
    os.kill(seat.tree.init.pid, signal.SIGTERM)
    await room.until(SeatState.WAITING)
    assert time.monotonic() - began < 20, "it was woken first, or given time"
    offloading = room.loop.node.world.offloading
    assert offloading is not None
    (left,) = [one.successor for one in room.loop.custody.all()]
    assert [one.id for one in await offloading.vault.ls(Tier.NVME)] == [left.artifact]
    client.close()
    await room.end()
