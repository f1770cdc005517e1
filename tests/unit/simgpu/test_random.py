"""Any order of allocations, writes, parking and waking keeps bytes and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from .conftest import GIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Node, Worker

TOTAL = 16 * GIB
STEP = GIB // 4
SCALE = 1024

processes = st.integers(0, 1)
sizes = st.integers(1, 30).map(lambda steps: steps * STEP - steps % 3)


class TwoProcesses(RuleBasedStateMachine):
    """Two processes on one GPU, against what they should hold."""

    node: ClassVar[Node]
    caller: ClassVar[Worker]

    @initialize()
    def begin(self) -> None:
        self.workers: list[Worker] = [self.node.worker(), self.node.worker()]
        self.held: list[dict[int, tuple[int, int]]] = [{}, {}]
        self.parked = [False, False]

    def active(self) -> int:
        """Bytes that processes that aren't parked hold."""
        return sum(self.needed(which) for which in (0, 1) if not self.parked[which])

    def needed(self, which: int) -> int:
        return sum(amount for amount, _ in self.held[which].values())

    @rule(which=processes, amount=sizes)
    def allocate(self, which: int, amount: int) -> None:
        worker = self.workers[which]
        if self.parked[which]:
            return
        if self.active() + amount > TOTAL:
            assert worker.refused("cuMemAlloc", amount) == "CUDA_ERROR_OUT_OF_MEMORY"
            return
        address = worker.alloc(amount)
        checksum = worker.ask("write", address, -(-amount // SCALE), amount % 1000)
        self.held[which][address] = (amount, checksum)

    @rule(which=processes, choice=st.integers(0, 100))
    def free(self, which: int, choice: int) -> None:
        held = self.held[which]
        if self.parked[which] or not held:
            return
        address = sorted(held)[choice % len(held)]
        self.workers[which].ask("cuMemFree", address)
        del held[address]

    @rule(which=processes)
    def park(self, which: int) -> None:
        if not self.parked[which]:
            pid = self.workers[which].pid
            self.caller.ask("lock", pid)
            self.caller.ask("cuCheckpointProcessCheckpoint", pid, None)
            self.parked[which] = True

    @rule(which=processes)
    def wake(self, which: int) -> None:
        pid = self.workers[which].pid
        if not self.parked[which]:
            return
        if self.active() + self.needed(which) > TOTAL:
            assert self.caller.refused("restore", pid) == "CUDA_ERROR_OUT_OF_MEMORY"
            return
        self.caller.ask("restore", pid)
        self.caller.ask("cuCheckpointProcessUnlock", pid, None)
        self.parked[which] = False
        self.check_content(which)

    def check_content(self, which: int) -> None:
        for address, (amount, checksum) in self.held[which].items():
            assert self.workers[which].ask("checksum", address, -(-amount // SCALE)) == checksum

    @invariant()
    def used_is_what_the_active_hold(self) -> None:
        memory = self.caller.ask("nvml", "nvmlDeviceGetMemoryInfo", {"gpu": 0})
        assert memory["used"] == self.active()

    def teardown(self) -> None:
        for which, worker in enumerate(self.workers):
            if not self.parked[which]:
                self.check_content(which)
            worker.kill()


TwoProcesses.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
def test_any_order_of_calls(make_node: Callable[..., Node]) -> None:
    TwoProcesses.node = make_node(restore_oom="retry")
    TwoProcesses.caller = TwoProcesses.node.watcher()
    TwoProcesses.TestCase().runTest()
