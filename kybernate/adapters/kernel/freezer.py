"""The sub-cgroup of a seat's tree: frozen as a whole while the seat is parked.

It lies in the seat container's own cgroup, so that the container's limits go on to hold and the
runtime removes it with the rest. Version 1 (freezer controller) and version 2 of cgroups have the
same shape here; a handle is the sub-cgroup's path and survives restarts of the agent.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from kybernate.adapters.kernel import smallfile
from kybernate.errors import DeadlineError, NotFoundError

SUB_CGROUP = "kyb"

_FREEZE_TRY = 0.03
"""Seconds after which a freeze is begun again: version 1 can hang in FREEZING where a vfork parent
waits for a child that is frozen already."""
_BETWEEN_TRIES = 0.001
_SPIN = 0.001
_POLL = 0.0005
_MAX_ROUNDS = 100
_GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH)


class _V1:
    """The freezer controller of cgroup version 1."""

    def __init__(self, mount: Path) -> None:
        self.base = mount / "freezer"

    def is_line(self, line: str) -> bool:
        return "freezer" in line.split(":", 2)[1].split(",")

    def order(self, group: Path, frozen: bool) -> None:
        _write(group / "freezer.state", "FROZEN" if frozen else "THAWED")

    def is_frozen(self, group: Path) -> bool:
        return smallfile.read(f"{group}/freezer.state").strip() == "FROZEN"

    def is_thawed(self, group: Path) -> bool:
        return smallfile.read(f"{group}/freezer.state").strip() == "THAWED"


class _V2:
    """The freezer that every cgroup of version 2 has."""

    def __init__(self, mount: Path) -> None:
        self.base = mount

    def is_line(self, line: str) -> bool:
        return line.startswith("0::")

    def order(self, group: Path, frozen: bool) -> None:
        _write(group / "cgroup.freeze", "1" if frozen else "0")

    def is_frozen(self, group: Path) -> bool:
        return "frozen 1" in smallfile.read(f"{group}/cgroup.events").splitlines()

    def is_thawed(self, group: Path) -> bool:
        return smallfile.read(f"{group}/cgroup.freeze").strip() == "0"


class CgroupFreezer:
    """Implements `kybernate.ports.Freezer`. `mount` is where the node mounts its cgroups.

    Without cgroup.controllers there, the node runs version 1 (or the hybrid, whose containers
    live in version 1 all the same).
    """

    def __init__(self, mount: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        version2 = (mount / "cgroup.controllers").exists()
        self._cgroup: _V1 | _V2 = _V2(mount) if version2 else _V1(mount)
        self._proc = proc

    @property
    def base(self) -> Path:
        """The folder of the cgroups that can be frozen."""
        return self._cgroup.base

    def place(self, tree_pid: int) -> str:
        """Move kyb-tree, and whatever it has forked, into the sub-cgroup; return its handle.

        Raises NotFoundError if the process is gone.
        """
        home = self._group_or_none(tree_pid)
        if home is None or not self._runs(tree_pid):
            raise NotFoundError(f"There is no process {tree_pid} any more.")
        group = home if home.name == SUB_CGROUP else home / SUB_CGROUP
        try:
            group.mkdir(exist_ok=True)
        except FileNotFoundError as error:
            raise NotFoundError(f"The container of process {tree_pid} is gone.") from error
        for _ in range(_MAX_ROUNDS):
            outside = [pid for pid in self._family(tree_pid) if self._group_or_none(pid) != group]
            if not outside:
                return str(group)
            for pid in outside:
                self._move(pid, group)
        raise DeadlineError(f"The tree of process {tree_pid} forks faster than it can be moved.")

    async def freeze(self, handle: str, deadline: float) -> None:
        """Stop every process in it, within `deadline` seconds; on error the tree is thawed."""
        group = Path(handle)
        try:
            await self._freeze(group, time.monotonic() + deadline)
        except BaseException as error:
            self.thaw(handle)
            if isinstance(error, OSError) and error.errno in _GONE:
                raise NotFoundError(f"The cgroup {handle} and its processes are gone.") from error
            raise

    def thaw(self, handle: str) -> None:
        """Let every process in it run on; nothing happens if the cgroup is gone."""
        try:
            self._cgroup.order(Path(handle), frozen=False)
        except OSError as error:
            if error.errno not in _GONE:
                raise

    def paused(self, handle: str) -> bool:
        """Whether the runtime froze the container that the tree is in; False if it is gone."""
        try:
            return not self._cgroup.is_thawed(Path(handle).parent)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return False

    def frozen(self) -> frozenset[str]:
        """Handles on this node that are frozen or half-way to it.

        A handle without a process that the agent can see belongs to another PID namespace (a
        second node on the machine), or has nothing left to thaw: it is left out.
        """
        found = set()
        for path, folders, _ in os.walk(self._cgroup.base):
            if SUB_CGROUP in folders:
                folders.remove(SUB_CGROUP)
                group = Path(path) / SUB_CGROUP
                with suppress(OSError):
                    if not self._cgroup.is_thawed(group) and self.pids(str(group)):
                        found.add(str(group))
        return frozenset(found)

    def pids(self, handle: str) -> tuple[int, ...]:
        """All processes in it that are no zombies; empty if the cgroup is gone."""
        try:
            words = smallfile.read(f"{handle}/cgroup.procs").split()
        except OSError as error:
            if error.errno not in (*_GONE, errno.EOPNOTSUPP):
                raise
            return ()
        # 0 stands for a process that the reader's PID namespace doesn't show.
        return tuple(pid for pid in map(int, words) if pid and self._runs(pid))

    async def kill(self, handle: str, deadline: float) -> None:
        """Thaw it and SIGKILL its processes until none is left. Raises DeadlineError."""
        end = time.monotonic() + deadline
        while pids := self.pids(handle):
            for pid in pids:
                self._kill_member(pid, Path(handle))
            self.thaw(handle)
            if time.monotonic() >= end:
                raise DeadlineError(
                    f"Processes {', '.join(map(str, pids))} in {handle} outlived SIGKILL for "
                    f"{deadline:g} s; look for a hung driver call in /proc/PID/stack."
                )
            await asyncio.sleep(_POLL)

    async def _freeze(self, group: Path, end: float) -> None:
        while True:
            began = time.monotonic()
            again = began + _FREEZE_TRY
            self._cgroup.order(group, frozen=True)
            while time.monotonic() < min(again, end):
                if self._cgroup.is_frozen(group):
                    return
                # The loop's clock rounds a sleep up to a millisecond; a tree mostly stops sooner.
                await asyncio.sleep(_POLL if time.monotonic() >= began + _SPIN else 0)
            if time.monotonic() >= end:
                raise DeadlineError(f"The processes in {group} could not be frozen in time.")
            self._cgroup.order(group, frozen=False)
            await asyncio.sleep(_BETWEEN_TRIES)

    def _group_or_none(self, pid: int) -> Path | None:
        try:
            lines = smallfile.read(f"{self._proc}/{pid}/cgroup").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return None
        path = next((line.split(":", 2)[2] for line in lines if self._cgroup.is_line(line)), "/")
        return self._cgroup.base / path.lstrip("/")

    def _family(self, pid: int) -> list[int]:
        family = [pid]
        for member in family:
            with suppress(FileNotFoundError, ProcessLookupError):
                family += smallfile.children(self._proc, member)
        return [member for member in family if self._runs(member)]

    def _move(self, pid: int, group: Path) -> None:
        try:
            _write(group / "cgroup.procs", str(pid))
        except OSError as error:
            if error.errno not in _GONE:
                raise

    def _kill_member(self, pid: int, group: Path) -> None:
        # The PID may have got a new owner since the list was read: hold it, then look again.
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if self._group_or_none(pid) == group:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)

    def _runs(self, pid: int) -> bool:
        try:
            stat = smallfile.read(f"{self._proc}/{pid}/stat")
        except (FileNotFoundError, ProcessLookupError):
            return False
        return stat.rpartition(")")[2].split()[0] not in ("Z", "X", "x")


def _write(path: Path, text: str) -> None:
    # Without O_CREAT: a cgroup that is gone must not be answered with "permission denied".
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
