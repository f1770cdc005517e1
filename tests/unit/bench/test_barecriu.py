"""The bare commands reach a container of a node that has a PID namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.saved.barecriu import Bare, beside, number_inside
from kybernate.adapters.criu import Tools

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="namespaces of their own need root and unshare(1)",
)
ENTER = Path(__file__).resolve().parents[3] / "native" / "kyb-enter"
INSIDE = "unshare --mount --pid --fork --mount-proc sh -c 'echo up; read _'"


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """In place of CRIU, what only ends well."""
    subprocess.run(["make", "-s", "-C", str(ENTER), f"OUT={tmp_path}"], check=True)
    (tmp_path / "cache").mkdir()
    found = shutil.which("true")
    assert found is not None
    return Tools(tmp_path / "kyb-enter", Path(found).resolve(), tmp_path / "cache")


@pytest.fixture(params=["host", "node"])
def init(request: pytest.FixtureRequest) -> Iterator[int]:
    """Process 1 of a container, of the host or of a node that has its own processes."""
    of_node = request.param == "node"
    script = INSIDE if of_node else f"exec {INSIDE}"
    argv = [*(["unshare", "--pid", "--fork"] if of_node else []), "sh", "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"up\n"
        yield below(process.pid)[-1]
        process.stdin.close()


def below(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for child in children for one in (int(child), *below(int(child)))]


def test_a_dump_reaches_a_container_wherever_its_node_is(
    tools: Tools, init: int, tmp_path: Path
) -> None:
    assert number_inside(init) == 1
    bare = Bare(tools, init, lambda: init, tmp_path / "bare")
    assert bare.dump(goes_on=True) > 0


def test_what_is_started_afterwards_is_here_again(init: int) -> None:
    ours = os.readlink("/proc/thread-self/ns/pid")

    def where() -> str:
        argv = ["readlink", "/proc/thread-self/ns/pid_for_children"]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    with beside(init):
        pass
    assert where() == ours
