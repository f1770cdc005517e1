"""kyb-enter refuses what makes no sense, and gives a program nothing but what was named."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.kernel import smallfile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[3]
SHOW = r"""
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv, char **environment)
{
	if (strcmp(argv[0], "stays") == 0)
		return pause();
	DIR *folder = opendir("/proc/self/fd");
	char ipc[64] = "";
	readlink("/proc/self/ns/ipc", ipc, sizeof(ipc) - 1);
	printf("name=%s pid=%d ipc=%s", argv[0], (int)getpid(), ipc);
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
    init = int(path.read_text())
    wait_for(lambda: Path(f"/proc/{init}/comm").read_text() == "sleep\n")
    yield init
    process.kill()
    process.communicate()


def group(kind: str, wanted: str) -> Iterator[Path]:
    """A cgroup of this file system below a root where there is this file; gone afterwards."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    roots = (Path(at) for _, at, found, *_ in mounts if found == kind)
    root = next((one for one in roots if (one / wanted).exists()), None)
    if root is None or os.geteuid() != 0:
        pytest.skip(f"needs root and a file system of {kind} with {wanted}")
    made = root / f"kyb-enter-test-{os.getpid()}"
    made.mkdir()
    yield made
    for pid in members(made):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not members(made))
    made.rmdir()


@pytest.fixture
def version1() -> Iterator[Path]:
    yield from group("cgroup", "release_agent")


@pytest.fixture
def version2() -> Iterator[Path]:
    yield from group("cgroup2", "cgroup.procs")


def members(made: Path) -> list[int]:
    return [int(word) for word in (made / "cgroup.procs").read_text().split()]


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.002)


def children(process: subprocess.Popen[bytes]) -> list[int]:
    return smallfile.children("/proc", process.pid)


def links(pid: int) -> list[str]:
    return [os.readlink(one.path) for one in os.scandir(f"/proc/{pid}/fd")]


def runs(pid: int, program: Path) -> bool:
    return os.path.samefile(f"/proc/{pid}/exe", program)


@contextmanager
def staying(
    enter: Path, show: Path, container: int, cgroup: tuple[Path, int], *more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """kyb-enter below which a program stays, in a cgroup that is given as this file."""
    init = os.open(f"/proc/{container}/exe", os.O_PATH)
    files = os.pidfd_open(container), init, os.open(show, os.O_PATH), os.open(*cgroup)
    target, runs, program, joined = map(str, files)
    words = ["--target", target, "--init", runs, "--run", program, "--cgroup", joined, *more]
    process = subprocess.Popen([str(enter), *words, "--", "stays"], pass_fds=files)
    for one in files:
        os.close(one)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


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


@pytest.mark.parametrize("stays_out", [False, True])
def test_the_namespace_of_ipc_is_entered_unless_it_is_left_out(
    enter: Path, show: Path, container: int, stays_out: bool
) -> None:
    init = os.open(f"/proc/{container}/exe", os.O_PATH)
    files = os.pidfd_open(container), init, os.open(show, os.O_PATH)
    target, runs, program = map(str, files)
    more = ("--but-ipc",) if stays_out else ()
    words = ("--target", target, "--init", runs, "--run", program, *more, "--", "show")
    done = run(enter, *words, fds=files)
    for one in files:
        os.close(one)
    spaces = {pid: os.readlink(f"/proc/{pid}/ns/ipc") for pid in ("self", str(container))}
    assert spaces["self"] != spaces[str(container)]
    assert f"ipc={spaces['self' if stays_out else str(container)]}" in done.stdout.split()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--target",),
        ("--target", "x", "--init", "3", "--run", "0", "--", "a"),
        ("--target", "-1", "--init", "3", "--run", "3", "--", "a"),
        ("--target", "99999", "--init", "3", "--run", "3", "--", "a"),
        ("--target", "2", "--init", "3", "--run", "3", "--", "a"),
        ("--target", "3", "--init", "2", "--run", "3", "--", "a"),
        ("--target", "3", "--run", "3", "--", "a"),
        ("--target", "3", "--init", "3", "--here", "--run", "3", "--", "a"),
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
    words = ("--target", target, "--init", program, "--run", program, "--cgroup", wrong, "--", "x")
    found = run(enter, *map(str, words), fds=(target, program, wrong))
    for one in (wrong, target, program):
        os.close(one)
    assert found.returncode == 2
    assert "is no file of a cgroup" in found.stderr
    assert (tmp_path / "cgroup.procs").read_text() == ""


def test_it_moves_into_a_cgroup_of_version_1(
    enter: Path, show: Path, container: int, version1: Path
) -> None:
    with staying(enter, show, container, (version1 / "tasks", os.O_WRONLY)) as process:
        wait_for(lambda: len(members(version1)) == 2)
        assert process.pid in members(version1)


def test_it_moves_into_a_cgroup_of_version_2_by_its_file(
    enter: Path, show: Path, container: int, version2: Path
) -> None:
    with staying(enter, show, container, (version2 / "cgroup.procs", os.O_WRONLY)) as process:
        wait_for(lambda: len(members(version2)) == 2)
        assert process.pid in members(version2)


def test_what_begins_in_a_folder_of_version_2_outlives_who_asked(
    enter: Path, show: Path, container: int, version2: Path
) -> None:
    with staying(enter, show, container, (version2, os.O_RDONLY)) as process:
        wait_for(lambda: len(members(version2)) == 2)
        assert process.pid not in members(version2)
        process.kill()
        process.wait()
        assert len(members(version2)) == 2


def test_what_begins_in_a_folder_of_version_2_dies_with_who_asked(
    enter: Path, show: Path, container: int, version2: Path
) -> None:
    with staying(enter, show, container, (version2, os.O_RDONLY), "--die-with-me") as process:
        wait_for(lambda: len(members(version2)) == 2)
        process.kill()
        wait_for(lambda: not members(version2))


def test_the_end_of_what_began_in_a_folder_of_version_2_is_told(
    enter: Path, show: Path, container: int, version2: Path
) -> None:
    with staying(enter, show, container, (version2, os.O_RDONLY)) as process:
        wait_for(lambda: len(members(version2)) == 2)
        between = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        (program,) = {*members(version2)} - {int(between)}
        os.kill(program, signal.SIGKILL)
        assert process.wait(30) == 128 + signal.SIGKILL


def test_a_folder_of_version_1_is_none_to_begin_in(
    enter: Path, show: Path, container: int, version1: Path
) -> None:
    with staying(enter, show, container, (version1, os.O_RDONLY)) as process:
        assert process.wait(30) == 2
    assert members(version1) == []


def test_the_program_gets_what_is_named_and_nothing_else(
    enter: Path, show: Path, container: int, tmp_path: Path
) -> None:
    folder, other = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    target, program = os.pidfd_open(container), os.open(show, os.O_PATH)
    init = os.open(f"/proc/{container}/exe", os.O_PATH)
    try:
        words = ("--target", target, "--init", init, "--run", program, "--keep", f"{folder}=90")
        found = run(
            enter,
            *map(str, (*words, "--last-pid", "3000", "--", "criu", "one")),
            fds=(target, init, program, folder, other),
        )
    finally:
        for one in (folder, other, target, init, program):
            os.close(one)
    assert found.returncode == 2, "the program's own status"
    words = found.stdout.split()
    assert words[0] == "name=criu"
    assert int(words[1].removeprefix("pid=")) > 3000
    assert [word for word in words if word.startswith("env=")] == ["env=PATH=/proc/none"]
    numbers = sorted(int(word[3:]) for word in words if word.startswith("fd="))
    assert numbers == [0, 1, 2, 3, 90], "3 is the program's own look"


def test_what_is_lent_stays_open_whatever_numbers_the_program_gets(
    enter: Path, show: Path, tmp_path: Path
) -> None:
    """In an agent with many descriptors it may have any number itself."""
    ours, theirs = socket.socketpair()
    lent, (folder, program) = theirs.fileno(), (os.open(tmp_path, 0), os.open(show, os.O_PATH))
    words = ["--here", "--run", program, "--keep", f"{folder}={lent}", "--lent", lent]
    argv = [str(enter), *map(str, words), "--", "stays"]
    process = subprocess.Popen(argv, pass_fds=(folder, program, lent))
    theirs.close()
    os.close(folder)
    os.close(program)
    try:
        wait_for(lambda: any(runs(pid, show) for pid in children(process)))
        (stays,) = children(process)
        assert Path(f"/proc/{stays}/fd/{lent}").is_dir()
        assert not any("socket:" in link for link in links(stays)), "the program has it"
        assert ours.send(b".") == 1, "nobody has it any more"
        os.kill(stays, signal.SIGKILL)
        process.wait(30)
    finally:
        ours.close()
        process.kill()
        process.wait()


def test_a_container_that_is_gone_is_told(enter: Path, show: Path) -> None:
    gone = subprocess.Popen(["true"])
    target = os.pidfd_open(gone.pid)
    gone.wait()
    program = os.open(show, os.O_PATH)
    try:
        words = ("--target", target, "--init", program, "--run", program, "--", "x")
        found = run(enter, *map(str, words), fds=(target, program))
    finally:
        os.close(target)
        os.close(program)
    assert found.returncode == 125
    assert "cannot enter" in found.stderr


def test_here_the_program_is_run_where_it_is_started(enter: Path, show: Path) -> None:
    """In no container's namespaces: what the node's kernel can is tried so."""
    program = os.open(show, os.O_PATH)
    try:
        found = run(enter, "--here", "--run", str(program), "--", "criu", fds=(program,))
    finally:
        os.close(program)
    assert found.returncode == 1, "the program's own status"
    words = found.stdout.split()
    assert [word for word in words if word.startswith("env=")] == ["env=PATH=/proc/none"]
    assert int(words[1].removeprefix("pid=")) > 1
