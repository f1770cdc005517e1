"""Fakes of what the agent's warden asks of the world, on the made-up machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.core.seat.budget import HostMemory
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.core.seat.budget import MemoryLevel
    from kybernate.types import PodRef, PodUid
    from tests.kit.machine import FakeProcess, Machine


class FakeCulprits:
    """Implements `ports.Culprits`. `killed` are the PIDs that were killed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.killed: list[int] = []

    def name(self, pid: int) -> str:
        """Made of its PID."""
        return f"app{_live(self._machine, pid).pid}"

    def kill(self, pid: int, start_time: int) -> bool:
        """It dies."""
        process = self._machine.procs.get(pid)
        if process is None or not process.alive or process.start != start_time:
            return False
        self.killed.append(pid)
        if self._machine.inits.get(process.uid) == pid:
            self._machine.end_container(process.uid)
        process.alive, process.memory = False, {}
        return True


class FakeMemory:
    """Implements `ports.Memory`. Tests set what it says; `limits` are by kyb-init's PID."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.node = HostMemory(1 << 42, 1 << 42, 0.0)
        self.limits: dict[int, tuple[MemoryLevel, ...]] = {}
        self.starved: dict[int, int] = {}
        self.fails = False

    def host(self) -> HostMemory:
        """As set."""
        if self.fails:
            raise OSError(5, "Input/output error")
        return self.node

    def levels(self, pid: int, need: int) -> tuple[MemoryLevel, ...]:
        """As set."""
        return self.limits.get(_live(self._machine, pid).pid, ())

    def oom_kills(self, pid: int) -> int:
        """As counted by `FakeDeaths.kill`."""
        return self.starved.get(_live(self._machine, pid).pid, 0)


class FakeDeaths:
    """Implements `ports.Deaths`; tells only of deaths by its own `kill`."""

    def __init__(self, machine: Machine, memory: FakeMemory) -> None:
        self._machine = machine
        self._memory = memory
        self.watched: dict[PodUid, tuple[tuple[int, ...], Callable[[PodUid, int], None]]] = {}

    def watch(
        self, uid: PodUid, pids: Iterable[int], on_death: Callable[[PodUid, int], None]
    ) -> None:
        """Watched until the first is dead."""
        self.watched[uid] = (tuple(pids), on_death)
        for pid in self.watched[uid][0]:
            if not self._machine.procs[pid].alive:
                asyncio.get_running_loop().call_soon(self._tell, uid, pid)

    def unwatch(self, uid: PodUid) -> None:
        """Watched no more."""
        self.watched.pop(uid, None)

    def kill(self, pid: int, *, starved: bool = False) -> None:
        """The kernel kills this process at once, also a frozen one; `starved`: out of memory."""
        process = self._machine.procs[pid]
        process.alive, process.memory = False, {}
        if starved:
            init = self._machine.inits[process.uid]
            self._memory.starved[init] = self._memory.starved.get(init, 0) + 1
        for uid, (pids, _) in tuple(self.watched.items()):
            if pid in pids:
                self._tell(uid, pid)

    def _tell(self, uid: PodUid, pid: int) -> None:
        if uid in self.watched:
            _, on_death = self.watched.pop(uid)
            on_death(uid, pid)


class FakeAnnouncer:
    """Implements `nodeagent.guard.announce.Announcer`: what was told of node and pods, by name."""

    def __init__(self) -> None:
        self.node: list[tuple[str, str]] = []
        self.pods: list[tuple[str, str, str]] = []

    def told_node(self, kind: str, reason: str, sentence: str) -> None:
        """Remembered."""
        self.node.append((reason, sentence))

    def told_pod(self, pod: PodRef, kind: str, reason: str, sentence: str) -> None:
        """Remembered."""
        self.pods.append((str(pod), reason, sentence))


def _live(machine: Machine, pid: int) -> FakeProcess:
    process = machine.procs.get(pid)
    if process is None or not process.alive:
        raise NotFoundError(f"process {pid} is gone")
    return process
