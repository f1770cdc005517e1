"""A real Kubernetes on this machine: control plane, kubelets, our services, simulated GPUs.

from tests.cluster import Cluster, ClusterSpec
cluster = Cluster.up(ClusterSpec(), print)
cluster.kubectl("get", "nodes"); cluster.process("agent-n1").kill9(); cluster.down()
"""

from __future__ import annotations

from .cluster import Cluster, Node, running
from .control import Process
from .spec import ClusterSpec, GpuSpec

__all__ = ["Cluster", "ClusterSpec", "GpuSpec", "Node", "Process", "running"]
