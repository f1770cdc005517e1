"""GPUs as the driver and NVML show them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.types import GpuUuid, PodUid

Phases = Mapping[str, float]
"""Seconds that each phase of an operation took, by its name: lock, checkpoint, restore, unlock."""


class Gpus(Protocol):
    """What NVML says. Any thread may call; a lost GPU raises DriverError."""

    def used(self, gpu: GpuUuid) -> int:
        """Bytes of this GPU's memory that are in use by anyone, now. Raises DriverError."""
        ...

    def processes(self, gpu: GpuUuid) -> tuple[tuple[int, int | None], ...]:
        """(PID, bytes or None if unknown) of each process that holds this GPU. Raises DriverError.

        Processes that the agent's PID namespace can't see are left out.
        """
        ...

    def driver_versions(self) -> tuple[str, str]:
        """(driver version, CUDA version), such as ("580.95.05", "13.0"). Raises DriverError."""
        ...


class ProcessState(StrEnum):
    """The CUDA driver's word on a process."""

    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"
    NO_CUDA = "no-cuda"
    """It is gone, or has no CUDA context."""


class DriverHelper(Protocol):
    """One seat's own subprocess that makes the driver's checkpoint calls and can be killed.

    One call at a time. DriverError carries the driver's own code; after one, the helper has
    already taken back what the driver lets it take back (a lock, a checkpoint), so that
    `states` says where each process really is. After DeadlineError the helper is dead, and so
    is the caller's knowledge: start another, then ask it for `states`.
    """

    async def park(self, pids: Sequence[int], lock_timeout: float, deadline: float) -> Phases:
        """Lock every process, then checkpoint every process: device memory is given back.

        Phases: lock, checkpoint. A lock that times out leaves all RUNNING and raises
        DriverError with code 600.
        """
        ...

    async def wake(
        self, pids: Sequence[int], gpu_map: Mapping[GpuUuid, GpuUuid], deadline: float
    ) -> Phases:
        """Restore every process, unlock every process, see them run. Phases: restore, unlock,
        canary. DriverError also if none of them is left, or one doesn't run after all.

        `gpu_map` (old to new) is empty when the GPUs stay the same. Processes that are LOCKED
        or RUNNING already are taken from where they are, so that a half-done wake or park can
        be finished by it.
        """
        ...

    async def states(self, pids: Sequence[int], deadline: float) -> Mapping[int, ProcessState]:
        """Each process's state; never raises DriverError for one that is gone."""
        ...

    def kill(self) -> None:
        """End the subprocess at once; idempotent, quick."""
        ...


class DriverHelpers(Protocol):
    """Starts helpers by forking a process that has everything imported (about 10 ms each)."""

    async def start(self, uid: PodUid) -> DriverHelper:
        """A live helper for this seat. Raises DriverError if the driver can't be initialised."""
        ...

    def close(self) -> None:
        """End all helpers and the process they are forked from; quick."""
        ...
