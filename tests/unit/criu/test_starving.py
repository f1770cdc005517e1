"""How a restore that memory ended is told from one that CRIU refused."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.criu.starving import Watch, lacked

if TYPE_CHECKING:
    from pathlib import Path

REFUSED = ["(00.1) Error (criu/files-reg.c:2): Can't open file dev/shm/x"]
LACKS = ["(00.1) Error (criu/mem.c:12): Can't mmap: Cannot allocate memory"]
FIRST = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
SECOND = "low 0\nhigh 0\nmax 7\noom 1\noom_kill {}\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("name", "controller", "text"),
    [("memory.oom_control", "memory", FIRST), ("memory.events", "", SECOND)],
)
def test_whom_the_kernel_killed_meanwhile_tells_it(
    tmp_path: Path, name: str, controller: str, text: str
) -> None:
    (tmp_path / name).write_text(text.format(3))
    watch = Watch({controller: tmp_path})
    assert not watch.killed(1)
    (tmp_path / name).write_text(text.format(4))
    assert watch.killed(1)
    assert not Watch({controller: tmp_path}).killed(1)


@pytest.mark.parametrize(
    ("code", "killed"),
    [
        (128 + signal.SIGKILL, True),
        (-signal.SIGKILL, True),
        (1, False),
        (128 + signal.SIGSEGV, False),
    ],
)
def test_without_such_a_count_its_end_does(tmp_path: Path, code: int, killed: bool) -> None:
    assert Watch({"memory": tmp_path}).killed(code) is killed
    assert Watch({}).killed(code) is killed


@pytest.mark.parametrize(("said", "lacks"), [(LACKS, True), (REFUSED, False), ([], False)])
def test_its_words_tell_that_something_lacked(said: list[str], lacks: bool) -> None:
    assert lacked(said) is lacks
