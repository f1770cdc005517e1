"""kyb-enter tells how a program ended, and stays with what it was given if that was not well."""

from __future__ import annotations

import os
import select
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.unit.criu import test_enter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 30.0

enter, container = test_enter.enter, test_enter.container


@contextmanager
def entered(
    enter: Path, container: int, program: str, status: Path, *lent: int
) -> Iterator[subprocess.Popen[bytes]]:
    """kyb-enter at work, which has more than it was told of."""
    files = (
        os.pidfd_open(container),
        os.open(f"/proc/{container}/exe", os.O_PATH),
        os.open(program, os.O_PATH),
        os.open(status, os.O_WRONLY | os.O_CREAT),
    )
    options = ("--target", "--init", "--run", "--status")
    words = [word for pair in zip(options, map(str, files), strict=True) for word in pair]
    process = subprocess.Popen([str(enter), *words, "--", "x"], pass_fds=(*files, *lent))
    for one in (*files, *lent):
        os.close(one)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_program_that_ends_well_is_told_and_nobody_stays(
    enter: Path, container: int, tmp_path: Path
) -> None:
    with entered(enter, container, "/bin/true", tmp_path / "status") as process:
        assert process.wait(LIMIT) == 0
    assert (tmp_path / "status").read_text() == "0"


def test_of_one_that_does_not_what_was_given_stays_open_until_the_target_ends(
    enter: Path, container: int, tmp_path: Path
) -> None:
    ours, theirs = os.pipe()
    target = os.pidfd_open(container)
    with entered(enter, container, "/bin/false", tmp_path / "status", theirs) as process:
        test_enter.wait_for(lambda: (tmp_path / "status").read_text() == "1")
        assert select.select([ours], [], [], 0.2)[0] == [], "it was let go of"
        assert process.poll() is None
        os.kill(container, 9)
        assert select.select([target], [], [], LIMIT)[0]
        assert process.wait(LIMIT) == 1
        assert os.read(ours, 1) == b""
    os.close(ours)
    os.close(target)


def test_who_cannot_tell_does_not_stay(enter: Path, container: int, tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with entered(enter, container, "/bin/false", tmp_path / "full") as process:
        assert process.wait(LIMIT) == 125
