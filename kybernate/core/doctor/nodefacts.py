"""What `kybernate doctor` looks at on a GPU node, as plain records.

A fact that could not be read is `Unseen`, with the reason: it makes a warning, never a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from kybernate.core.seat.budget import HostMemory


@dataclass(frozen=True, slots=True)
class Unseen:
    """A fact that could not be read, and why, as a sentence that says what would help."""

    why: str


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU; None where its driver has no such mode. `memory` in bytes."""

    index: int
    product: str
    memory: int
    persistence: bool | None
    mig: bool | None


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The driver and its GPUs. `mps`: whether a control daemon of MPS runs on the node."""

    version: str
    cuda: str
    gpus: tuple[GpuFacts, ...]
    mps: bool


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """The container runtime: name and version, and whether it says that CDI is on."""

    version: str
    cdi: bool | None
    cdi_dirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KubeletFacts:
    """What lies in the kubelet's folder; versions and `allocatable` only with its Node object."""

    sockets: tuple[str, ...]
    pod_resources: bool
    version: str = ""
    vendor_gpus: int | None = None


@dataclass(frozen=True, slots=True)
class CgroupFacts:
    """`version` 1 or 2; what a park needs of it."""

    version: int
    freezer: bool
    memory: bool


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The file system that holds the agent's state. Bytes."""

    path: str
    free: int
    kind: str


@dataclass(frozen=True, slots=True)
class CriuFacts:
    """The CRIU that was found. `trial` is empty if it dumped a process of its own, else why not;
    `Unseen` if that was not tried."""

    path: str
    version: str
    static: bool
    trial: str | Unseen


@dataclass(frozen=True, slots=True)
class Lasting:
    """What survives a reboot: whether nvidia-persistenced runs, whether the sysctl of io_uring is
    in a file."""

    persistenced: bool
    io_uring_file: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was looked at. `io_uring`: the sysctl io_uring_disabled, None: no such file.

    `vendor_specs`: files that describe the vendor's GPUs to CDI. `park_bytes`: the agent's
    setting, 0 for nine tenths of the host's memory.
    """

    root: bool
    machine: str
    driver: DriverFacts | Unseen
    runtime: RuntimeFacts | Unseen
    vendor_specs: tuple[str, ...] | Unseen
    kubelet: KubeletFacts | Unseen
    cgroup: CgroupFacts | Unseen
    memory: HostMemory | Unseen
    park_bytes: int
    disk: DiskFacts | Unseen
    criu: CriuFacts | None
    io_uring: int | None
    lasting: Lasting
