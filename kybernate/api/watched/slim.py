"""What a watch remembers of objects: no more than their readers here need. Pure.

People may hang megabytes on an object, and there may be thousands. `slim_node` of `nodefacts` is
one of these for GPUNodes.
"""

from __future__ import annotations

from typing import Any

from kybernate import keys
from kybernate.api.lenient import mapping, mappings, texts
from kybernate.api.templates.pod import slim_pod as of_templates
from kybernate.core.policy.effective import SPOKEN_OF

Json = dict[str, Any]

_OF_ALL = ("namespace", "name", "uid", "resourceVersion")
_OF_REQUEST = (
    *(*_OF_ALL, "generation"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)
_NOTES_OF_REQUEST = (keys.SUCCESSOR, keys.WANTED)
_OF_POD = (
    *(*_OF_ALL, "labels", "ownerReferences"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)
_OF_PODS_SPEC = ("nodeName", "priority", "preemptionPolicy")
_NOTES_OF_POD = (*SPOKEN_OF, keys.PARK_TIER, keys.MODEL, keys.ASSIGNED_GROUP)
_OF_ARTIFACT = (*_OF_ALL, "labels")


def slim_request(item: Json) -> Json:
    """What matters of a request: spec and status are short by their definition, while labels and
    annotations may be as long as an object can be, and there may be thousands; two count."""
    meta = item["metadata"]
    notes = texts(meta.get("annotations"))
    found: Json = {"metadata": {name: meta[name] for name in _OF_REQUEST if name in meta}}
    found["metadata"]["annotations"] = {
        name: notes[name] for name in _NOTES_OF_REQUEST if name in notes
    }
    return found | {part: item[part] for part in ("spec", "status") if part in item}


def slim_artifact(item: Json) -> Json:
    """What matters of an Artifact."""
    meta = item["metadata"]
    found = {name: meta[name] for name in _OF_ARTIFACT if name in meta}
    return {"metadata": found, "status": item.get("status")}


def slim_pod(item: Json) -> Json:
    """What matters of a pod: its labels, its seat, and since when it runs or is ready; and more of
    those that have to do with SnapshotTemplates."""
    meta, spec, status = item["metadata"], mapping(item.get("spec")), mapping(item.get("status"))
    notes = texts(meta.get("annotations"))
    containers = [
        {"name": one.get("name"), "resources": {"limits": _limits(one)}}
        for one in mappings(spec.get("containers"))
    ]
    found = {
        "metadata": {name: meta[name] for name in _OF_POD if name in meta}
        | {"annotations": {name: notes[name] for name in _NOTES_OF_POD if name in notes}},
        "spec": {"containers": containers, **{name: spec.get(name) for name in _OF_PODS_SPEC}},
        "status": {name: status.get(name) for name in ("phase", "reason", "startTime")}
        | _conditions(status),
    }
    if status.get("phase") == "Failed":
        found["metadata"]["managedFields"] = [
            {name: one.get(name) for name in ("subresource", "time")}
            for one in mappings(meta.get("managedFields"))
        ]
    return of_templates(item, found)


def _conditions(status: Json) -> Json:
    known = mappings(status.get("conditions"))
    return {"conditions": [one for one in known if one.get("type") in ("Ready", "PodScheduled")]}


def _limits(container: Json) -> Json:
    return mapping(mapping(container.get("resources")).get("limits"))
