"""Trees that stand still by signals, on real processes."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from kybernate.adapters.kernel.stopper import SignalFreezer
from kybernate.errors import NotFoundError

pytestmark = pytest.mark.real_time

TREE = """
import subprocess, sys, threading, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.DEVNULL)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print(child.pid, flush=True)
time.sleep(1000)
"""
STORM = "import subprocess\nwhile True: subprocess.run(['true'])"


@pytest.fixture
def tree():
    started = []

    def start(child: str = "import time; time.sleep(1000)") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", TREE, child], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        freezer = SignalFreezer(lambda _: True)
        for pid in freezer.pids(freezer.place(process.pid)) if process.poll() is None else ():
            subprocess.run(["kill", "-KILL", str(pid)], check=False, capture_output=True)
        process.communicate()


@pytest.fixture
def freezer():
    return SignalFreezer(lambda _: True)


def states(pids) -> set[str]:
    """Of those that haven't ended since: what runs ends its children."""
    there = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            there.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    return there


@pytest.mark.parametrize("child", ["import time; time.sleep(1000)", STORM])
async def test_all_of_it_stands_still_and_runs_again(tree, freezer, child):
    handle = freezer.place(tree(child).pid)
    await freezer.freeze(handle, 10.0)
    before = freezer.pids(handle)
    assert states(before) == {"T"}
    await asyncio.sleep(0.2)
    assert freezer.pids(handle) == before
    freezer.thaw(handle)
    await asyncio.sleep(0.1)
    assert "T" not in states(freezer.pids(handle))


async def test_all_of_it_is_killed_also_while_it_stands_still(tree, freezer):
    process = tree(STORM)
    handle = freezer.place(process.pid)
    await freezer.freeze(handle, 10.0)
    await freezer.kill(handle, 10.0)
    process.wait(10)
    assert freezer.pids(handle) == ()


async def test_a_number_that_another_process_has_now_is_nobodys(tree, freezer):
    process = tree()
    stale = f"{process.pid}:1"
    assert freezer.pids(stale) == ()
    freezer.thaw(stale)
    await freezer.kill(stale, 1.0)
    assert process.poll() is None
    with pytest.raises(NotFoundError):
        await freezer.freeze(stale, 1.0)


async def test_only_this_boxs_roots_count_as_frozen(tree):
    process = tree()
    handle = SignalFreezer(lambda _: True).place(process.pid)
    await SignalFreezer(lambda _: True).freeze(handle, 10.0)
    # It is no kyb-tree: somebody stopped their own program.
    assert handle not in SignalFreezer(lambda _: True).frozen()
