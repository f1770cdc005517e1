"""Pods and GPUNodes as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from extender.state import objects
from extender.state.objects import Rules

if TYPE_CHECKING:
    from extender.state.objects import SeatPod

ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"
GIB = 1 << 30
RESERVED_S = 120.0


def read_pod(item: dict[str, Any], rules: Rules | None = None) -> SeatPod:
    """The pod as read where all share with all, unless there are rules."""
    return objects.read_pod(item, rules or Rules())


def pod(
    name: str = "p1",
    *,
    limits: dict[str, str] | None = None,
    notes: dict[str, str] | None = None,
    node: str | None = None,
    phase: str = "Pending",
    uid: str | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": "7",
            "annotations": dict(notes or {}),
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {
            "containers": [
                {"name": "sidecar", "image": "s"},
                {
                    "name": "model",
                    "resources": {"limits": {ONE: "1"} if limits is None else limits},
                },
            ],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": phase},
    }


def gpu_node(name: str = "n1", **status: Any) -> dict[str, Any]:
    """Two linked GPUs of 80 GiB: G0 and G1 with two seats each, G01 with one."""
    uuids = [f"GPU-{name}-{i}" for i in (0, 1)]
    groups = [("G0", ONE, uuids[:1], 2), ("G1", ONE, uuids[1:], 2), ("G01", TWO, uuids, 1)]
    return {
        "metadata": {"name": name, "resourceVersion": "3"},
        "status": {
            "gpus": [
                {"index": i, "uuid": u, "product": "H100", "memoryBytes": 80 * GIB, "healthy": True}
                for i, u in enumerate(uuids)
            ],
            "links": [{"a": uuids[0], "b": uuids[1], "kind": "nvlink"}],
            "groups": [
                {"name": n, "resource": r, "gpus": g, "seats": s, "activeSlots": 1}
                for n, r, g, s in groups
            ],
            "budget": {"parkBytes": 500 * GIB, "parkedBytes": 0},
            "conditions": [{"type": "Ready", "status": "True"}],
            **status,
        },
    }
