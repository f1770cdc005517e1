"""Host memory from made-up /proc and cgroup trees of both versions, and from this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.kernel.memory import KernelMemory
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
MEMINFO = "MemTotal: 4194304 kB\nMemFree: 1 kB\nMemAvailable: 2097152 kB\nBuffers: 3 kB\n"
PRESSURE = "some avg10=3.00 avg60=0.00\nfull avg10=12.34 avg60=1.00 avg300=0.00 total=7\n"
POD = "kubepods/burstable/pod1/container"
UNLIMITED_V1 = "9223372036854771712"


class Node:
    """A node's /proc and cgroup mount."""

    def __init__(self, root: Path, version: int) -> None:
        self.mount, self.proc, self.version = root / "cgroup", root / "proc", version
        self.base = self.mount if version == 2 else self.mount / "memory"
        self.base.mkdir(parents=True)
        (self.proc / "pressure").mkdir(parents=True)
        (self.proc / "42").mkdir()
        (self.proc / "meminfo").write_text(MEMINFO)
        (self.proc / "pressure/memory").write_text(PRESSURE)
        if version == 2:
            (self.mount / "cgroup.controllers").write_text("cpu memory\n")
        line = f"0::/{POD}" if version == 2 else f"7:memory:/{POD}\n4:freezer:/elsewhere"
        (self.proc / "42/cgroup").write_text(f"{line}\n")

    def limit(self, path: str, limit: str, usage: int, cached: int, oom: int = 0) -> None:
        folder = self.base / path
        folder.mkdir(parents=True, exist_ok=True)
        v2 = self.version == 2
        (folder / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(f"{limit}\n")
        (folder / ("memory.current" if v2 else "memory.usage_in_bytes")).write_text(f"{usage}\n")
        key = "inactive_file" if v2 else "total_inactive_file"
        (folder / "memory.stat").write_text(f"anon 1\n{key} {cached}\n")
        events = "memory.events" if v2 else "memory.oom_control"
        (folder / events).write_text(f"oom 9\noom_kill {oom}\n")

    def memory(self) -> KernelMemory:
        return KernelMemory(self.mount, self.proc)


@pytest.fixture(params=[1, 2])
def node(request, tmp_path):
    return Node(tmp_path, request.param)


def test_the_node(node):
    host = node.memory().host()
    assert (host.total, host.available, host.stalled) == (4 * GIB, 2 * GIB, 12.34)


def test_a_kernel_that_says_nothing_of_pressure(node):
    (node.proc / "pressure/memory").unlink()
    assert node.memory().host().stalled is None


def test_limits_from_the_container_up_without_what_can_be_dropped(node):
    node.limit(POD, str(8 * GIB), 5 * GIB, GIB, oom=3)
    node.limit("kubepods/burstable/pod1", str(9 * GIB), 5 * GIB, GIB)
    node.limit("kubepods/burstable", UNLIMITED_V1 if node.version == 1 else "max", 7, 0)
    node.limit("kubepods", str(20 * GIB), 19 * GIB, 0)
    levels = node.memory().levels(42, need=7 * GIB)
    assert [(one.whose, one.limit // GIB, one.room // GIB) for one in levels] == [
        ("its container's", 8, 4),
        ("its pod's", 9, 5),
        ("the cgroup kubepods's", 20, 1),
    ]
    assert node.memory().oom_kills(42) == 3


def test_what_can_be_dropped_is_asked_for_only_where_room_is_short(node):
    node.limit(POD, str(8 * GIB), 5 * GIB, GIB)
    assert [one.room // GIB for one in node.memory().levels(42, need=3 * GIB)] == [3]
    assert [one.room // GIB for one in node.memory().levels(42, need=3 * GIB + 1)] == [4]


def test_a_container_that_is_gone(node):
    assert node.memory().levels(42, GIB) == ()
    assert node.memory().oom_kills(42) == 0
    with pytest.raises(NotFoundError, match="43"):
        node.memory().levels(43, GIB)
    with pytest.raises(NotFoundError, match="43"):
        node.memory().oom_kills(43)


def test_this_machine():
    memory = KernelMemory()
    host = memory.host()
    assert 0 < host.available <= host.total
    assert memory.oom_kills(os.getpid()) >= 0
    assert all(level.limit > 0 for level in memory.levels(os.getpid(), 0))
