"""Trees of processes that stand still by SIGSTOP, where no cgroup is ours to freeze.

Needs no right but to signal one's own processes. Unlike a frozen cgroup it can be seen: a parent
that asks for it is told that its child was stopped, and whoever may signal the processes can
continue them. A tree is everything below its root, which is a subreaper: what loses its parent
stays below it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from kybernate.adapters.kernel.procfs import Procfs
from kybernate.errors import DeadlineError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_POLL = 0.002
_STANDS = frozenset("Tt")
_ENDED = frozenset("ZXx")
_ROOT = "kyb-tree"


class SignalFreezer:
    """Implements `kybernate.ports.Freezer`. A handle is the root's PID and start time.

    `ours` says of a kyb-tree whether it is this box's.
    """

    def __init__(self, ours: Callable[[int], bool], procs: Procfs | None = None) -> None:
        self._ours = ours
        self._procs = procs or Procfs()

    def place(self, tree_pid: int) -> str:
        """See `ports.Freezer.place`: nothing is moved, its name is made."""
        return f"{tree_pid}:{self._procs.start_time(tree_pid)}"

    async def freeze(self, handle: str, deadline: float) -> None:
        """See `ports.Freezer.freeze`."""
        if not self.pids(handle):
            raise NotFoundError(f"There is no process of the tree {handle} any more.")
        try:
            await self._stop(handle, time.monotonic() + deadline)
        except BaseException:
            self.thaw(handle)
            raise

    async def _stop(self, handle: str, until: float) -> None:
        while running := self._running(handle):
            for pid in running:
                self._signal(pid, signal.SIGSTOP)
            if time.monotonic() >= until:
                raise DeadlineError(f"Processes {', '.join(map(str, running))} did not stop.")
            await asyncio.sleep(_POLL if self._running(handle) else 0)

    def thaw(self, handle: str) -> None:
        """See `ports.Freezer.thaw`. The root last: it hears of what the others do."""
        for pid in reversed(self.pids(handle)):
            self._signal(pid, signal.SIGCONT)

    def frozen(self) -> frozenset[str]:
        """See `ports.Freezer.frozen`."""
        return frozenset(self.place(pid) for pid in self._procs.processes() if self._is_frozen(pid))

    def pids(self, handle: str) -> tuple[int, ...]:
        """See `ports.Freezer.pids`. The root first."""
        text, _, start = handle.partition(":")
        # A cgroup's: from when models left RAM, which they don't do without cgroups.
        root = int(text) if text.isdigit() else 0
        if not root or not self._procs.alive(root, int(start)):
            return ()
        return tuple(pid for pid in (root, *self._procs.descendants(root)) if self._lives(pid))

    async def kill(self, handle: str, deadline: float) -> None:
        """See `ports.Freezer.kill`. The root last: without it nobody knows what was below."""
        until = time.monotonic() + deadline
        while pids := self.pids(handle):
            for pid in pids[1:] or pids:
                self._signal(pid, signal.SIGKILL)
            if time.monotonic() >= until:
                raise DeadlineError(
                    f"Processes {', '.join(map(str, pids))} outlived SIGKILL for {deadline:g} s; "
                    "look for a hung driver call in /proc/PID/stack."
                )
            await asyncio.sleep(_POLL)

    def _running(self, handle: str) -> list[int]:
        return [pid for pid in self.pids(handle) if not self._stands(pid)]

    def _stands(self, pid: int) -> bool:
        """Whether all of its threads have stopped."""
        try:
            threads: Iterable[str] = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return True  # it ended
        return all(self._state(int(thread)) in _STANDS | _ENDED for thread in threads)

    def _is_frozen(self, pid: int) -> bool:
        try:
            return (
                self._procs.name(pid) == _ROOT
                and self._procs.state(pid) in _STANDS
                and self._ours(pid)
            )
        except NotFoundError:
            return False

    def _lives(self, pid: int) -> bool:
        return self._state(pid) not in _ENDED

    def _state(self, pid: int) -> str:
        try:
            return self._procs.state(pid)
        except NotFoundError:
            return "X"

    @staticmethod
    def _signal(pid: int, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
