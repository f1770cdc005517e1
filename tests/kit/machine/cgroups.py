"""Cgroups that freeze, and /proc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.errors import DeadlineError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.types import PodUid
    from tests.kit.machine.processes import FakeProcess
    from tests.kit.machine.world import Machine


class FakeFreezer:
    """Implements `ports.Freezer`. Faults: freeze-fails, worker-begins, kill-fails."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def place(self, tree_pid: int) -> str:
        """A handle by the tree's first PID."""
        process = self._machine.procs.get(tree_pid)
        if process is None or not process.alive:
            raise NotFoundError(f"process {tree_pid} is gone")
        process.handle = process.handle or f"/cgroup/{tree_pid}/kyb"
        return process.handle

    async def freeze(self, handle: str, deadline: float) -> None:
        """Frozen at once."""
        if not self.pids(handle):
            raise NotFoundError(f"{handle} is gone")
        if self._machine.fault("freeze-fails"):
            self._machine.thaw(handle)
            raise DeadlineError(f"{handle} does not freeze")
        if handle not in self._machine.frozen and self._machine.fault("worker-begins"):
            self._machine.add_worker(handle)
        self._machine.freezing.discard(handle)
        self._machine.frozen.add(handle)

    def thaw(self, handle: str) -> None:
        """Thawed; what was killed meanwhile dies."""
        self._machine.thaw(handle)

    def frozen(self) -> frozenset[str]:
        """All frozen handles, and those half-way to it."""
        return frozenset(self._machine.frozen | self._machine.freezing)

    def pids(self, handle: str) -> tuple[int, ...]:
        """Live processes in it."""
        procs = self._machine.procs.values()
        return tuple(p.pid for p in procs if p.alive and p.handle == handle)

    async def kill(self, handle: str, deadline: float) -> None:
        """Everything in it dies, and its container ends."""
        if self._machine.fault("kill-fails"):
            self._machine.hang(handle)
            raise DeadlineError(f"processes in {handle} outlived SIGKILL")
        self._machine.kill_handle(handle)


class FakeProcs:
    """Implements `ports.Procs`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def _live(self, pid: int) -> FakeProcess:
        process = self._machine.procs.get(pid)
        if process is None or not process.alive:
            raise NotFoundError(f"process {pid} is gone")
        return process

    def child_of(self, init_pid: int) -> int:
        """kyb-tree."""
        for process in self._machine.procs.values():
            if process.parent == init_pid and process.alive:
                return process.pid
        raise NotFoundError(f"process {init_pid} has no child")

    def start_time(self, pid: int) -> int:
        """As made up at its start."""
        return self._live(pid).start

    def alive(self, pid: int, start_time: int) -> bool:
        """Whether exactly it lives."""
        process = self._machine.procs.get(pid)
        return process is not None and process.alive and process.start == start_time

    def listening(self, pids: Sequence[int], port: int) -> bool:
        """Whether one of them has the port."""
        procs = self._machine.procs
        return any(procs[pid].alive and procs[pid].port == port for pid in pids)

    def pod_uid_of(self, pid: int) -> PodUid | None:
        """Its pod."""
        return self._live(pid).uid

    def pods(self) -> frozenset[PodUid]:
        """Those with a process that lives."""
        return frozenset(one.uid for one in self._machine.procs.values() if one.alive)

    def pid_in_container(self, pid: int) -> int:
        """As made up at its start."""
        return self._live(pid).inner

    def ending(self, pid: int) -> bool:
        """Whether a signal waits for the thaw, or it is gone."""
        process = self._machine.procs.get(pid)
        return process is None or not process.alive or process.signalled
