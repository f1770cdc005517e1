"""A container made by unshare(1) alone: kyb-init and one process that answers through files.

Where a GPU is at hand there often is no container runtime and no network. Everything that the
agent's dumper looks at is here all the same: namespaces of its own, the freezer's cgroup, a process
1 that is kyb-init, log pipes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from images import criu as criu_builder
from kybernate.adapters.criu import Criu, Tools
from kybernate.adapters.criu.record import Record
from kybernate.adapters.kernel.freezer import SUB_CGROUP, CgroupFreezer
from kybernate.errors import KybernateError
from tests.kit.node.containers import Door

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

REPOSITORY = Path(__file__).resolve().parents[2]
CGROUPS = Path("/sys/fs/cgroup")
START_LIMIT = 600.0
"""Seconds that a model may take to load."""
STEP_LIMIT = 600.0
"""Seconds that a dump or a restore may take."""

_UNSHARE = ("unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--fork", "--kill-child")
_ENTER = 'echo 0 >"$1/cgroup.procs" && mount --bind "$2" /run && shift 2 && exec "$@" </dev/null'
_POLL = 0.001

ANSWERING = """
import os, sys, time
def serve(folder, answer):
    number = 0
    while True:
        number += 1
        while not os.path.exists(f"{folder}/ask-{number}"):
            time.sleep(0.001)
        with open(f"{folder}/part", "w") as file:
            file.write(answer())
        os.rename(f"{folder}/part", f"{folder}/answer-{number}")
"""
"""What each program of a box begins with."""


class MissingError(Exception):
    """What a box needs isn't here; the message says what, and how to get it."""


def tools() -> Tools:
    """The programs; kyb-init and kyb-enter are compiled if they aren't. Raises MissingError."""
    missing = [tool for tool in ("unshare", "mount", "make") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        needed = " and ".join(["root"] * (os.geteuid() != 0) + missing)
        raise MissingError(f"CRIU of a container needs {needed}, and this has not")
    argv = ["make", "-s", "-C", str(REPOSITORY / "native"), "kyb-init", "kyb-enter"]
    built = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    there = all((REPOSITORY / "build" / name).exists() for name in ("kyb-init", "kyb-enter"))
    if built.returncode and not there:
        raise MissingError(f"make native fails, and build/ has no kyb-init: {built.stderr.strip()}")
    try:
        criu = criu_builder.for_this_machine(lambda line: print(line, file=sys.stderr))
    except (KybernateError, OSError) as error:
        raise MissingError(
            f"there is no static CRIU, and it can't be built here: {error}; build it elsewhere "
            f"(make criu), and name it by {criu_builder.VARIABLE}"
        ) from error
    return Tools(enter=REPOSITORY / "build" / "kyb-enter", criu=criu)


class Box:
    """One such container. `images`: where its dump goes, on the disk to be measured."""

    def __init__(
        self, tools: Tools, folder: Path, code: str, arguments: tuple[str, ...], **more: Any
    ) -> None:
        """Start it: `code` with its folder and the arguments, or `parked`: a tree's number, to be
        brought here. `env` is its environment."""
        self.folder = folder
        self.images = folder / "images"
        self.said = ""
        self._mail = folder
        self._asked = 0
        self._door = Door(folder / "run" / "kyb")
        self._freezer = CgroupFreezer()
        self._cgroup = _cgroup(f"kyb-gpu-{os.getpid()}-{folder.name}")
        self._runner = asyncio.Runner()
        self._criu = Criu(tools, self._freezer, folder / "criu")
        parked: int | None = more.get("parked")
        words = ["--", sys.executable, "-c", ANSWERING + code, str(folder), *arguments]
        env: Mapping[str, str] = more.get("env") or os.environ
        self._process = self._start(["--parked", str(parked)] if parked else words, env)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.init = self._init_pid()
        self.handle = self._place(parked=parked is not None)

    def _start(self, words: list[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        kyb_init = str(REPOSITORY / "build" / "kyb-init")
        given = (str(self._cgroup), str(self.folder / "run"))
        return subprocess.Popen(
            [*_UNSHARE, "--mount-proc", "sh", "-c", _ENTER, "sh", *given, kyb_init, *words],
            cwd=REPOSITORY,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said += line

    def _init_pid(self) -> int:
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")

        def found() -> bool:
            words = children.read_text().split() if self._process.poll() is None else []
            return bool(words) and _comm(int(words[0])).startswith("kyb-")

        self._wait(found, "kyb-init does not start", 60.0)
        return int(children.read_text().split()[0])

    def _place(self, *, parked: bool) -> str:
        if parked:
            return str(self._cgroup / SUB_CGROUP)
        tree = Path(f"/proc/{self.init}/task/{self.init}/children")
        self._wait(lambda: bool(tree.read_text().split()), "kyb-tree does not start", 60.0)
        return self._freezer.place(int(tree.read_text().split()[0]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(KybernateError):
            self._run(self._freezer.kill(self.handle, 30.0))
        self._process.kill()
        self._process.wait()
        self._reader.join(10.0)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._door.close()
        self._runner.close()
        for group in (Path(self.handle), self._cgroup):
            _remove(group)

    @property
    def pid(self) -> int:
        """The host's PID of the process that answers."""
        pids = self._freezer.pids(self.handle)
        found = [pid for pid in pids if not _comm(pid).startswith("kyb-")]
        assert found, f"the process has ended: {self.said}"
        return found[0]

    def ask(self, limit: float = START_LIMIT) -> str:
        """What it computes now."""
        self._asked += 1
        (self._mail / f"ask-{self._asked}").touch()
        answer = self._mail / f"answer-{self._asked}"
        self._wait(answer.exists, "no answer", limit)
        return answer.read_text()

    def dump(self) -> dict[str, float]:
        """Frozen, written down, synced, ended: seconds of each."""
        shutil.rmtree(self.images, ignore_errors=True)
        self.images.mkdir(mode=0o700)
        self._run(self._freezer.freeze(self.handle, STEP_LIMIT))
        began = time.monotonic()
        self._run(self._criu.dump(self.init, self.handle, self.images, STEP_LIMIT))
        dumped = time.monotonic()
        _sync(self.images)
        synced = time.monotonic()
        self._run(self._criu.end(self.init, self.handle, STEP_LIMIT))
        return {"dump": dumped - began, "sync": synced - dumped}

    def restore(self, source: Box | None = None) -> float:
        """Recreated from its dump, or another box's; seconds."""
        source = source or self
        source.forget_later()
        began = time.monotonic()
        self._run(self._criu.restore(self.init, self.handle, source.images, STEP_LIMIT))
        self._freezer.thaw(self.handle)
        # The process answers where it did: it knows nothing of another folder.
        self._mail, self._asked = source._mail, source._asked
        return time.monotonic() - began

    def forget_later(self) -> None:
        """What it, or another box made of its dump, was asked and answered since the dump."""
        for path in self._mail.glob("a*-*"):
            if int(path.name.rpartition("-")[2]) > self._asked:
                path.unlink()

    def tree_number(self) -> int:
        """What a box that its dump is brought to is started with."""
        return Record.read(self.images).tree

    def size(self) -> int:
        """Bytes of its dump."""
        return sum(path.stat().st_size for path in self.images.iterdir() if path.is_file())

    def _run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(what)

    def _wait(self, condition: Callable[[], bool], what: str, limit: float) -> None:
        end = time.monotonic() + limit
        while not condition():
            ended = self._process.poll() is not None
            assert not ended, f"{what}, the container has ended: {self.said}"
            assert time.monotonic() < end, f"{what} within {limit:g} s: {self.said}"
            time.sleep(_POLL)


@contextmanager
def workplace(disk: Path | None = None) -> Iterator[Path]:
    """A folder on the disk that dumps go to."""
    with tempfile.TemporaryDirectory(prefix="kyb-gpu-", dir=disk or "/var/tmp") as folder:
        yield Path(folder)


def _cgroup(name: str) -> Path:
    version2 = (CGROUPS / "cgroup.controllers").exists()
    group = (CGROUPS if version2 else CGROUPS / "freezer") / name
    try:
        group.mkdir()
    except OSError as error:
        raise MissingError(f"no cgroup can be made: {error}") from error
    return group


def _remove(group: Path) -> None:
    end = time.monotonic() + 30.0
    while group.exists() and time.monotonic() < end:
        with suppress(OSError):
            group.rmdir()
        time.sleep(_POLL)


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _sync(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        if path.is_file() or path.is_dir():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)
