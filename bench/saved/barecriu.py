"""The commands alone: `kyb-enter … criu dump` and `kyb-enter … criu restore`, as in
docs/concepts/criu.md.

The tree below a container's process 1 is written to a folder and recreated, without anything that
makes it safe: nothing is synced, hashed, held back or written down.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.parts.host import CGROUPS
from tests.kit.node.containers import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kybernate.adapters.criu import Tools

FIRST = 80
NAMES = {"images": 90, "work": 91, "cache": 96}
CRIU = ("--no-default-config", "--manage-cgroups=ignore", "--tcp-established", "-v1")
_NS_GET_PARENT = 0xB702
_CLONE_NEWPID = 0x20000000
_libc = ctypes.CDLL(None, use_errno=True)


class Bare:
    """One container. `init` is the host's PID of its process 1, ours for a tree in none; `tree`
    finds that of the tree.

    `cgroups`: where the tree is recreated; by default where process 1 is.
    """

    def __init__(
        self,
        tools: Tools,
        init: int,
        tree: Callable[[], int],
        folder: Path,
        cgroups: Sequence[Path] = (),
    ) -> None:
        self._tools, self._init, self._tree = tools, init, tree
        self._cgroups = tuple(cgroups) or homes(init)
        self.images, self._work = folder / "images", folder / "work"
        for one in (self.images, self._work):
            one.mkdir(parents=True)

    def dump(self, *, goes_on: bool = False) -> float:
        """Seconds of a dump into an empty folder; the tree is gone then, unless it `goes_on`."""
        for file in self.images.iterdir():
            file.unlink()
        tree = self._tree()
        self._pipes = [os.readlink(f"/proc/{self._init}/fd/{number}") for number in range(3)]
        number = number_inside(tree)
        after = ("--leave-running",) if goes_on else ()
        seconds = self._run(("dump", "-t", str(number), "--network-lock", "skip", *after, *CRIU))
        if not goes_on:
            wait_for(lambda: not Path(f"/proc/{tree}").exists(), "the tree lives on")
        return seconds

    def sync(self) -> float:
        """Seconds in which what was dumped reaches the disk, file by file, as a commit would."""
        began = time.monotonic()
        for path in (*self.images.iterdir(), self.images):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return time.monotonic() - began

    def restore(self, *, lazy: bool = False) -> float:
        """Seconds of a restore; with `lazy` the memory comes later."""
        with self._inherited() as (keep, options):
            argv = ("restore", "-d", *CRIU, *options, *(["--lazy-pages"] if lazy else []))
            return self._run(argv, keep, self._cgroups)

    def start_pages(self) -> subprocess.Popen[bytes]:
        """What serves the memory of a lazy restore; to be started before it, and waited for."""
        socket = self._work / "lazy-pages.socket"
        socket.unlink(missing_ok=True)
        with self._command(("lazy-pages", *CRIU[:1])) as (argv, fds), beside(self._init):
            process = subprocess.Popen(argv, pass_fds=fds, env={})
        wait_for(socket.exists, "lazy-pages doesn't start")
        return process

    def _run(
        self,
        argv: tuple[str, ...],
        keep: dict[int, int] | None = None,
        cgroups: Sequence[Path] = (),
    ) -> float:
        with self._command(argv, keep, cgroups) as (command, fds), beside(self._init):
            began = time.monotonic()
            subprocess.run(command, pass_fds=fds, env={}, check=True)
            return time.monotonic() - began

    @contextlib.contextmanager
    def _command(
        self,
        argv: tuple[str, ...],
        keep: dict[int, int] | None = None,
        cgroups: Sequence[Path] = (),
    ) -> Iterator[tuple[list[str], list[int]]]:
        with contextlib.ExitStack() as stack:

            def opened(path: Path, flags: int) -> int:
                descriptor = os.open(path, flags)
                stack.callback(os.close, descriptor)
                return descriptor

            target = os.pidfd_open(self._init)
            stack.callback(os.close, target)
            init = opened(Path(f"/proc/{self._init}/exe"), os.O_PATH)
            program = opened(self._tools.criu, os.O_PATH)
            folders = {"images": self.images, "work": self._work, "cache": self._tools.cache}
            kept = {NAMES[name]: opened(path, os.O_RDONLY) for name, path in folders.items()}
            kept |= keep or {}
            joined = [opened(*_entrance(path)) for path in cgroups]
            entered = ["--target", str(target), "--init", str(init)]
            entered = ["--here"] if self._init == os.getpid() else entered
            command = [str(self._tools.enter), *entered, "--run", str(program)]
            for number, descriptor in kept.items():
                command += ["--keep", f"{descriptor}={number}"]
            for descriptor in joined:
                command += ["--cgroup", str(descriptor)]
            command += ["--", "criu", *argv, "-D", f"/proc/self/fd/{NAMES['images']}"]
            command += ["-W", f"/proc/self/fd/{NAMES['work']}", "-o", f"{argv[0]}.log"]
            yield command, [target, init, program, *kept.values(), *joined]

    @contextlib.contextmanager
    def _inherited(self) -> Iterator[tuple[dict[int, int], list[str]]]:
        keep: dict[int, int] = {}
        options: list[str] = []
        for number, link in enumerate(self._pipes):
            if link.startswith("pipe:") and not any(link in option for option in options):
                path = f"/proc/{self._init}/fd/{number}"
                keep[FIRST + number] = os.open(path, os.O_WRONLY if number else os.O_RDONLY)
                options += ["--inherit-fd", f"fd[{FIRST + number}]:{link}"]
        try:
            yield keep, options
        finally:
            for descriptor in keep.values():
                os.close(descriptor)


@contextlib.contextmanager
def beside(init: int) -> Iterator[None]:
    """What this thread starts meanwhile is where the agent of that node is: in the PID namespace
    above process 1's, which a node with pods doesn't share with us. kyb-enter believes no other
    process 1. No thread can be started meanwhile."""
    if init == os.getpid():
        yield
        return
    with open("/proc/thread-self/ns/pid") as own, open(f"/proc/{init}/ns/pid") as inner:
        above = fcntl.ioctl(inner, _NS_GET_PARENT)
        try:
            _children_in(above)
            yield
        finally:
            os.close(above)
            _children_in(own.fileno())


def _children_in(space: int) -> None:
    if _libc.setns(space, _CLONE_NEWPID):  # os.setns comes with Python 3.12
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _entrance(group: Path) -> tuple[Path, int]:
    """What a cgroup is joined by, and how it is opened: the way that waits for nothing."""
    tasks = group / "tasks"
    return (tasks, os.O_WRONLY) if tasks.exists() else (group, os.O_RDONLY)


def homes(init: int) -> tuple[Path, ...]:
    """The cgroups of a process, in every hierarchy."""
    found = []
    for line in Path(f"/proc/{init}/cgroup").read_text().splitlines():
        names, path = line.split(":", 2)[1:]
        group = CGROUPS / (names.removeprefix("name=") or "unified") / path.lstrip("/")
        if group.is_dir():
            found.append(group)
    return tuple(found)


def number_inside(pid: int) -> int:
    """The process's number in its own PID namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith("NSpid")]
    return int(line.split()[-1])
