"""Deaths that are noticed without looking."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time

import pytest

from kybernate.adapters.kernel.pidfds import Pidfds
from kybernate.types import PodUid

UID = PodUid("a")


@pytest.fixture
def sleeper():
    started = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def descriptors() -> int:
    """Of processes: others of this one's come and go."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += "pidfd" in os.readlink(f"/proc/self/fd/{name}")
    return found


async def until(true):
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "nothing is told"
        await asyncio.sleep(0.001)


@pytest.mark.real_time
async def test_the_first_death_is_told_once_and_nothing_stays_open(sleeper):
    one, two = sleeper(), sleeper()
    before, told, deaths = descriptors(), [], Pidfds()
    deaths.watch(UID, [one.pid, two.pid, one.pid], lambda uid, pid: told.append((uid, pid)))
    assert descriptors() == before + 2
    await asyncio.sleep(0.05)
    assert told == []
    two.kill()
    one.kill()
    await until(lambda: told)
    await asyncio.sleep(0.05)
    assert len(told) == 1
    assert told[0][1] in (one.pid, two.pid)
    assert descriptors() == before


@pytest.mark.real_time
async def test_who_is_gone_already_is_told_too(sleeper):
    gone = sleeper()
    gone.kill()
    gone.wait()
    told, deaths = [], Pidfds()
    deaths.watch(UID, [gone.pid, sleeper().pid], lambda _, pid: told.append(pid))
    await until(lambda: told)
    assert told == [gone.pid]


@pytest.mark.real_time
async def test_after_unwatch_nothing_is_told(sleeper):
    process, told, deaths = sleeper(), [], Pidfds()
    deaths.watch(UID, [process.pid], lambda *_: told.append(1))
    deaths.unwatch(UID)
    deaths.unwatch(UID)
    process.kill()
    await asyncio.sleep(0.05)
    assert told == []
