"""kyb-enter refuses what makes no sense, and gives a program nothing but what was named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
SHOW = r"""
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv, char **environment)
{
	DIR *folder = opendir("/proc/self/fd");
	printf("name=%s pid=%d", argv[0], (int)getpid());
	for (; *environment; environment++)
		printf(" env=%s", *environment);
	for (struct dirent *one; (one = readdir(folder));)
		if (*one->d_name != '.')
			printf(" fd=%s", one->d_name);
	return argc;
}
"""


@pytest.fixture(scope="session")
def enter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("enter")
    source = ROOT / "native" / "kyb-enter"
    subprocess.run(["make", "-s", "-C", str(source), f"OUT={out}"], check=True)
    return out / "kyb-enter"


@pytest.fixture(scope="session")
def show(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static program that says how it was started."""
    folder = tmp_path_factory.mktemp("show")
    (folder / "show.c").write_text(SHOW)
    argv = ["gcc", "-static", "-o", str(folder / "show"), str(folder / "show.c")]
    subprocess.run(argv, check=True)
    return folder / "show"


@pytest.fixture
def container() -> Iterator[int]:
    """A process in namespaces of its own; its PID."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("namespaces of their own need root and unshare(1)")
    flags = ("--pid", "--mount", "--net", "--ipc", "--uts", "--cgroup", "--fork", "--mount-proc")
    script = "echo up; exec sleep 60"
    process = subprocess.Popen(
        ["unshare", *flags, "--kill-child", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    yield int(path.read_text())
    process.kill()
    process.communicate()


def run(
    enter: Path, *arguments: str, fds: tuple[int, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(enter), *arguments],
        pass_fds=fds,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"LD_PRELOAD": "/nowhere.so", "HOME": "/root"},
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--target",),
        ("--target", "x", "--run", "0", "--", "a"),
        ("--target", "-1", "--run", "3", "--", "a"),
        ("--target", "99999", "--run", "3", "--", "a"),
        ("--target", "2", "--run", "3", "--", "a"),
        ("--", "a"),
        ("--unknown", "3", "--", "a"),
        ("--last-pid", "0", "--", "a"),
        ("--last-pid", "99999999999999999999", "--", "a"),
        ("--keep", "3", "--", "a"),
        ("--keep", "3=1", "--", "a"),
        ("--keep", "3=100000", "--", "a"),
        ("--die-with-me",),
    ],
)
def test_nonsense_is_refused_before_anything_is_done(
    enter: Path, arguments: tuple[str, ...]
) -> None:
    found = run(enter, *arguments)
    assert found.returncode == 2
    assert found.stderr.startswith("kyb-enter: ")
    assert "usage:" in found.stderr


def test_a_cgroup_must_be_one(enter: Path, show: Path, container: int, tmp_path: Path) -> None:
    wrong = os.open(tmp_path / "cgroup.procs", os.O_RDWR | os.O_CREAT)
    target, program = os.pidfd_open(container), os.open(show, os.O_PATH)
    found = run(
        enter,
        *("--target", str(target), "--run", str(program), "--cgroup", str(wrong), "--", "x"),
        fds=(target, program, wrong),
    )
    for one in (wrong, target, program):
        os.close(one)
    assert found.returncode == 2
    assert "is no file of a cgroup" in found.stderr
    assert (tmp_path / "cgroup.procs").read_text() == ""


def test_the_program_gets_what_is_named_and_nothing_else(
    enter: Path, show: Path, container: int, tmp_path: Path
) -> None:
    folder, other = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    target, program = os.pidfd_open(container), os.open(show, os.O_PATH)
    try:
        found = run(
            enter,
            *("--target", str(target), "--run", str(program), "--keep", f"{folder}=90"),
            *("--last-pid", "3000", "--", "criu", "one"),
            fds=(target, program, folder, other),
        )
    finally:
        for one in (folder, other, target, program):
            os.close(one)
    assert found.returncode == 2, "the program's own status"
    words = found.stdout.split()
    assert words[0] == "name=criu"
    assert int(words[1].removeprefix("pid=")) > 3000
    assert [word for word in words if word.startswith("env=")] == ["env=PATH=/proc/none"]
    numbers = sorted(int(word[3:]) for word in words if word.startswith("fd="))
    assert numbers == [0, 1, 2, 3, 90], "3 is the program's own look"


def test_a_container_that_is_gone_is_told(enter: Path, show: Path) -> None:
    gone = subprocess.Popen(["true"])
    target = os.pidfd_open(gone.pid)
    gone.wait()
    program = os.open(show, os.O_PATH)
    try:
        found = run(
            enter,
            *("--target", str(target), "--run", str(program), "--", "x"),
            fds=(target, program),
        )
    finally:
        os.close(target)
        os.close(program)
    assert found.returncode == 125
    assert "cannot enter" in found.stderr
