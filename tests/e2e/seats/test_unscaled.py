"""Paper is real here: small GPUs without a scale factor, and the kernel's own memory limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.core.quantity import parse_quantity
from tests.cluster import Cluster, ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.kit.clients.models import Models
from tests.kit.pods import Pods, SeatPod, ready
from tests.simgpu import read_log, violations

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

MIB = 1 << 20
HELD = 160 * MIB
NAMES = ("left", "right")
RESERVE = str(16 * MIB)


@pytest.fixture(scope="module")
def flat() -> Iterator[Cluster]:
    """One node with one GPU of 256 MiB; a byte stands for a byte, memory is the machine's own."""
    spec = ClusterSpec(
        name="flat",
        nodes=("n1",),
        subnet="10.90.0.0/16",
        gpus=GpuSpec(count=1, memory=256 * MIB, scale=1),
        host_memory=None,
        images=("toy",),
        node_pods=True,
        service_env={
            "agent": {"KYB_AGENT_RESERVE_BYTES": RESERVE},
            "extender": {"KYB_EXTENDER_RESERVE_BYTES": RESERVE},
        },
    )
    with running(spec, print) as up:
        yield up


def cgroup(cluster: Cluster, pod: dict[str, Any]) -> Path:
    """The memory cgroup of the pod's container."""
    container = pod["status"]["containerStatuses"][0]["containerID"].split("//")[1]
    root = Path("/sys/fs/cgroup/memory") / cluster.spec.cgroup("n1")
    (found,) = root.glob(f"**/pod{pod['metadata']['uid']}/{container}")
    return found


def usage(folder: Path) -> int:
    """Anonymous memory in bytes: what the workload itself holds."""
    lines = (folder / "memory.stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("total_rss "))


def test_a_parked_seats_bytes_are_charged_to_its_pod_within_its_raised_limit(
    flat: Cluster,
) -> None:
    pods, models = Pods(flat.api()), Models(flat.proxy_url)
    for name in NAMES:
        pods.create(SeatPod(name, vram="192Mi", bytes_=str(HELD), fill=str(HELD)))
    found = pods.wait(NAMES, ready, 90, "Ready")
    groups = {name: cgroup(flat, found[name]) for name in NAMES}
    for folder in groups.values():
        limit = int((folder / "memory.limit_in_bytes").read_text())
        assert limit == parse_quantity("256Mi") + parse_quantity("192Mi")
    for active, parked in (NAMES, NAMES[::-1], NAMES):
        answer = models.ask(active)
        assert answer.status == 200
        assert answer.intact
        assert usage(groups[parked]) - usage(groups[active]) > 0.9 * HELD
    assert not violations(read_log(flat.node("n1").simgpu_root))
