"""Whom each command asks, and what that takes: the last lines of its help."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PODS = (
    "the API server for pods and GPUNodes",
    "the right to list both; of what you may not list it shows less",
)
_REQUEST = "the API server, by a CheckpointRequest", "the role edit, and the right to patch the pod"
_PLAN = (
    "the API server, by a RebalanceRequest",
    "the role edit, and the right to create pods/eviction",
)
_PIN = "the API server, by a TierPlacement", "the role edit, and the right to restore artifacts"
_NODE = "the API server for its GPUNode", "the ClusterRole kyb-view-nodes"
_FILES = "nobody: it reads files", "no right"
_BOX = "this machine alone", "no right"

NEEDS: Mapping[str, tuple[str, str]] = {
    "agent": ("the agent of this node, by its socket", "root on the node"),
    "approve": (
        "the API server, by a RebalanceRequest",
        "the right to approve rebalancerequests.kyb.ai",
    ),
    "artifacts ls": ("the API server for Artifacts; or PLACE", "the role view; or the keys"),
    "artifacts": ("PLACE, a folder or an object store", "its credentials, and the keys"),
    "calibrate": (
        "the agent of this node, by its socket; with --url, a box",
        "root on the node; with --url, one of the box's keys, if it has any",
    ),
    "clients": ("the API server for a Secret of kyb-system", "the right to write it"),
    "clone": (
        "the API server, by a RestoreRequest",
        "the role edit, and the right to create pods and to restore artifacts",
    ),
    "completion": _BOX,
    "doctor": (
        "this machine; or the API server for services, nodes and ResourceSlices",
        "root on the node; or the right to list those: of what you may not list it sees less",
    ),
    "drain": (
        "the API server, by a CheckpointRequest for each seat",
        "the right to patch nodes, and to create pods/eviction",
    ),
    "dump": ("the extender, by mutual TLS", "a certificate of `kybernate pki`"),
    "explain node": _NODE,
    "explain pod": (
        "the API server for the pod, its events, CheckpointPolicies and GPUNode",
        "the right to get the pod and to list events and policies; with --tls-dir, a certificate",
    ),
    "explain seat": _NODE,
    "explain": ("the API server", "what each of its commands says"),
    "groups": ("this machine's NVML", "no right"),
    "import": _BOX,
    "models": _PODS,
    "move": _PLAN,
    "node": ("the API server for a ConfigMap of kyb-system", "the right to write it"),
    "park": _REQUEST,
    "pin": _PIN,
    "pki": _BOX,
    "plan": (
        "nobody: it reads files; with --prometheus, a Prometheus; with --cluster, the API server",
        "no right; with --cluster, to list pods, ReplicaSets and Jobs of all namespaces",
    ),
    "policy": ("the API server for CheckpointPolicies and pods", "the right to list them"),
    "rebalance": (
        "the API server, by a RebalanceRequest; with --tls-dir, the extender",
        "the role edit, and the right to create pods/eviction; with --tls-dir, a certificate",
    ),
    "replay": _FILES,
    "restore": (
        "the API server, by a RestoreRequest",
        "the role edit, and the right to create pods and to restore artifacts",
    ),
    "seats": _PODS,
    "serve": _BOX,
    "simulate": _FILES,
    "snapshot": (
        "the API server, by a CheckpointRequest",
        "the role edit, and the right to create pods/exec",
    ),
    "states": _BOX,
    "support-bundle": (
        "the API server for objects, events, logs and metrics of kyb-system",
        "the right to read those: what you may not read is left out, and listed",
    ),
    "top": ("the API server for GPUNodes", "the ClusterRole kyb-view-nodes"),
    "unpin": _PIN,
    "wake": _REQUEST,
}


def needs(path: str) -> str:
    """The sentence of a command, named from its group on; that of its group if it has none."""
    asks, right = NEEDS[path if path in NEEDS else path.partition(" ")[0]]
    return f"Asks {asks}. Needs {right}."
