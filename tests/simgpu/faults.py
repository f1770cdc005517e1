"""Inject faults into the simulated driver of a node."""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

from kybernate.local.simgpu import layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPERATING_SYSTEM = 304
"""CUDA_ERROR_OPERATING_SYSTEM, what failing checkpoints of real drivers were seen to return."""

DOUBLE_BIT_ECC_EVENT = 2
XID_EVENT = 8
GPU_UNAVAILABLE_EVENT = 16384
RECOVERY_ACTION_EVENT = 32768
"""NVML's numbers for its types of events."""


class Fault(IntEnum):
    """Faults of the checkpoint calls; the comments say what the caller sees.

    LOCK_TIMEOUT: Lock returns NOT_READY at its timeout, the process keeps running.
    CHECKPOINT_FAILS: Checkpoint returns `code`, the process stays LOCKED with its memory.
    RESTORE_OOM: Restore returns OUT_OF_MEMORY; from then on Restore returns OPERATING_SYSTEM and
        Unlock ILLEGAL_STATE: only killing the process helps.
    HANG: the call never returns (an error, once the fault is cleared); the process is untouched.
    DIES_ON_LOCK: the process dies of SIGSEGV in Lock.
    FAILED: the call returns UNKNOWN and leaves the process in state FAILED for good.
    HOLD: the call waits until the fault is cleared, and is then made as if nothing had been; a
        caller that is killed meanwhile has done nothing.
    LOCK_FAILS: Lock returns `code`, the process is LOCKED all the same.
    CHECKPOINT_LATE: Checkpoint returns `code`, the process is CHECKPOINTED all the same.
    PASSING: GetState says `code`, a state of drivers of 13.4 and later: 4 CHECKPOINTING or
        5 RESTORING.
    """

    LOCK_TIMEOUT = 1
    CHECKPOINT_FAILS = 2
    RESTORE_OOM = 3
    HANG = 4
    DIES_ON_LOCK = 5
    FAILED = 6
    HOLD = 7
    LOCK_FAILS = 8
    CHECKPOINT_LATE = 9
    PASSING = 10


class Call(IntEnum):
    """The checkpoint calls that HANG, HOLD and FAILED can be pinned to; ANY is all of them."""

    ANY = 0
    GET_STATE = 1
    LOCK = 2
    CHECKPOINT = 3
    RESTORE = 4
    UNLOCK = 5


class Faults:
    """The fault file of one node folder. Changes are seen by the very next driver call.

    Usable by several processes at once. All faults end with `clear()`, or with their `times`.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / layout.FAULTS_FILE

    def inject(
        self,
        fault: Fault,
        *,
        call: Call = Call.ANY,
        pod: str = "",
        times: int | None = None,
        code: int = OPERATING_SYSTEM,
    ) -> None:
        """Let calls fail: those on a process of the pod with this UID (any process if empty), the
        next `times` of them (all until `clear` if None)."""
        entry = layout.FAULT.pack(fault, call, -1 if times is None else times, code, pod.encode())
        with self._open() as view:
            for slot in range(layout.MAX_FAULTS):
                offset = layout.FAULT_OFFSET + slot * layout.FAULT.size
                kind, _, remaining, _, _ = layout.FAULT.unpack_from(view, offset)
                if kind == 0 or remaining == 0:
                    view[offset : offset + 4] = bytes(4)
                    view[offset + 4 : offset + layout.FAULT.size] = entry[4:]
                    view[offset : offset + 4] = entry[:4]
                    return
        raise ValueError(f"at most {layout.MAX_FAULTS} faults can be set at once; clear some")

    def clear(self, fault: Fault | None = None) -> None:
        """Take back one kind of call fault, or (None) all of them; see also the other methods."""
        with self._open() as view:
            for slot in range(layout.MAX_FAULTS):
                offset = layout.FAULT_OFFSET + slot * layout.FAULT.size
                kind = int.from_bytes(view[offset : offset + 4], "little")
                if fault is None or kind == fault:
                    view[offset : offset + 4] = bytes(4)

    def uses_left(self, fault: Fault) -> int:
        """How many calls a kind of fault, injected with `times`, is still to meet."""
        with self._open() as view:
            entries = [
                layout.FAULT.unpack_from(view, layout.FAULT_OFFSET + slot * layout.FAULT.size)
                for slot in range(layout.MAX_FAULTS)
            ]
        return sum(int(entry[2]) for entry in entries if entry[0] == fault)

    def lose_gpu(self, index: int, *, lost: bool = True) -> None:
        """Let a GPU fall off the bus (NVML answers GPU_IS_LOST, CUDA fails), or bring it back."""
        self._set(layout.LOST_OFFSET + 4 * index, int(lost))

    def nvml_error(self, index: int, code: int) -> None:
        """Let all NVML calls on a GPU answer this code; 0 ends it."""
        self._set(layout.ERROR_OFFSET + 4 * index, code)

    def nvml_hang(self, index: int, *, hangs: bool = True) -> None:
        """Let all NVML calls on a GPU wait until this is taken back."""
        self._set(layout.HANG_OFFSET + 4 * index, int(hangs))

    def recovery_action(self, index: int, action: int) -> None:
        """What the driver says must be done to a GPU: 0 nothing, 1 reset, 2 reboot, 4 drain."""
        self._set(layout.RECOVERY_OFFSET + 4 * index, action)

    def remap_failed(self, index: int, *, failed: bool = True) -> None:
        """Whether a row of the GPU's memory could not be replaced by a spare one."""
        self._set(layout.REMAP_FAILED_OFFSET + 4 * index, int(failed))

    def mig(self, index: int, *, enabled: bool = True) -> None:
        """Whether a GPU is in MIG mode."""
        self._set(layout.MIG_OFFSET + 4 * index, int(enabled))

    def mps(self, index: int, processes: int) -> None:
        """How many processes of an MPS server use a GPU."""
        self._set(layout.MPS_OFFSET + 4 * index, processes)

    def unload_driver(self) -> None:
        """Take the driver away: NVML can't be initialised, and what was begun with it fails."""
        self._set(layout.UNLOADED_OFFSET, 1)

    def load_driver(self) -> None:
        """Bring the driver back. NVML must be initialised anew by those who used it before."""
        with self._open() as view:
            at = layout.LOADS_OFFSET
            loads = int.from_bytes(view[at : at + 4], "little")
            view[at : at + 4] = (loads + 1).to_bytes(4, "little")
        self._set(layout.UNLOADED_OFFSET, 0)

    def foreign_memory(self, index: int, amount: int) -> None:
        """Let somebody whom no process list shows hold `amount` paper bytes of a GPU; 0 ends it.

        For a foreign process that is listed, run `lib/simgpu hold` on the node.
        """
        offset = layout.FOREIGN_OFFSET + 8 * index
        with self._open() as view:
            view[offset : offset + 8] = amount.to_bytes(8, "little")

    def xid(self, index: int, number: int) -> None:
        """Raise an Xid event on a GPU: every NVML event set registered for it gets one."""
        self.event(index, XID_EVENT, number)

    def event(self, index: int, kind: int, data: int = 0) -> None:
        """Raise an NVML event of any type, such as DOUBLE_BIT_ECC_EVENT, on a GPU."""
        with self._open() as view:
            at = layout.XID_SEQ_OFFSET
            sequence = int.from_bytes(view[at : at + 8], "little")
            offset = layout.XID_OFFSET + sequence % layout.XID_RING * layout.XID.size
            view[offset : offset + layout.XID.size] = layout.XID.pack(index, data, kind, 0)
            view[at : at + 8] = (sequence + 1).to_bytes(8, "little")

    def _set(self, offset: int, value: int) -> None:
        with self._open() as view:
            view[offset : offset + 4] = value.to_bytes(4, "little")

    @contextmanager
    def _open(self) -> Iterator[mmap.mmap]:
        handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with mmap.mmap(handle, layout.FAULTS_SIZE) as view:
                yield view
        finally:
            os.close(handle)
