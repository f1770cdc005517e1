"""Starts CRIU in a container's namespaces, by kyb-enter.

CRIU gets descriptors under fixed numbers and no path of the container's. What it says goes to
files, so that it lives on when the agent doesn't; a lock that it holds while it runs tells an
agent that was restarted.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, DeadlineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kybernate.adapters.criu.container import Container
    from kybernate.lib.deadline import Deadline

IMAGES, WORK, FREEZER, CACHE, LOCK = 90, 91, 92, 96, 97
"""Descriptors of CRIU's: folder of images, folder of logs, the freezer's cgroup, the folder of
its feature cache (the number is compiled in), and the lock."""

ENTERED = "criu.lock"
PAGES = "pages.lock"
COMMON = (
    *("-D", f"/proc/self/fd/{IMAGES}", "-W", f"/proc/self/fd/{WORK}"),
    *("--no-default-config", "-v2"),
)


_NOISE = ("Can't setup RLIMIT_NOFILE", "cgroupd: recv req")
"""Errors that stop nothing: of a missing capability, and of its own helper's end."""

_ANOTHER = (
    "is another one now",
    "is of type 0",
    "was replaced while it was being opened",
    "was bound in another folder",
    "Too many levels of symbolic links",
    "Stale file handle",
)
_CHANGED = re.compile(
    r"has bad (size|mode) |(Can't open (file|fake fifo|the folder of socket)|"
    r"Can't change working dir|fsnotify: Unable to open) .*: (No such file|Not a directory)"
)
"""What the same container's files have come to meanwhile; in another one they never were there."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The two programs, and a folder on a tmpfs for CRIU's cache of the kernel's features."""

    enter: Path
    criu: Path
    cache: Path = Path("/dev/shm/kyb-criu")  # noqa: S108 - made 0700, and refused if not ours

    def check(self) -> None:
        """Raises ConfigError if the cache could be somebody else's."""
        self.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.cache.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077 or self.cache.is_symlink():
            raise ConfigError(
                "criu", f"{self.cache} is not this user's alone; remove it, and start again"
            )


@dataclass(frozen=True, slots=True)
class Run:
    """One start of CRIU. `keep`: more descriptors by the number that CRIU shall see. `status`: a
    file that will say how it ended. If that is not well kyb-enter stays, and with it what it has:
    also `lent`, descriptors that CRIU doesn't get. `but_ipc`: it stands outside the container's
    namespace of System V IPC."""

    argv: Sequence[str]
    images: Path
    log: str
    lock: str = ENTERED
    keep: Mapping[int, int] | None = None
    cgroups: Sequence[Path] = ()
    last_pid: int = 0
    die_with_agent: bool = False
    freezer: Path | None = None
    status: Path | None = None
    lent: Sequence[int] = ()
    but_ipc: bool = False


class Detached(subprocess.Popen[bytes]):
    """A process that outlives who started it; asyncio would kill it when its loop ends."""

    def __del__(self) -> None:
        """Without the warning that it still runs."""


async def start(tools: Tools, container: Container, run: Run) -> asyncio.subprocess.Process:
    """CRIU inside the container's namespaces. Raises OSError."""
    with ExitStack() as stack:
        argv, how = _command(stack, tools, container, run)
        return await asyncio.create_subprocess_exec(*argv, **how)


def start_detached(tools: Tools, container: Container, run: Run) -> Detached:
    """The same; its kyb-enter outlives an agent that stops, too."""
    with ExitStack() as stack:
        argv, how = _command(stack, tools, container, run)
        return Detached(argv, **how)


def _command(
    stack: ExitStack, tools: Tools, container: Container, run: Run
) -> tuple[list[str], dict[str, Any]]:
    """What is started, and how; what `stack` opens must be open until then."""

    def folder(path: Path) -> int:
        return _opened(stack, path, os.O_RDONLY | os.O_DIRECTORY)

    program = _opened(stack, tools.criu, os.O_PATH)
    lock = _opened(stack, container.work / run.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    keep = {
        IMAGES: folder(run.images),
        WORK: folder(container.work),
        CACHE: folder(tools.cache),
        LOCK: lock,
        **(run.keep or {}),
    }
    if run.freezer is not None:
        keep[FREEZER] = folder(run.freezer)
    groups = [joined(stack, path, run) for path in run.cgroups]
    said = _opened(stack, container.work / "said", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    init = _opened(stack, container.program, os.O_PATH)
    argv = [str(tools.enter), "--target", str(container.pidfd)]
    argv += ["--init", str(init), "--run", str(program)]
    argv += [word for one in groups for word in ("--cgroup", str(one))]
    argv += [word for at, one in keep.items() for word in ("--keep", f"{one}={at}")]
    argv += [word for one in run.lent for word in ("--lent", str(one))]
    argv += ["--last-pid", str(run.last_pid)] if run.last_pid else []
    argv += ["--but-ipc"] if run.but_ipc else []
    argv += ["--die-with-me"] if run.die_with_agent else []
    told = [] if run.status is None else [_opened(stack, run.status, os.O_WRONLY)]
    argv += [word for one in told for word in ("--status", str(one))]
    argv += ["--", "criu", *run.argv, *COMMON, "-o", run.log]
    return argv, {
        "stdin": subprocess.DEVNULL,
        "stdout": said,
        "stderr": said,
        "pass_fds": (container.pidfd, init, program, *groups, *keep.values(), *told, *run.lent),
        "start_new_session": True,
        "env": {},
        "cwd": "/",
    }


async def ended(process: asyncio.subprocess.Process, until: Deadline, what: str) -> int:
    """Its exit status. Raises DeadlineError; it is not killed then."""
    try:
        async with asyncio.timeout(until.left):
            return await process.wait()
    except TimeoutError as error:
        raise DeadlineError(f"CRIU's {what} took too long; it is left to end.") from error


def complaints(container: Container, log: str) -> list[str]:
    """CRIU's errors, the first of which is mostly the cause, and what was said outside its log."""
    lines = []
    for name in ("said", log):
        with suppress(OSError):
            lines += (container.work / name).read_text(errors="replace").splitlines()
    return [
        line.strip()
        for line in lines
        if ("Error" in line or line.startswith("kyb-enter")) and not any(n in line for n in _NOISE)
    ]


def refused(said: Iterable[str], *, same: bool) -> bool:
    """By CRIU's errors: whether something else lies where the tree had something open, or a link
    stands in its way (inroot.patch). `same`: of its own container, in which it was there; then
    also if nothing does, or if it has another size or mode now."""
    return any(
        any(word in line for word in _ANOTHER) or (same and _CHANGED.search(line)) for line in said
    )


def joined(stack: ExitStack, group: Path, run: Run) -> int:
    """What kyb-enter joins a cgroup by, the quick way: see its `join`.

    Born in a folder it is below a kyb-enter of its own. One that serves pages must not be: killed,
    it would continue, and what it serves with it.
    """
    if (group / "tasks").exists():
        return _opened(stack, group / "tasks", os.O_WRONLY)
    if run.lock == PAGES:
        return _opened(stack, group / "cgroup.procs", os.O_WRONLY)
    return _opened(stack, group, os.O_RDONLY | os.O_DIRECTORY)


def _opened(stack: ExitStack, path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    stack.callback(os.close, descriptor)
    return descriptor
