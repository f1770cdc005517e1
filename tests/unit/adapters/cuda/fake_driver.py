"""A driver in memory, for the helper's logic and as a helper process of its own.

`python fake_driver.py FD` is a mother whose helpers find what they are to do in the PIDs: 600 plus
a number can't be locked, 9000 hangs, 9001 ends the helper.
"""

from __future__ import annotations

import os
import threading
import time

from kybernate.adapters.cuda.helper import CallError, State, main

GPUS = tuple(bytes([number] * 16) for number in range(4))


class FakeDriver:
    def __init__(self, states: dict[int, State] | None = None) -> None:
        self.states = dict(states or {})
        self.failing: dict[tuple[str, int], tuple[int, State | None]] = {}
        self.calls: list[tuple[str, int]] = []
        self.pairs: object = None
        self.mutex = threading.Lock()

    def fail(self, call: str, pid: int, code: int, then: State | None = None) -> None:
        """Let this call fail with this code, and leave the process in this state."""
        self.failing[call, pid] = (code, then)

    def init(self) -> None:
        pass

    def gpus(self):
        return GPUS

    def state(self, pid: int) -> int:
        if pid not in self.states:
            raise CallError("cuCheckpointProcessGetState", 1, "CUDA_ERROR_INVALID_VALUE")
        return self.states[pid]

    def lock(self, pid: int, timeout_ms: int) -> None:
        self._move("lock", pid, State.RUNNING, State.LOCKED)

    def checkpoint(self, pid: int) -> None:
        self._move("checkpoint", pid, State.LOCKED, State.CHECKPOINTED)

    def restore(self, pid: int, pairs: object) -> None:
        self.pairs = pairs
        self._move("restore", pid, State.CHECKPOINTED, State.LOCKED)

    def unlock(self, pid: int) -> None:
        self._move("unlock", pid, State.LOCKED, State.RUNNING)

    def _move(self, call: str, pid: int, before: State, after: State) -> None:
        with self.mutex:
            self.calls.append((call, pid))
        if (call, pid) in self.failing:
            code, then = self.failing[call, pid]
            if then is not None:
                self.states[pid] = then
            raise CallError(call, code, "CUDA_ERROR_OF_THE_TEST")
        if self.states.get(pid) != before:
            raise CallError(call, 401, "CUDA_ERROR_ILLEGAL_STATE")
        self.states[pid] = after


class Scripted(FakeDriver):
    """Processes appear when they are asked about, and their PIDs say what happens."""

    def state(self, pid: int) -> int:
        if pid == 9000:
            time.sleep(600)
        if pid == 9001:
            os._exit(1)
        if pid // 100 == 6:
            self.fail("lock", pid, 600)
        return self.states.setdefault(pid, State.RUNNING)


if __name__ == "__main__":
    main(Scripted)
