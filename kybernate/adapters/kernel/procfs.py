"""Processes as /proc shows them in the agent's own PID namespace.

Every call is a few small reads and safe on an event loop. A PID alone names nothing for long:
what must outlive the call is named by PID and start time together.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.adapters.kernel import smallfile
from kybernate.errors import NotFoundError
from kybernate.types import PodUid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_TREE_NAMES = frozenset({"kyb-gate", "kyb-tree"})
_TCP_LISTEN = "0A"
_DEAD_STATES = frozenset("ZXx")
_POD = re.compile(
    r"pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?/"
    r"(?:[^/]*?(?P<container>[0-9a-f]{64})(?:\.scope)?)?"
)
"""cgroupfs: .../pod<uid>/<id>; systemd: ...-pod<uid with underscores>.slice/cri-<id>.scope."""


class Procfs:
    """Implements `kybernate.ports.Procs` on a mounted proc file system."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root

    def child_of(self, init_pid: int) -> int:
        """PID of kyb-tree (kyb-gate before its start) below this PID 1. Raises NotFoundError."""
        for child in self._children(init_pid):
            if self._text(child, "comm").strip() in _TREE_NAMES:
                return child
        raise NotFoundError(f"Process {init_pid} has no kyb-tree below it.")

    def start_time(self, pid: int) -> int:
        """Clock ticks since boot at the process's start. Raises NotFoundError."""
        return int(self._stat(pid)[19])

    def parent(self, pid: int) -> int:
        """PID of its parent, 0 if that can't be seen. Raises NotFoundError."""
        return int(self._stat(pid)[1])

    def state(self, pid: int) -> str:
        """The letter of its main thread's state: T if it is stopped. Raises NotFoundError."""
        return self._stat(pid)[0]

    def command(self, pid: int) -> tuple[str, ...]:
        """The words of its command line; it may have changed them. Raises NotFoundError."""
        return tuple(self._text(pid, "cmdline").split("\0")[:-1])

    def processes(self) -> tuple[int, ...]:
        """All PIDs that are shown."""
        return tuple(int(name) for name in os.listdir(self._root) if name.isdigit())

    def alive(self, pid: int, start_time: int) -> bool:
        """Whether exactly this process exists and is no zombie."""
        try:
            stat = self._stat(pid)
        except NotFoundError:
            return False
        return stat[0] not in _DEAD_STATES and int(stat[19]) == start_time

    def descendants(self, pid: int) -> tuple[int, ...]:
        """All processes below this one, parents first; empty if it is gone."""
        found: list[int] = []
        waiting = [pid]
        while waiting:
            try:
                children = self._children(waiting.pop(0))
            except NotFoundError:
                continue
            found += children
            waiting += children
        return tuple(found)

    def listening(self, pids: Sequence[int], port: int) -> bool:
        """Whether one of these processes holds a listening TCP socket on the port.

        Nothing is connected: the sockets of the process's network namespace that listen there
        are compared with its descriptors. Processes that are gone hold none.
        """
        listeners: dict[str, frozenset[str]] = {}
        for pid in pids:
            try:
                namespace = str((self._root / str(pid) / "ns/net").readlink())
                if namespace not in listeners:
                    listeners[namespace] = frozenset(self._listeners(pid, port))
                if listeners[namespace] and self._holds(pid, listeners[namespace]):
                    return True
            except (NotFoundError, OSError):
                continue
        return False

    def pod_uid_of(self, pid: int) -> PodUid | None:
        """The pod in whose cgroup the process is; None for one of no pod. Raises NotFoundError."""
        match = _POD.search(self._text(pid, "cgroup").replace("\n", "/\n"))
        return PodUid(match["uid"].replace("_", "-")) if match else None

    def pods(self) -> frozenset[PodUid]:
        """Those of which a process is shown, a zombie also. Blocks: reads of every process."""
        found: set[PodUid | None] = set()
        for pid in self.processes():
            with suppress(NotFoundError):
                found.add(self.pod_uid_of(pid))
        return frozenset(uid for uid in found if uid is not None)

    def container_id_of(self, pid: int) -> str | None:
        """The runtime's ID of the process's container, if it is in one. Raises NotFoundError."""
        match = _POD.search(self._text(pid, "cgroup").replace("\n", "/\n"))
        return match["container"] if match else None

    def share_ipc(self, pid: int, other: int) -> bool:
        """Whether both processes are in one IPC namespace. Raises NotFoundError."""
        try:
            one, another = (self._root / str(n) / "ns/ipc" for n in (pid, other))
            return one.readlink() == another.readlink()
        except (FileNotFoundError, ProcessLookupError) as error:
            raise NotFoundError(f"process {pid} or {other} is gone") from error

    def pid_in_container(self, pid: int) -> int:
        """Its PID in its innermost PID namespace: 1 for kyb-init. Raises NotFoundError."""
        return int(self._status(pid, "NSpid").split()[-1])

    def ending(self, pid: int) -> bool:
        """Whether SIGTERM or SIGKILL is pending for the process, or it is gone."""
        try:
            if self._stat(pid)[0] in _DEAD_STATES:
                return True
            pending = int(self._status(pid, "SigPnd"), 16) | int(self._status(pid, "ShdPnd"), 16)
        except NotFoundError:
            return True
        return any(pending >> (signum - 1) & 1 for signum in (signal.SIGTERM, signal.SIGKILL))

    def name(self, pid: int) -> str:
        """Its short name; it chose it, so what can't be printed is left out. NotFoundError."""
        return "".join(c for c in self._text(pid, "comm").strip() if c.isprintable())

    def kill(self, pid: int, start_time: int) -> bool:
        """SIGKILL to exactly this process; whether it was still there."""
        # The PID is held before it is compared: it can't get a new owner in between.
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive(pid, start_time):
                return False
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def _text(self, pid: int, name: str) -> str:
        try:
            return smallfile.read(f"{self._root}/{pid}/{name}")
        except (FileNotFoundError, ProcessLookupError) as error:
            raise NotFoundError(f"There is no process {pid} any more.") from error

    def _children(self, pid: int) -> list[int]:
        try:
            return smallfile.children(self._root, pid)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise NotFoundError(f"There is no process {pid} any more.") from error

    def _stat(self, pid: int) -> list[str]:
        # The name, in parentheses, may itself hold spaces and parentheses.
        return self._text(pid, "stat").rpartition(")")[2].split()

    def _status(self, pid: int, name: str) -> str:
        for line in self._text(pid, "status").splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return value.strip()
        raise NotFoundError(f"The kernel says nothing of {name} for process {pid}.")

    def _listeners(self, pid: int, port: int) -> Iterator[str]:
        suffix = f":{port:04X}"
        for table in ("net/tcp", "net/tcp6"):
            path = self._root / str(pid) / table
            if not path.exists():
                continue  # a kernel without IPv6
            for line in self._text(pid, table).splitlines()[1:]:
                words = line.split()
                if words[1].endswith(suffix) and words[3] == _TCP_LISTEN:
                    yield f"socket:[{words[9]}]"

    def _holds(self, pid: int, sockets: Iterable[str]) -> bool:
        wanted = frozenset(sockets)
        for descriptor in (self._root / str(pid) / "fd").iterdir():
            try:
                if str(descriptor.readlink()) in wanted:
                    return True
            except FileNotFoundError:
                continue  # closed meanwhile
        return False
