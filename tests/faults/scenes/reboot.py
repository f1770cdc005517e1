"""A node's reboot: everything on it ends at once, what lies in memory is gone, disks stay."""

from __future__ import annotations

import shutil
import time
import uuid
from typing import TYPE_CHECKING

from kybernate.errors import NotFoundError
from tests import simgpu
from tests.cluster.parts import host, services
from tests.cluster.parts.nodes import connects
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import KUBELET_HEALTH_PORT
from tests.cluster.start import bringup
from tests.cluster.start.readiness import answers

if TYPE_CHECKING:
    from tests.cluster import Cluster, Process

LIMIT = 60.0
LEFT_BEHIND = 3.0
"""Seconds from kubelet and runtime being up to the start of our own processes."""


def power_off(cluster: Cluster, node: str) -> list[str]:
    """End all processes of a node without a word. Returns the names of those to start again."""
    names = [row["name"] for row in cluster.processes() if row["name"].endswith(f"-{node}")]
    holder = cluster.process(f"node-{node}")
    holder.kill9()
    for name in names:
        if name != holder.name:
            cluster.process(name).stop()

    def over() -> bool:
        # A frozen process can't die; on a real machine the power goes for it, too.
        host.thaw(cluster.spec.cgroup(node))
        return not _runs(holder)

    wait_until(over, LIMIT, f"node {node} doesn't end")
    return names


def wipe(cluster: Cluster, node: str) -> None:
    """Remove what a machine keeps in memory, and make anew what its boot makes."""
    place = cluster.layout.node(node)
    for folder in ("run-kyb", "containerd", "netns", "cdi"):
        shutil.rmtree(place.root / folder)
        (place.root / folder).mkdir()
    host.empty_cgroup(cluster.spec.cgroup(node))
    described = simgpu.parse(bringup.gpu_description(cluster.spec), name=node)
    simgpu.install(described, place.simgpu, services.SIMGPU_BUILD)
    simgpu.make_device_nodes(described, place.dev)
    simgpu.write_vendor_cdi(described, place.cdi)


def power_on(cluster: Cluster, node: str, names: list[str]) -> None:
    """Start in the worst order: the kubelet before its runtime, our processes last of all."""
    place = cluster.layout.node(node)
    place.up_file.unlink(missing_ok=True)
    cluster.process(f"node-{node}").start()
    wait_until(place.up_file.exists, LIMIT, f"node {node} doesn't come up")
    _new_boot_id(cluster, node)
    cluster.process(f"kubelet-{node}").start()
    cluster.process(f"containerd-{node}").start()
    wait_until(lambda: connects(place.cri_socket), LIMIT, "containerd doesn't answer")
    cluster.process(f"kubelet-{node}").start()
    health = f"http://{cluster.node(node).ip}:{KUBELET_HEALTH_PORT}/healthz"
    wait_until(lambda: answers(health), LIMIT, "the kubelet doesn't answer")
    time.sleep(LEFT_BEHIND)
    for name in names:
        cluster.process(name).start()


def _new_boot_id(cluster: Cluster, node: str) -> None:
    file = cluster.layout.node(node).root / "boot-id"
    file.write_text(f"{uuid.uuid4()}\n")
    done = cluster.node(node).run("mount", "--bind", str(file), "/proc/sys/kernel/random/boot_id")
    if done.returncode:
        raise NotFoundError(f"no boot ID of its own for {node}: {done.stderr}")


def _runs(process: Process) -> bool:
    return process.info["pid"] is not None
