"""A seat's container as CRIU's work needs it: process 1, its tree's cgroup, and a folder of ours.

Everything read here comes from /proc and cgroup files of the host's view; none of it is a path
inside the container that is then opened.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import smallfile
from kybernate.dataclass import dataclass
from kybernate.errors import DeadlineError, NotFoundError
from kybernate.ports import DumpState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.lib.deadline import Deadline
    from kybernate.ports import Freezer, Inits

_HOLD = signal.SIGRTMIN + 1
_RESUME = signal.SIGRTMIN + 2
_STATES = {
    "kyb-wait": DumpState.RUNNING,
    "kyb-run": DumpState.RUNNING,
    "kyb-hold": DumpState.HOLDING,
    "kyb-parked": DumpState.PARKED,
}
_POLL = 0.0005
_SPIN = 0.002
"""Seconds of looking again and again: a loop's sleep is rounded up to a whole millisecond, and what
is waited for mostly comes sooner."""
_LOOKS = 20
"""At a name that is none of kyb-init's: it may be half-way from one to the next."""
_GONE = (FileNotFoundError, ProcessLookupError)


def state_of(init: int, proc: Path = Path("/proc")) -> DumpState:
    """By the name that process 1 gives itself. Raises NotFoundError."""
    name = ""
    for _ in range(_LOOKS):
        try:
            name = smallfile.read(f"{proc}/{init}/comm").strip()
        except _GONE as error:
            raise NotFoundError(f"There is no process {init} any more.") from error
        if name in _STATES:
            return _STATES[name]
        time.sleep(_POLL)
    raise NotFoundError(f"Process {init} is {name!r}, not the kyb-init of a container.")


@dataclass(frozen=True, slots=True)
class Container:
    """One container while a call works on it. `pidfd` names its PID 1, which runs the file
    `program`; `work` is our folder."""

    init: int
    handle: Path
    pidfd: int
    work: Path
    proc: Path
    program: Path = Path()

    @classmethod
    @contextmanager
    def opened(
        cls, inits: Inits, init: int, handle: str, root: Path, proc: Path = Path("/proc")
    ) -> Iterator[Container]:
        """Holds the process, so that its PID can't get another owner. Raises NotFoundError, and
        RefusedError if it is no kyb-init."""
        held = inits.hold(init)
        try:
            state_of(init, proc)
            stat = smallfile.read(f"{proc}/{init}/stat").rpartition(")")[2].split()
            work = root / f"{init}-{stat[19]}"
            work.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield cls(init, Path(handle), held.pidfd, work, proc, held.program)
        finally:
            os.close(held.pidfd)

    @property
    def state(self) -> DumpState:
        """By process 1's own word. Raises NotFoundError."""
        return state_of(self.init, self.proc)

    @property
    def home(self) -> str:
        """Names the container exactly: boot, process 1 and its start."""
        boot = smallfile.read(f"{self.proc}/sys/kernel/random/boot_id").strip()
        return f"{boot}/{self.work.name}"

    async def hold(self, until: Deadline) -> None:
        """From now on the tree's end is not the container's."""
        signal.pidfd_send_signal(self.pidfd, _HOLD)
        await self._reaches((DumpState.HOLDING, DumpState.PARKED), until)

    async def resume(self, until: Deadline) -> None:
        """The tree's end is the container's again. Only while there is a tree."""
        signal.pidfd_send_signal(self.pidfd, _RESUME)
        await self._reaches((DumpState.RUNNING,), until)

    async def parked(self, until: Deadline) -> None:
        """Returns once process 1 has seen the tree go."""
        await self._reaches((DumpState.PARKED,), until)

    async def _reaches(self, wanted: tuple[DumpState, ...], until: Deadline) -> None:
        began = time.monotonic()
        while self.state not in wanted:
            if until.passed:
                raise DeadlineError(
                    f"kyb-init (process {self.init}) didn't become {wanted[0]} in time; "
                    "look whether something holds it in /proc/PID/stack."
                )
            await _pause(began)

    def tree(self) -> int | None:
        """The host's PID of kyb-tree, or None if there is none."""
        trees = (one for one in self._children() if self.name(one) in ("kyb-tree", "kyb-gate"))
        return next(trees, None)

    def _children(self) -> tuple[int, ...]:
        """Process 1's, by the host's numbers; empty if it is gone."""
        with suppress(*_GONE):
            text = smallfile.read(f"{self.proc}/{self.init}/task/{self.init}/children")
            return tuple(map(int, text.split()))
        return ()

    def name(self, pid: int) -> str:
        """The process's short name, which it chose itself; empty if it is gone."""
        with suppress(*_GONE):
            return smallfile.read(f"{self.proc}/{pid}/comm").strip()
        return ""

    def pids(self) -> tuple[int, ...]:
        """All processes of the tree's cgroup that have a thread left, by the host's numbers."""
        try:
            words = smallfile.read(f"{self.handle}/cgroup.procs").split()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                raise
            return ()
        return tuple(pid for pid in map(int, words) if pid)

    async def killed(self, freezer: Freezer, until: Deadline) -> None:
        """Kills all of the tree. Returns once no thread is left, so that its memory is free, and
        process 1 has seen each end, so that its PIDs are."""
        ending = self.pids()
        await freezer.kill(str(self.handle), until.left)
        began = time.monotonic()
        while self.pids() or any(self._is_zombie(pid) for pid in ending):
            if until.passed:
                raise DeadlineError(f"Killed processes in {self.handle} don't end.")
            await _pause(began)

    def _is_zombie(self, pid: int) -> bool:
        with suppress(*_GONE):
            stat = smallfile.read(f"{self.proc}/{pid}/stat")
            return stat.rpartition(")")[2].split()[0] == "Z"
        return False

    def threads(self, pid: int) -> tuple[int, ...]:
        """The process's threads by the host's numbers; empty if it is gone."""
        with suppress(*_GONE):
            return tuple(int(name) for name in os.listdir(self.proc / str(pid) / "task"))
        return ()

    def number_inside(self, pid: int) -> int:
        """A process's or thread's number in the container. Raises NotFoundError."""
        with suppress(*_GONE):
            for line in smallfile.read(f"{self.proc}/{pid}/status").splitlines():
                if line.startswith("NSpid:"):
                    return int(line.split()[-1])
        raise NotFoundError(f"There is no process {pid} any more.")

    def is_frozen(self) -> bool:
        """Whether every process of the tree's cgroup stands still; False if it is gone."""
        with suppress(*_GONE):
            return smallfile.read(f"{self.handle}/freezer.state").strip() == "FROZEN"
        with suppress(*_GONE):
            return "frozen 1" in smallfile.read(f"{self.handle}/cgroup.events").splitlines()
        return False

    async def stands(self, until: Deadline) -> bool:
        """The same once CRIU has ended. It orders that and lets go of them, and each needs a
        processor once more before it stands."""
        began = time.monotonic()
        while self._freezes() and not until.passed:
            await _pause(began)
        return self.is_frozen()

    def _freezes(self) -> bool:
        """Whether that is ordered, and not so yet."""
        with suppress(*_GONE):
            return smallfile.read(f"{self.handle}/freezer.state").strip() == "FREEZING"
        with suppress(*_GONE):
            ordered = smallfile.read(f"{self.handle}/cgroup.freeze").strip() == "1"
            return ordered and not self.is_frozen()
        return False

    async def free(self, name: str, program: Path, until: Deadline) -> None:
        """Returns once no CRIU of an earlier call works here; it holds the lock while it does.

        CRIU tries what the kernel can on a child of its own. Killed meanwhile, it leaves a child
        that holds the lock and never ends; `program`, CRIU's file, tells it from others.
        """
        while not is_free(self.work / name):
            self._end_orphans(program)
            if until.passed:
                raise DeadlineError(
                    f"CRIU still works on the container of process {self.init}; it is left to end."
                )
            await asyncio.sleep(0.005)

    def _end_orphans(self, program: Path) -> None:
        """A CRIU at work is a child of kyb-enter's, outside: process 1 inherits from dead ones."""
        for child in self._children():
            with suppress(*_GONE), _held(child) as pidfd:
                if os.path.samefile(self.proc / str(child) / "exe", program):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)


async def _pause(began: float) -> None:
    """Till it is looked again for what has been waited for since `began`."""
    await asyncio.sleep(_POLL if time.monotonic() >= began + _SPIN else 0)


@contextmanager
def _held(pid: int) -> Iterator[int]:
    """The process's descriptor. Raises ProcessLookupError."""
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def is_free(lock: Path) -> bool:
    """Whether nobody holds it."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
