"""Identifiers, enumerations and frozen records that all parts share, and how a record is read that
another version may have written. No I/O."""

from __future__ import annotations

from dataclasses import fields
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, NewType, TypeVar

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

ArtifactId = NewType("ArtifactId", str)
"""An artifact: `<namespace>/<name>@<UTC stamp>-<8 hexadecimal digits>`."""

GpuUuid = NewType("GpuUuid", str)
GroupName = NewType("GroupName", str)
NodeName = NewType("NodeName", str)
PodUid = NewType("PodUid", str)
SeatName = NewType("SeatName", str)
"""`<group>-seat-<k>`: a device ID of the plugin, or a seat named by the agent in a pod's group."""


class Link(IntEnum):
    """Quality of the path between two GPUs; greater is better."""

    SYSTEM = 0
    NUMA_NODE = 1
    HOST_BRIDGE = 2
    PCIE_SWITCH = 3
    NVLINK = 4


class SeatState(StrEnum):
    """Where a seat's workload is. Transitions live in `kybernate.core.seat.seats`."""

    WAITING = "waiting"
    UNVERIFIED = "unverified"
    ADOPTING = "adopting"
    STARTING = "starting"
    ACTIVE = "active"
    DRAINING = "draining"
    PARKING = "parking"
    PARKED = "parked"
    DUMPING = "dumping"
    PARKED_NVME = "parked-nvme"
    PARKED_OBJECT = "parked-object"
    RESTORING = "restoring"
    WAKING = "waking"
    FAILED = "failed"
    GONE = "gone"


class Tier(StrEnum):
    """Where a parked seat's bytes are, from the fastest to the deepest."""

    RAM = "ram"
    NVME = "nvme"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU of a node. `memory` in bytes; `numa` is -1 where the platform has none.

    `minor` is the N of /dev/nvidiaN, -1 if nobody asked.
    """

    uuid: GpuUuid
    index: int
    product: str
    memory: int
    numa: int = -1
    healthy: bool = True
    minor: int = -1


@dataclass(frozen=True, slots=True)
class Profile:
    """A seat resource and how its groups are cut. `group_size` in GPUs."""

    name: str
    resource: str
    group_size: int
    seats_per_group: int
    active_slots: int = 1
    allow_overprovision: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """A set of GPUs of one node that seats share; members are kept by UUID, ordered by index."""

    name: GroupName
    resource: str
    gpus: tuple[GpuUuid, ...]
    seats: int
    active_slots: int = 1


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod, named exactly: a name reused later has another UID."""

    namespace: str
    name: str
    uid: PodUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def of_record(kind: type[T], record: Mapping[str, Any]) -> T:
    """A dataclass of its `asdict`; members that only a newer version knows are left out. Raises
    TypeError if one is missing that has no default."""
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in record.items() if name in known})
