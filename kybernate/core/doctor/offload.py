"""What is right and what is wrong with a node for offloading: facts in, findings out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.doctor.doctor import Finding, Level
from kybernate.core.doctor.nodefacts import Unseen
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kybernate.core.doctor.nodefacts import DiskFacts

_GIB = 1 << 30
_SLOW = 500e6
"""Bytes per second: slower, and a state of 10 GiB takes 20 s each way."""

CAPABILITIES = {
    "CHECKPOINT_RESTORE": 40,
    "SYS_RESOURCE": 24,
    "SYS_TIME": 25,
    "SYS_NICE": 23,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_CHROOT": 18,
    "IPC_LOCK": 14,
    "IPC_OWNER": 15,
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "SETUID": 7,
    "SETGID": 6,
    "SETPCAP": 8,
    "SETFCAP": 31,
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "DAC_READ_SEARCH": 2,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "MKNOD": 27,
    "NET_BIND_SERVICE": 10,
    "AUDIT_WRITE": 29,
}
"""What config/below-ram gives the agent, by the numbers of linux/capability.h."""

FEATURES = ("timens", "clone3_set_tid", "tcp_half_closed", "seccomp_filters", "uffd-noncoop")
"""Of the kernel, by the names of `criu check --feature`."""

_ONLY_LAZY = frozenset({"uffd-noncoop"})


@dataclass(frozen=True, slots=True)
class Speed:
    """Bytes per second of the folder's disk."""

    write: float
    read: float


@dataclass(frozen=True, slots=True)
class OffloadFacts:
    """`bounds`: capabilities that a process of this node may have, as a bit mask.

    `lacking`: those of FEATURES that the kernel hasn't got; Unseen without a CRIU that can look.
    `disk` and `speed` are those of the folder for artifacts. `largest`: bytes of the node's
    largest GPU, 0 if that is not known.
    """

    bounds: int
    lacking: tuple[str, ...] | Unseen
    disk: DiskFacts | Unseen
    speed: Speed | Unseen
    largest: int


def examine_offload(facts: OffloadFacts) -> tuple[Finding, ...]:
    """All findings."""
    return tuple(
        finding
        for group in (_rights(facts), _features(facts), _room(facts), _speed(facts))
        for finding in group
    )


def _rights(facts: OffloadFacts) -> Iterator[Finding]:
    missing = [name for name, number in CAPABILITIES.items() if not facts.bounds >> number & 1]
    if missing:
        yield Finding(
            "below-rights",
            Level.WARN,
            f"nobody on this node may have {', '.join(missing)}: CRIU fails for want of it",
            "look what takes it away: a container or a service manager's CapabilityBoundingSet",
        )
    else:
        yield Finding("below-rights", Level.OK, "the agent can have all the rights that CRIU needs")


def _features(facts: OffloadFacts) -> Iterable[Finding]:
    if isinstance(facts.lacking, Unseen):
        yield Finding("below-kernel", Level.WARN, facts.lacking.why, "name a static criu: --criu")
    elif hard := [one for one in facts.lacking if one not in _ONLY_LAZY]:
        yield Finding(
            "below-kernel",
            Level.WARN,
            f"this kernel lacks {', '.join(hard)}: trees are not recreated as they were",
            "run a kernel of 5.15 or later with CONFIG_CHECKPOINT_RESTORE and CONFIG_TIME_NS",
        )
    elif facts.lacking:
        yield Finding(
            "below-kernel",
            Level.WARN,
            f"this kernel lacks {', '.join(facts.lacking)}: memory can't be brought in lazily",
            "nothing, if that is not wanted; else enable CONFIG_USERFAULTFD",
        )
    else:
        yield Finding("below-kernel", Level.OK, f"the kernel has {', '.join(FEATURES)}")


def _room(facts: OffloadFacts) -> Iterator[Finding]:
    disk = facts.disk
    if isinstance(disk, Unseen):
        yield Finding("below-room", Level.WARN, disk.why, "name another folder: --nvme-dir")
        return
    seen = f"{disk.free / _GIB:.1f} GiB free on {disk.kind} for {disk.path}"
    if disk.kind in ("tmpfs", "ramfs", "overlay"):
        yield Finding(
            "below-room", Level.WARN, seen, "mount a disk of the host there: this one is RAM, or "
            "goes with its container",
        )  # fmt: skip
    elif disk.free < max(facts.largest, _GIB):
        yield Finding(
            "below-room",
            Level.WARN,
            f"{seen}: less than one state of {max(facts.largest, _GIB) / _GIB:.0f} GiB",
            "free some, or name a folder of a larger disk",
        )
    else:
        yield Finding("below-room", Level.OK, seen)


def _speed(facts: OffloadFacts) -> Iterator[Finding]:
    speed = facts.speed
    if isinstance(speed, Unseen):
        yield Finding("below-speed", Level.WARN, speed.why, "run the doctor as root")
        return
    seen = f"it writes {speed.write / 1e6:.0f} MB/s with sync, and reads {speed.read / 1e6:.0f}"
    if min(speed.write, speed.read) < _SLOW:
        yield Finding(
            "below-speed",
            Level.WARN,
            f"{seen}: 10 GiB take {10 * _GIB / min(speed.write, speed.read):.0f} s",
            "name a folder on NVMe; on a network's disk the object store is hardly slower",
        )
    else:
        yield Finding("below-speed", Level.OK, seen)
