"""Parking and waking a process, by the product's own adapter where it can be imported."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_TIMEOUT = 10.0
DEADLINE = 600.0


class Parker(Protocol):
    """Moves the GPU memory of a process to host memory and back."""

    name: str

    def park(self, pid: int) -> None:
        """Lock, then checkpoint."""

    def wake(self, pid: int) -> None:
        """Restore, then unlock."""


class ByAdapter:
    """By `kybernate.adapters.cuda.driver`, as the node agent does it."""

    name = "kybernate.adapters.cuda.driver"

    def __init__(self, runner: asyncio.Runner, helper: Any) -> None:
        self._runner = runner
        self._helper = helper

    def park(self, pid: int) -> None:
        self._runner.run(self._helper.park([pid], LOCK_TIMEOUT, DEADLINE))

    def wake(self, pid: int) -> None:
        self._runner.run(self._helper.wake([pid], {}, DEADLINE))


class ByBindings:
    """By the driver API from this process: for a Python that lacks the adapter's dependencies."""

    name = "cuda.bindings"

    def __init__(self) -> None:
        from cuda.bindings import driver  # noqa: PLC0415 - may be missing

        self._driver = driver
        self._call("cuInit", 0)

    def park(self, pid: int) -> None:
        arguments = self._driver.CUcheckpointLockArgs()
        arguments.timeoutMs = round(LOCK_TIMEOUT * 1000)
        self._call("cuCheckpointProcessLock", pid, arguments)
        self._call("cuCheckpointProcessCheckpoint", pid, None)

    def wake(self, pid: int) -> None:
        self._call("cuCheckpointProcessRestore", pid, None)
        self._call("cuCheckpointProcessUnlock", pid, None)

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._driver, name)(*arguments)[0]
        if int(error) != 0:
            raise RuntimeError(f"{name}: {error.name}")


@contextlib.contextmanager
def parker() -> Iterator[Parker]:
    """The way that this Python allows. Close it to end the adapter's helper processes."""
    try:
        from kybernate.adapters.cuda.driver import CudaHelpers  # noqa: PLC0415 - may be missing
        from kybernate.types import PodUid  # noqa: PLC0415 - may be missing
    except ImportError:
        yield ByBindings()
        return
    helpers = CudaHelpers()
    try:
        with asyncio.Runner() as runner:
            helper = runner.run(helpers.start(PodUid("test-gpu")))
            yield ByAdapter(runner, helper)
    finally:
        helpers.close()
