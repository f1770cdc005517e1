"""Parking and waking a process, by the product's own adapter, and by the bare calls."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from typing import TYPE_CHECKING, Any, Protocol

from kybernate.adapters.cuda.driver import CudaHelpers
from kybernate.adapters.cuda.helper import uuid_bytes
from kybernate.types import PodUid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LOCK_TIMEOUT = 10.0
DEADLINE = 600.0


class Parker(Protocol):
    """Moves the GPU memory of a process to host memory and back."""

    name: str

    def park(self, *pids: int) -> None:
        """Lock, then checkpoint."""

    def wake(self, *pids: int) -> None:
        """Restore, then unlock."""


class ByAdapter:
    """By `kybernate.adapters.cuda.driver`, as the node agent does it."""

    name = "kybernate.adapters.cuda.driver"

    def __init__(self, runner: asyncio.Runner, start: Callable[[], Any], deadline: float) -> None:
        """`start` makes a helper, again after a call that hung: its helper was killed."""
        self._runner, self._start, self._deadline = runner, start, deadline
        self._helper = runner.run(start())

    def park(self, *pids: int) -> None:
        self._run("park", list(pids), LOCK_TIMEOUT)

    def wake(self, *pids: int) -> None:
        self._run("wake", list(pids), {})

    def state(self, pid: int) -> str:
        """The driver's state of a process."""
        found = self._run("states", [pid])
        return str(found[pid].name)

    def _run(self, name: str, *arguments: Any) -> Any:
        if not self._helper.running:
            self._helper = self._runner.run(self._start())
        return self._runner.run(getattr(self._helper, name)(*arguments, self._deadline))


class RefusedByDriverError(Exception):
    """A bare call failed: its name, the driver's number and name of the error."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code


class ByBindings:
    """By the bare driver API, from this process."""

    name = "cuda.bindings"

    def __init__(self) -> None:
        from cuda.bindings import driver  # noqa: PLC0415 - may be missing

        self._driver = driver
        self.call("cuInit", 0)

    def park(self, *pids: int) -> None:
        for pid in pids:
            self.lock(pid)
        for pid in pids:
            self.checkpoint(pid)

    def wake(self, *pids: int) -> None:
        for pid in pids:
            self.restore(pid)
        for pid in pids:
            self.unlock(pid)

    def lock(self, pid: int) -> None:
        arguments = self._driver.CUcheckpointLockArgs()
        arguments.timeoutMs = round(LOCK_TIMEOUT * 1000)
        self.call("cuCheckpointProcessLock", pid, arguments)

    def checkpoint(self, pid: int) -> None:
        self.call("cuCheckpointProcessCheckpoint", pid, None)

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]] = ()) -> None:
        """`pairs`: UUIDs, of before and after."""
        arguments = None
        if pairs:
            arguments = self._driver.CUcheckpointRestoreArgs()
            arguments.gpuPairs = [self._pair(*pair) for pair in pairs]
            arguments.gpuPairsCount = len(pairs)
        self.call("cuCheckpointProcessRestore", pid, arguments)

    def unlock(self, pid: int) -> None:
        self.call("cuCheckpointProcessUnlock", pid, None)

    def state(self, pid: int) -> int:
        """CUprocessState's number."""
        return int(self.call("cuCheckpointProcessGetState", pid))

    def _pair(self, old: str, new: str) -> Any:
        pair = self._driver.CUcheckpointGpuPair()
        for name, uuid in (("oldUuid", old), ("newUuid", new)):
            buffer = ctypes.create_string_buffer(uuid_bytes(uuid), 16)
            setattr(pair, name, self._driver.CUuuid(ctypes.addressof(buffer)))
        return pair

    def call(self, name: str, *arguments: Any) -> Any:
        """What a driver call returns beside its error. Raises RefusedByDriverError."""
        error, *values = getattr(self._driver, name)(*arguments)
        if int(error) != 0:
            raise RefusedByDriverError(name, int(error), error.name)
        return values[0] if values else None


@contextlib.contextmanager
def parker(deadline: float = DEADLINE) -> Iterator[ByAdapter]:
    """The product's way; each call gets `deadline` seconds. Close it to end its processes."""
    helpers = CudaHelpers()
    try:
        with asyncio.Runner() as runner:
            yield ByAdapter(runner, lambda: helpers.start(PodUid("test-gpu")), deadline)
    finally:
        helpers.close()
