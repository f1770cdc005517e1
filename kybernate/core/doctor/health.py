"""When a GPU is ill, why, and when it is well again. Pure.

A GPU is ill at once when it doesn't answer, when the driver tells an event after which no work on
it can be trusted, and while the driver wants it reset or rebooted. It is well again after it has
been found in order for a while: nothing has to be restarted for that, and nobody has to say so.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.types import GpuUuid

SETTLE = 4.0
"""Seconds for which checkups must find a GPU in order after it was ill."""

SETTLE_UNTOLD = 60.0
"""The same after a fatal event where the driver doesn't tell which action a GPU needs."""


class EventKind(StrEnum):
    """What an event of the driver says. LOOK: something has changed, ask the GPU."""

    XID = "xid"
    DOUBLE_BIT_ECC = "double-bit-ecc"
    RETIREMENT_FAILED = "retirement-failed"
    FATAL_POISON = "fatal-poison"
    UNAVAILABLE = "unavailable"
    LOOK = "look"


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """An event of the driver; `gpu` is None if the driver couldn't say of which one.

    `data` is the number of an Xid.
    """

    gpu: GpuUuid | None
    kind: EventKind
    data: int = 0


class Recovery(IntEnum):
    """What the driver says must be done to a GPU (NVML's numbers)."""

    NONE = 0
    RESET = 1
    REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


_AT_LEISURE = (Recovery.NONE, Recovery.DRAIN_P2P, Recovery.DRAIN_AND_RESET)
"""Actions that leave what runs in order: the GPU computes rightly until somebody finds the time."""

_TODO: Mapping[int, str] = {
    Recovery.RESET: "reset it (nvidia-smi --gpu-reset) once nothing uses it",
    Recovery.REBOOT: "reboot the node",
    Recovery.RECOVER_IMEX: "recover its IMEX domain",
    Recovery.BUS_RESET: "reset its bus",
    Recovery.SYSTEM_REBOOT: "reboot the node",
}


@dataclass(frozen=True, slots=True)
class Readings:
    """What a GPU measures of itself; None where it doesn't say. `busy` is the share of NVML's last
    sample (up to a second) in which it computed, 0 to 1; memory is in bytes, power in watts,
    temperature in degrees Celsius."""

    memory_used: int | None = None
    memory: int | None = None
    busy: float | None = None
    power: float | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Checkup:
    """What the driver says of a GPU when asked.

    `gone` is the sentence of a GPU that doesn't answer. `recovery` is None where the driver is
    too old to tell. `mig` and `mps` mean that somebody else divides the GPU up.
    """

    gone: str = ""
    recovery: int | None = 0
    remap_failed: bool = False
    mig: bool = False
    mps: bool = False
    readings: Readings = Readings()

    def trouble(self) -> str:
        """Why the GPU can't be used now, or the empty string."""
        if self.gone:
            return self.gone
        if self.recovery is not None and self.recovery not in _AT_LEISURE:
            todo = _TODO.get(self.recovery, "see what nvidia-smi -q says")
            return f"the driver wants a recovery action: {todo}"
        if self.remap_failed:
            return "memory that failed couldn't be replaced: have the GPU exchanged"
        return self.divided()

    def divided(self) -> str:
        """Who else divides the GPU up, and what to do about it; empty if nobody does."""
        if self.mig:
            return "it is in MIG mode; seats need whole GPUs: turn it off (nvidia-smi -mig 0)"
        if self.mps:
            return "an MPS server uses it; processes of MPS can't be parked: stop it"
        return ""


APPLICATION_XIDS: Mapping[int, str] = {
    8: "GPU stopped processing",
    11: "invalid or corrupted push buffer stream",
    13: "graphics engine exception",
    25: "invalid or illegal push buffer stream",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer stream",
    37: "driver firmware error",
    38: "driver firmware error",
    **dict.fromkeys((39, 40, 41, *range(70, 73), *range(75, 78), 85), "copy engine exception"),
    **dict.fromkeys(range(126, 136), "copy engine exception"),
    43: "GPU stopped processing for a program",
    44: "fault during a context switch",
    45: "cleanup after an earlier error",
    60: "video processor exception",
    63: "memory was remapped",
    **dict.fromkeys((66, 67), "illegal access by the driver"),
    **dict.fromkeys((68, 83, 84, 88, 89, 96, 97, 98), "video decoder exception"),
    69: "graphics engine class error",
    80: "corrupted data sent to the GPU",
    **dict.fromkeys((82, *range(99, 106)), "JPEG engine exception"),
    **dict.fromkeys((86, 139), "optical flow engine exception"),
    92: "high rate of single-bit ECC errors",
    93: "InfoROM wear",
    94: "contained memory error",
    **dict.fromkeys((106, 107), "test message"),
    121: "C2C error",
    137: "NVLink privilege error",
    141: "CUDA fast path error",
    **dict.fromkeys((152, 153), "DLA error"),
    154: "the recovery action has changed",
    **dict.fromkeys((160, 161), "a channel was retired"),
}
"""Xids that end a program, or nothing at all: the GPU continues. From NVIDIA's Xid catalogue: those
whose immediate action is RESTART_APP or IGNORE; 45 follows another Xid, 154 has a checkup made."""

FATAL_XIDS: Mapping[int, str] = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    64: "memory remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP doesn't answer",
    120: "GSP error",
    136: "link training failed",
    140: "ECC error without recovery",
    143: "GPU initialization error",
    **dict.fromkeys(range(144, 151), "NVLink error"),
    151: "key rotation error",
    155: "NVLink error defined by software",
    156: "a resource was retired",
    158: "fatal timeout",
}
"""Xids after which nothing on the GPU can be trusted. One in neither list counts as fatal, too."""

_FATAL_EVENTS: Mapping[EventKind, str] = {
    EventKind.DOUBLE_BIT_ECC: "a double-bit ECC error",
    EventKind.RETIREMENT_FAILED: "failed memory couldn't be retired",
    EventKind.FATAL_POISON: "poisoned memory was used",
    EventKind.UNAVAILABLE: "the driver calls it unavailable",
}


def fatal(event: GpuEvent) -> str:
    """What makes the event fatal for its GPU, in words, or the empty string."""
    if event.kind is not EventKind.XID:
        return _FATAL_EVENTS.get(event.kind, "")
    if event.data in APPLICATION_XIDS:
        return ""
    return f"Xid {event.data} ({FATAL_XIDS.get(event.data, 'of no known kind')})"


@dataclass(slots=True)
class _Record:
    trouble: str = ""
    since_clean: float | None = None


@dataclass(slots=True)
class Health:
    """The health of a node's GPUs. Times are seconds of any one clock.

    `settle` is for how long checkups must find a GPU in order after it was ill.
    """

    settle: float = SETTLE
    _gpus: dict[GpuUuid, _Record] = field(default_factory=dict)

    def trouble(self, gpu: GpuUuid) -> str:
        """Why the GPU is ill, or the empty string."""
        record = self._gpus.get(gpu)
        return record.trouble if record else ""

    def recall(self, troubles: Mapping[GpuUuid, str]) -> None:
        """Take these GPUs for ill until checkups find them in order."""
        for gpu, trouble in troubles.items():
            self._gpus[gpu] = _Record(trouble)

    def told(self, event: GpuEvent) -> bool:
        """Take in an event; whether the GPU fell ill by it, or is ill for longer now."""
        what = fatal(event)
        if event.gpu is None or not what:
            return False
        record = self._gpus.setdefault(event.gpu, _Record())
        record.trouble = f"the driver reported {what}"
        record.since_clean = None
        return True

    def checked(self, gpu: GpuUuid, found: Checkup, now: float) -> None:
        """Take in what a checkup found."""
        record = self._gpus.setdefault(gpu, _Record())
        trouble = found.trouble()
        if trouble:
            record.trouble, record.since_clean = trouble, None
            return
        if not record.trouble:
            return
        if record.since_clean is None:
            record.since_clean = now
        untold = found.recovery is None and record.trouble.startswith("the driver reported")
        if now - record.since_clean >= (SETTLE_UNTOLD if untold else self.settle):
            self._gpus[gpu] = _Record()
