"""A real Kubernetes on this machine: control plane, kubelets, our services, simulated GPUs.

from tests.cluster import Cluster, ClusterSpec
cluster = Cluster.up(ClusterSpec(), print)
cluster.kubectl("get", "nodes"); cluster.process("agent-n1").kill9(); cluster.down()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.processes.control import Process

    from .cluster import Cluster, Node, running
    from .spec import ClusterSpec, GpuSpec

__all__ = ["Cluster", "ClusterSpec", "GpuSpec", "Node", "Process", "running"]

_HOME = {
    "Cluster": "cluster",
    "Node": "cluster",
    "running": "cluster",
    "Process": "control",
    "ClusterSpec": "spec",
    "GpuSpec": "spec",
}


def __getattr__(name: str) -> object:
    """The public names, imported late: the supervisor is part of this package, and starts in a
    tenth of the time without all that only its clients need."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
