"""The freezer on the kernel's own cgroups, of both versions where the machine has both."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from kybernate.adapters.kernel.freezer import CgroupFreezer
from kybernate.errors import NotFoundError

MOUNT = Path("/sys/fs/cgroup")
V1 = MOUNT / "freezer"
V2 = next((path for path in (MOUNT, MOUNT / "unified") if (path / "cgroup.procs").exists()), None)

STORM = """
import subprocess
print('up', flush=True)
while True: subprocess.run(['true'])
"""
COUNTER = """
import sys
print('up', flush=True)
n = 0
while True:
    n += 1
    sys.stdout.write(f'{n}\\n'); sys.stdout.flush()
"""


def writable(folder: Path | None) -> bool:
    return folder is not None and os.access(folder, os.W_OK) and os.geteuid() == 0


def backends() -> list[object]:
    return [
        pytest.param(
            V1,
            id="v1",
            marks=pytest.mark.skipif(not writable(V1), reason="no cgroup v1 freezer to write to"),
        ),
        pytest.param(
            V2,
            id="v2",
            marks=pytest.mark.skipif(not writable(V2), reason="no cgroup v2 to write to"),
        ),
    ]


@pytest.fixture(params=backends())
def base(request):
    """A container's cgroup."""
    group = request.param / f"kyb-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    yield group
    end = time.monotonic() + 5
    for folder in (group / "kyb", group):
        while folder.exists():
            assert time.monotonic() < end, f"{folder} can't be removed"
            with suppress(OSError):  # a process that has just ended is still in it for a moment
                folder.rmdir()


@pytest.fixture
def freezer(base):
    return CgroupFreezer(base.parent.parent if base.parent == V1 else base.parent)


@pytest.fixture
def run(base, freezer):
    """Starts Python code in the container's cgroup, once it has said "up"."""
    started = []

    def start(script: str, placed: bool = True) -> tuple[subprocess.Popen[str], str]:
        def enter() -> None:
            (base / "cgroup.procs").write_text("0")

        process = subprocess.Popen(
            [sys.executable, "-c", script],
            preexec_fn=enter,  # noqa: PLW1509  (one thread here)
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process, freezer.place(process.pid) if placed else ""

    yield start
    asyncio.run(freezer.kill(str(base / "kyb"), 5))
    for process in started:
        process.kill()
        process.communicate(timeout=10)


SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def test_the_tree_gets_a_sub_cgroup_of_its_own(run, base, freezer):
    process, handle = run(SLEEP)
    assert handle == str(base / "kyb")
    assert freezer.pids(handle) == (process.pid,)
    assert freezer.place(process.pid) == handle


def test_children_that_exist_already_come_along(run, freezer):
    process, handle = run(
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600']); print('up', flush=True); time.sleep(600)"
    )
    assert len(freezer.pids(handle)) == 2
    assert process.pid in freezer.pids(handle)


def test_frozen_processes_stand_still_and_go_on(run, freezer):
    process, handle = run(COUNTER)
    asyncio.run(freezer.freeze(handle, 2))
    os.set_blocking(process.stdout.fileno(), False)
    with suppress(TypeError):
        while process.stdout.buffer.read(1 << 16):
            pass
    assert not process.stdout.buffer.read(1)
    assert handle in freezer.frozen()
    freezer.thaw(handle)
    assert handle not in freezer.frozen()
    os.set_blocking(process.stdout.fileno(), True)
    assert process.stdout.buffer.read(1)


def test_a_fork_storm_can_be_placed_frozen_and_killed(run, freezer):
    process, _ = run(STORM, placed=False)
    handle = freezer.place(process.pid)
    for _ in range(20):
        asyncio.run(freezer.freeze(handle, 2))
        freezer.thaw(handle)
    asyncio.run(freezer.kill(handle, 5))
    assert freezer.pids(handle) == ()
    assert process.wait(5) == -9


def test_a_frozen_tree_can_be_killed(run, freezer):
    process, handle = run(SLEEP)
    asyncio.run(freezer.freeze(handle, 2))
    asyncio.run(freezer.kill(handle, 5))
    assert process.wait(5) == -9
    assert handle not in freezer.frozen()


def test_another_agent_finds_the_frozen_tree(run, freezer, base):
    _, handle = run(SLEEP)
    asyncio.run(freezer.freeze(handle, 2))
    again = CgroupFreezer(base.parent.parent if base.parent == V1 else base.parent)
    assert handle in again.frozen()
    again.thaw(handle)


def test_a_frozen_cgroup_without_processes_has_nothing_to_thaw(base, freezer):
    (base / "kyb").mkdir()
    asyncio.run(freezer.freeze(str(base / "kyb"), 2))
    assert str(base / "kyb") not in freezer.frozen()
    freezer.thaw(str(base / "kyb"))


def test_a_handle_whose_cgroup_is_gone(freezer, base):
    handle = str(base / "kyb")
    assert freezer.pids(handle) == ()
    freezer.thaw(handle)
    asyncio.run(freezer.kill(handle, 1))
    with pytest.raises(NotFoundError, match="gone"):
        asyncio.run(freezer.freeze(handle, 1))


def test_a_process_that_is_gone_cannot_be_placed(run, freezer):
    process, _ = run("print('up', flush=True)", placed=False)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(NotFoundError, match=str(process.pid)):
        freezer.place(process.pid)
    process.wait()
    with pytest.raises(NotFoundError, match=str(process.pid)):
        freezer.place(process.pid)


def test_a_tree_is_frozen_and_thawed_many_times(run, freezer):
    _, handle = run(SLEEP)
    for _ in range(10):
        asyncio.run(freezer.freeze(handle, 10))
        freezer.thaw(handle)
