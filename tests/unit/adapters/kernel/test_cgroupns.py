"""Entering the node's cgroup namespace, with the kernel's own namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are made by root")

ENTER = """
import os, sys
from pathlib import Path
from kybernate.adapters.kernel.cgroupns import enter_node_cgroups
def same():
    return os.readlink("/proc/self/ns/cgroup") == os.readlink("/proc/1/ns/cgroup")
before = same()
enter_node_cgroups(Path(sys.argv[1]))
(effective,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")]
admin, ptrace = (int(effective, 16) >> bit & 1 for bit in (21, 19))
print(before, same(), admin, ptrace)
"""
NODE = ("unshare", "--pid", "--fork", "--mount-proc")
CONTAINER = ("unshare", "--cgroup", "--fork")


@pytest.fixture
def version2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").touch()
    return tmp_path


def enter(mount: Path, *wrapper: str) -> subprocess.CompletedProcess[str]:
    """Tries it in a process below a PID 1 of its own."""
    argv = [*NODE, "sh", "-c", '"$@"; exit $?', "sh", *wrapper, sys.executable, "-c", ENTER]
    return subprocess.run(
        [*argv, str(mount)], capture_output=True, text=True, timeout=30, check=False
    )


def test_a_container_enters_the_nodes_namespace_and_gives_the_right_away(version2: Path) -> None:
    assert enter(version2, *CONTAINER).stdout.split() == ["False", "True", "0", "1"]


def test_where_it_is_the_nodes_already_only_the_right_goes(version2: Path) -> None:
    assert enter(version2).stdout.split() == ["True", "True", "0", "1"]


def test_version_1_has_no_need_of_it(tmp_path: Path) -> None:
    assert enter(tmp_path, *CONTAINER).stdout.split() == ["False", "False", "0", "1"]


def test_a_missing_right_is_named(version2: Path) -> None:
    found = enter(version2, *CONTAINER, "setpriv", "--bounding-set=-sys_admin")
    assert found.returncode == 1
    assert "SYS_PTRACE and SYS_ADMIN" in found.stderr
