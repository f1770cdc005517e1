"""Pods to review, as the API server would send them, and a small JSON Patch to apply answers."""

from __future__ import annotations

import copy
import json
from typing import Any

from kybernate import keys
from webhook.pods.cluster import Cluster, KnownGroup

GIB = 2**30
H100 = ("NVIDIA H100 80GB HBM3", 80 * GIB)
L4 = ("NVIDIA L4", 24 * GIB)
CLUSTER = Cluster(
    (
        KnownGroup("G0", keys.seat_resource(1), (H100,)),
        KnownGroup("G1", keys.seat_resource(1), (L4,), "small"),
        KnownGroup("G01", keys.seat_resource(2), (H100, H100)),
    )
)


def pod(
    limits: dict[str, Any] | None = None,
    requests: dict[str, Any] | None = None,
    *,
    notes: dict[str, str] | None = None,
    label: str | None = "true",
    container: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A labelled pod with one container; `container` and `spec` are merged in."""
    metadata: dict[str, Any] = {"name": "p", "namespace": "default"}
    if label is not None:
        metadata["labels"] = {keys.MANAGED_LABEL: label}
    if notes is not None:
        metadata["annotations"] = notes
    resources: dict[str, Any] = {}
    if limits is not None:
        resources["limits"] = limits
    if requests is not None:
        resources["requests"] = requests
    first = {"name": "c", "image": "x", "resources": resources, **(container or {})}
    return {"metadata": metadata, "spec": {"containers": [first], **(spec or {})}}


def seat(gpus: int = 1, **more: Any) -> dict[str, Any]:
    """Limits of one seat."""
    return {keys.seat_resource(gpus): "1", **more}


def apply(document: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The document after add, remove and replace steps."""
    # Through text, so that parts which the test's author wrote once are not one object.
    result: Any = {"root": json.loads(json.dumps(document))}
    for step in steps:
        parts = [p.replace("~1", "/").replace("~0", "~") for p in step["path"].split("/")[1:]]
        holder, last = result, "root"
        for part in parts:
            holder = holder[int(last)] if isinstance(holder, list) else holder[last]
            last = part
        _apply_one(holder, last, step)
    root: dict[str, Any] = result["root"]
    return root


def _apply_one(holder: Any, last: str, step: dict[str, Any]) -> None:
    value = copy.deepcopy(step.get("value"))
    if isinstance(holder, list):
        if step["op"] == "add":
            holder.insert(len(holder) if last == "-" else int(last), value)
        else:
            assert step["op"] == "replace"
            holder[int(last)] = value
    elif step["op"] == "remove":
        del holder[last]
    else:
        assert (last in holder) == (step["op"] == "replace")
        holder[last] = value
