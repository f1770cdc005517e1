"""Facts in, findings out: every check in every level that it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate.core.doctor.doctor import Level, examine, sound
from kybernate.core.doctor.nodefacts import (
    CgroupFacts,
    CriuFacts,
    DiskFacts,
    DriverFacts,
    Facts,
    GpuFacts,
    KubeletFacts,
    Lasting,
    RuntimeFacts,
    Unseen,
)
from kybernate.core.seat.budget import HostMemory

GIB = 1 << 30
GPU = GpuFacts(0, "H100", 80 * GIB, persistence=True, mig=False)
DRIVER = DriverFacts("580.95.05", "13.0", (GPU,), mps=False)
CRIU = CriuFacts("/usr/sbin/criu", "4.2.1", static=True, trial="")
KUBELET = KubeletFacts(
    ("kubelet.sock", "kyb-1.sock"), pod_resources=True, version="kubelet v1.34.2"
)
GOOD = Facts(
    root=True,
    machine="x86_64",
    driver=DRIVER,
    runtime=RuntimeFacts("containerd 2.1.9", True, ("/var/run/cdi",)),
    vendor_specs=("/var/run/cdi/nvidia.yaml",),
    kubelet=KUBELET,
    cgroup=CgroupFacts(2, freezer=True, memory=True),
    memory=HostMemory(1000 * GIB, 900 * GIB, 0.0),
    park_bytes=0,
    disk=DiskFacts("/var/lib/kyb", 100 * GIB, "ext4"),
    criu=CRIU,
    io_uring=2,
    lasting=Lasting(persistenced=True, io_uring_file=True),
)


def gpu(**more):
    return {"driver": replace(DRIVER, gpus=(GPU, replace(GPU, index=1, **more)))}


def test_a_good_node_has_nothing_to_do():
    findings = examine(GOOD)
    assert [one for one in findings if one.level is not Level.OK] == []
    assert [one.do for one in findings if one.do] == []
    assert sound(findings)


@pytest.mark.parametrize(
    ("changed", "check", "level", "says"),
    [
        ({"machine": "aarch64"}, "machine", Level.FAIL, "aarch64"),
        ({"root": False}, "rights", Level.WARN, "as root"),
        ({"driver": Unseen("NVML hangs")}, "driver", Level.FAIL, "NVML hangs"),
        ({"driver": replace(DRIVER, version="560.1")}, "driver", Level.FAIL, "560.1"),
        ({"driver": replace(DRIVER, version="570.1")}, "driver", Level.WARN, "other GPUs"),
        ({"driver": replace(DRIVER, gpus=())}, "gpus", Level.FAIL, "no GPU"),
        ({"driver": replace(DRIVER, mps=True)}, "mps", Level.FAIL, "nvidia-cuda-mps-control"),
        (gpu(mig=True), "mig", Level.FAIL, "GPU 1"),
        (gpu(persistence=False), "persistence", Level.WARN, "GPU 1"),
        ({"lasting": Lasting(False, True)}, "persistence", Level.WARN, "a reboot turns it off"),
        ({"lasting": Lasting(True, False)}, "io_uring", Level.WARN, "/etc/sysctl.d"),
        ({"runtime": Unseen("no socket")}, "runtime", Level.WARN, "no socket"),
        (
            {"runtime": RuntimeFacts("containerd 1.6", False, ())},
            "runtime",
            Level.FAIL,
            "enable_cdi",
        ),
        ({"vendor_specs": ()}, "cdi", Level.FAIL, "nvidia-ctk cdi generate"),
        ({"vendor_specs": Unseen("can't be read")}, "cdi", Level.WARN, "can't be read"),
        ({"kubelet": Unseen("no folder")}, "kubelet", Level.WARN, "no folder"),
        ({"kubelet": replace(KUBELET, pod_resources=False)}, "kubelet", Level.FAIL, "kubelet_dir"),
        (
            {"kubelet": replace(KUBELET, sockets=("nvidia-gpu.sock",))},
            "vendor-plugin",
            Level.FAIL,
            "nvidia-gpu.sock",
        ),
        ({"kubelet": replace(KUBELET, vendor_gpus=8)}, "vendor-plugin", Level.FAIL, "offers 8"),
        ({"cgroup": CgroupFacts(1, True, True)}, "cgroup", Level.WARN, "version 1"),
        ({"cgroup": CgroupFacts(1, False, True)}, "cgroup", Level.FAIL, "freezer"),
        ({"cgroup": Unseen("no cgroups")}, "cgroup", Level.WARN, "no cgroups"),
        ({"memory": HostMemory(90 * GIB, 60 * GIB)}, "memory", Level.WARN, "80.0 GiB of one full"),
        ({"park_bytes": 70 * GIB}, "memory", Level.WARN, "park_bytes"),
        ({"memory": Unseen("no /proc")}, "memory", Level.WARN, "no /proc"),
        ({"disk": DiskFacts("/var/lib/kyb", GIB // 2, "ext4")}, "disk", Level.FAIL, "0.5 GiB"),
        ({"disk": DiskFacts("/var/lib/kyb", GIB * 2, "tmpfs")}, "disk", Level.WARN, "tmpfs"),
        ({"disk": Unseen("not readable")}, "disk", Level.WARN, "not readable"),
        ({"criu": None}, "criu", Level.WARN, "not below it"),
        ({"criu": replace(CRIU, version="4.1.1")}, "criu", Level.WARN, "older than 4.2"),
        ({"criu": replace(CRIU, version="")}, "criu", Level.WARN, "older than 4.2"),
        ({"criu": replace(CRIU, static=False)}, "criu", Level.WARN, "not static"),
        ({"criu": replace(CRIU, trial="bad vdso")}, "criu", Level.WARN, "bad vdso"),
        ({"criu": replace(CRIU, trial=Unseen("not root"))}, "criu", Level.WARN, "not root"),
        ({"io_uring": 0}, "io_uring", Level.WARN, "io_uring_disabled is 0"),
    ],
)
def test_each_problem_is_one_finding_that_says_what_to_do(changed, check, level, says):
    findings = examine(replace(GOOD, **changed))
    (bad,) = [one for one in findings if one.level is not Level.OK]
    assert (bad.check, bad.level) == (check, level)
    assert says in f"{bad.seen} {bad.do}"
    assert bad.do
    assert sound(findings) is (level is not Level.FAIL)


def test_versions_of_criu_are_compared_by_number():
    assert sound(examine(replace(GOOD, criu=replace(CRIU, version="4.10"))))
    (criu,) = [
        f for f in examine(replace(GOOD, criu=replace(CRIU, version="4.10"))) if f.check == "criu"
    ]
    assert criu.level is Level.OK


def test_a_kernel_without_io_uring_or_pressure_is_fine():
    quiet = replace(GOOD, io_uring=None, memory=HostMemory(1000 * GIB, 900 * GIB, None))
    assert [one for one in examine(quiet) if one.level is not Level.OK] == []
