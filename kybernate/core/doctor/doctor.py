"""What is right and what is wrong with a GPU node: facts in, findings out.

Each finding says what was seen and, unless all is well, what to do.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from kybernate.core.doctor.nodefacts import Unseen
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.core.doctor.nodefacts import (
        CriuFacts,
        DriverFacts,
        Facts,
        GpuFacts,
        KubeletFacts,
        Lasting,
    )

_GIB = 1 << 30
OLDEST_DRIVER = 570
"""The first version of the driver that can checkpoint, so park."""
_REMAPPING_DRIVER = 580
_CRIU = (4, 2)
_FREE_STATE = 1 * _GIB


class Level(StrEnum):
    """How bad it is. Seats can't work with a `fail`; a `warn` costs something."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `do` is empty where all is well."""

    check: str
    level: Level
    seen: str
    do: str = ""


def examine(facts: Facts) -> tuple[Finding, ...]:
    """All findings, in the order in which a node is set up."""
    return tuple(
        finding
        for group in (
            _rights(facts),
            _driver(facts),
            _cdi(facts),
            _kubelet(facts),
            _cgroup(facts),
            _memory(facts),
            _disk(facts),
            _criu(facts),
            _io_uring(facts),
        )
        for finding in group
    )


def sound(findings: Iterable[Finding]) -> bool:
    """Whether seats can work: nothing failed."""
    return all(finding.level is not Level.FAIL for finding in findings)


def parks(driver: str) -> bool:
    """Whether the driver of this version, such as 570.86.15, can park."""
    return _leading(driver) >= OLDEST_DRIVER


def _rights(facts: Facts) -> Iterable[Finding]:
    if facts.machine != "x86_64":
        yield Finding(
            "machine",
            Level.FAIL,
            f"the processor is {facts.machine}",
            "use an x86_64 node: the driver refuses checkpoints elsewhere",
        )
    if facts.root:
        yield Finding("rights", Level.OK, "run as root")
    else:
        yield Finding(
            "rights",
            Level.WARN,
            "run without root: other users' processes, sockets and cgroups may not show",
            "run it again as root to see them",
        )


def _driver(facts: Facts) -> Iterable[Finding]:
    driver = facts.driver
    if isinstance(driver, Unseen):
        yield Finding("driver", Level.FAIL, driver.why, "install the driver, version 580 or later")
        return
    yield _driver_version(driver)
    if not driver.gpus:
        yield Finding(
            "gpus", Level.FAIL, "the driver lists no GPU", "look for the GPUs in `lspci` and dmesg"
        )
        return
    yield Finding("gpus", Level.OK, ", ".join(f"{g.index}: {g.product}" for g in driver.gpus))
    yield _persistence(driver, facts.lasting)
    yield _modes("mig", "MIG", [g for g in driver.gpus if g.mig], "`nvidia-smi -mig 0`, then reset")
    yield (
        Finding("mps", Level.OK, "no MPS control daemon runs")
        if not driver.mps
        else Finding(
            "mps",
            Level.FAIL,
            "an MPS control daemon runs: its clients can't be checkpointed",
            "end it: `echo quit | nvidia-cuda-mps-control`",
        )
    )


def _driver_version(driver: DriverFacts) -> Finding:
    seen = f"driver {driver.version}, CUDA {driver.cuda}"
    if not parks(driver.version):
        return Finding(
            "driver", Level.FAIL, seen, "upgrade it to 580 or later: it can't checkpoint"
        )
    if _leading(driver.version) < _REMAPPING_DRIVER:
        return Finding(
            "driver", Level.WARN, seen, "upgrade it to 580 or later to wake seats on other GPUs"
        )
    return Finding("driver", Level.OK, seen)


def _persistence(driver: DriverFacts, lasting: Lasting) -> Finding:
    off = [gpu for gpu in driver.gpus if gpu.persistence is False]
    if off:
        return Finding(
            "persistence",
            Level.WARN,
            f"persistence mode is off on {_indices(off)}: first calls take seconds",
            "run nvidia-persistenced as a service",
        )
    if all(gpu.persistence is None for gpu in driver.gpus):
        return Finding("persistence", Level.OK, "these GPUs have no persistence mode")
    if not lasting.persistenced:
        return Finding(
            "persistence",
            Level.WARN,
            "persistence mode is on, but nvidia-persistenced does not run: a reboot turns it off",
            "run nvidia-persistenced as a service",
        )
    return Finding("persistence", Level.OK, "persistence mode is on, kept by nvidia-persistenced")


def _modes(check: str, name: str, on: list[GpuFacts], off_by: str) -> Finding:
    if not on:
        return Finding(check, Level.OK, f"{name} is off")
    return Finding(
        check,
        Level.FAIL,
        f"{name} is on for {_indices(on)}: the driver can't checkpoint there",
        f"turn it off ({off_by}), or leave this node to the vendor's plugin",
    )


def _cdi(facts: Facts) -> Iterable[Finding]:
    runtime = facts.runtime
    if isinstance(runtime, Unseen):
        yield Finding(
            "runtime", Level.WARN, runtime.why, "see that the runtime injects CDI devices"
        )
    elif runtime.cdi is False:
        yield Finding(
            "runtime",
            Level.FAIL,
            f"{runtime.version} with CDI off",
            "set enable_cdi = true in its configuration, or deviceStrategy: nodes in the plugin's",
        )
    else:
        where = f" in {', '.join(runtime.cdi_dirs)}" if runtime.cdi_dirs else ""
        yield Finding("runtime", Level.OK, f"{runtime.version}, CDI on{where}")
    yield _vendor_specs(facts)


def _vendor_specs(facts: Facts) -> Finding:
    specs = facts.vendor_specs
    advice = "make it: `nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml`, at every boot"
    if isinstance(specs, Unseen):
        return Finding("cdi", Level.WARN, specs.why, advice)
    if not specs:
        return Finding("cdi", Level.FAIL, "no CDI file describes the vendor's GPUs", advice)
    return Finding("cdi", Level.OK, ", ".join(specs))


def _kubelet(facts: Facts) -> Iterable[Finding]:
    kubelet = facts.kubelet
    if isinstance(kubelet, Unseen):
        yield Finding("kubelet", Level.WARN, kubelet.why, "run it on a node of the cluster")
        return
    if kubelet.pod_resources:
        yield Finding(
            "kubelet", Level.OK, f"{kubelet.version or 'a kubelet'} answers pod-resources"
        )
    else:
        yield Finding(
            "kubelet",
            Level.FAIL,
            "the kubelet's pod-resources socket is missing",
            "start the kubelet, or set kubelet_dir to its root folder",
        )
    yield _vendor_plugin(kubelet)


def _vendor_plugin(kubelet: KubeletFacts) -> Finding:
    sockets = [name for name in kubelet.sockets if name.startswith("nvidia")]
    seen = [f"its socket {name} lies in the kubelet's folder" for name in sockets]
    if kubelet.vendor_gpus:
        seen.append(f"the node offers {kubelet.vendor_gpus} nvidia.com/gpu")
    if not seen:
        return Finding("vendor-plugin", Level.OK, "the vendor's device plugin is not on this node")
    return Finding(
        "vendor-plugin",
        Level.FAIL,
        f"the vendor's device plugin is on this node: {' and '.join(seen)}",
        "keep it off by a node selector or taint: both would hand out the same GPUs",
    )


def _cgroup(facts: Facts) -> Iterable[Finding]:
    cgroup = facts.cgroup
    if isinstance(cgroup, Unseen):
        yield Finding("cgroup", Level.WARN, cgroup.why, "mount the cgroup file system")
        return
    lacking = [
        n for n, there in (("freezer", cgroup.freezer), ("memory", cgroup.memory)) if not there
    ]
    if lacking:
        yield Finding(
            "cgroup",
            Level.FAIL,
            f"cgroup version {cgroup.version} without {' and '.join(lacking)}",
            f"boot with the {' and '.join(lacking)} controller enabled",
        )
    elif cgroup.version == 1:
        yield Finding(
            "cgroup",
            Level.WARN,
            "cgroup version 1: a frozen process dies only once it is thawed",
            "nothing, while the agent runs; version 2 needs no help",
        )
    else:
        yield Finding("cgroup", Level.OK, "cgroup version 2")


def _memory(facts: Facts) -> Iterable[Finding]:
    host = facts.memory
    if isinstance(host, Unseen):
        yield Finding("memory", Level.WARN, host.why, "look at /proc/meminfo")
        return
    budget = facts.park_bytes or host.total * 9 // 10
    room = min(budget, host.available)
    seen = (
        f"{_gib(host.total)} of host memory, {_gib(host.available)} available, "
        f"{_gib(budget)} for parked seats"
    )
    if host.stalled is None:
        seen += "; the kernel tells nothing of memory pressure (CONFIG_PSI)"
    gpus = () if isinstance(facts.driver, Unseen) else facts.driver.gpus
    largest = max((gpu.memory for gpu in gpus), default=0)
    if room < largest:
        yield Finding(
            "memory",
            Level.WARN,
            f"{seen}: less than the {_gib(largest)} of one full GPU",
            "add memory, raise park_bytes, or declare smaller seats with kyb.ai/vram",
        )
    else:
        yield Finding("memory", Level.OK, seen)


def _disk(facts: Facts) -> Iterable[Finding]:
    disk = facts.disk
    if isinstance(disk, Unseen):
        yield Finding("disk", Level.WARN, disk.why, "see that the agent's state_dir can be made")
        return
    seen = f"{_gib(disk.free)} free on {disk.kind} for {disk.path}"
    if disk.free < _FREE_STATE:
        yield Finding(
            "disk", Level.FAIL, seen, "free at least 1 GiB: without a journal nothing parks"
        )
    elif disk.kind in ("tmpfs", "ramfs", "overlay"):
        yield Finding(
            "disk", Level.WARN, seen, "mount a disk of the host there: this one does not outlive it"
        )
    else:
        yield Finding("disk", Level.OK, seen)


def _criu(facts: Facts) -> Iterable[Finding]:
    criu = facts.criu
    if criu is None:
        yield Finding(
            "criu",
            Level.WARN,
            "there is no criu: seats park in RAM, and not below it",
            "nothing, if RAM is enough; else install a static criu 4.2 or later",
        )
        return
    seen = f"criu {criu.version} at {criu.path}"
    problem = _criu_problem(criu)
    if problem:
        yield Finding("criu", Level.WARN, f"{seen}: {problem[0]}", problem[1])
    else:
        yield Finding(
            "criu", Level.OK, f"{seen}, static; it dumped and recreated a process of its own"
        )


def _criu_problem(criu: CriuFacts) -> tuple[str, str] | None:
    if _version(criu.version) < _CRIU:
        return (
            "older than 4.2",
            "install 4.2 or later (make criu): an agent that is given this one does not start",
        )
    if not criu.static:
        return (
            "not static: inside a container it would run the container's libraries as root",
            "install a static build (make criu): an agent that is given this one does not start",
        )
    if isinstance(criu.trial, Unseen):
        return f"not tried: {criu.trial.why}", "run the doctor as root"
    if criu.trial:
        return f"its trial failed: {criu.trial}", "run `criu check` and follow what it says"
    return None


def _io_uring(facts: Facts) -> Iterable[Finding]:
    value = facts.io_uring
    if value is None:
        yield Finding(
            "io_uring", Level.OK, "this kernel has no switch for io_uring, or no io_uring"
        )
    elif value < 2:
        yield Finding(
            "io_uring",
            Level.WARN,
            f"kernel.io_uring_disabled is {value}: what uses io_uring can't be dumped to disk",
            "set kernel.io_uring_disabled = 2 in /etc/sysctl.d, or forbid it by seccomp",
        )
    elif not facts.lasting.io_uring_file:
        yield Finding(
            "io_uring",
            Level.WARN,
            "io_uring is off until the next reboot",
            "write kernel.io_uring_disabled = 2 into a file of /etc/sysctl.d",
        )
    else:
        yield Finding("io_uring", Level.OK, "io_uring is off, also after a reboot")


def _indices(gpus: list[GpuFacts]) -> str:
    return "GPU " + ", ".join(str(gpu.index) for gpu in gpus)


def _leading(version: str) -> int:
    head = version.split(".", 1)[0]
    return int(head) if head.isdigit() else 0


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
