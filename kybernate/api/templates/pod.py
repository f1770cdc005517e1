"""The pods that are made of a SnapshotTemplate, and those that ask for it. Pure."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.asked import READY, owned_by
from kybernate.api.lenient import mapping, mappings, text, texts
from kybernate.api.requests import ask_for
from kybernate.api.restores import DETAILS
from kybernate.api.turns import ALWAYS
from kybernate.core.artifacts.restores import OF_TEMPLATE
from kybernate.core.requests.checkpoint import Mode
from kybernate.core.requests.template import BuildPod, Template
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.api import pods
    from kybernate.api.templates.reading import Recipe

    Json = dict[str, Any]

WARM_UP = "kyb-warm-up"
"""The container that asks what the template says, in its pod."""
WARM_UP_PORT = 15485
"""Where that container says that it is done."""
_OF_META = ("ownerReferences", "creationTimestamp")


def pod_of(recipe: Recipe, number: int, sidecar: str) -> Json:
    """The pod of a build. `sidecar`: the image of the container that asks its warm-up."""
    template, body = recipe.template, copy.deepcopy(dict(recipe.pod))
    meta, spec = mapping(body.get("metadata")), mapping(body.get("spec"))
    notes = {**texts(meta.get("annotations"))}
    for name in (keys.MODEL, keys.RESTORE_FROM, *DETAILS):
        # Nobody else is to use it, and it begins as itself.
        notes.pop(name, None)
    notes.setdefault(keys.TURN, ALWAYS)
    # What has failed is not begun again in the same pod.
    spec["restartPolicy"] = "Never"
    if recipe.warm_up:
        spec["containers"] = [*mappings(spec.get("containers")), _asking(recipe.warm_up, sidecar)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": template.pod(number),
            "labels": {**texts(meta.get("labels"))},
            "annotations": notes,
            "ownerReferences": [_owner(template)],
        },
        "spec": spec,
    }


def snapshot_of(template: Template, number: int, deadline_s: int) -> Json:
    """The request that has the state of a build's pod kept."""
    name = template.pod(number)
    found = ask_for(Mode.SNAPSHOT, name, Tier.OBJECT, deadline_s, None)
    found["metadata"] = {"name": name, "ownerReferences": [_owner(template)]}
    return found


def read_build_pod(pod: pods.Pod) -> BuildPod:
    """What the controller needs of a pod that it made."""
    condition = pod.condition(READY) or {}
    ready = condition.get("status") == "True" and pod.status.get("phase") == "Running"
    return BuildPod(
        pod.ref.name,
        pod.ref.uid,
        pod.node or "",
        ready=ready,
        failed=_failure(pod),
        image=image_of(pod),
        created_at=pod.created_at(),
        leaving=pod.leaving,
    )


def image_of(pod: pods.Pod) -> str:
    """The digest of the image that the container with the seat runs; empty until it does."""
    name = pod.ask.name if pod.ask else ""
    found = (one for one in _statuses(pod) if one.get("name") == name)
    return text(next(found, {}).get("imageID"))[:1024]


def template_of(pod: pods.Pod) -> str:
    """The template that the pod asks for, empty if none."""
    source = pod.notes.get(keys.RESTORE_FROM, "")
    return source.removeprefix(OF_TEMPLATE) if source.startswith(OF_TEMPLATE) else ""


def slim_pod(item: Mapping[str, Any], slim: Json) -> Json:
    """What a template needs of a pod that was made of it or asks for it, beside what is kept of all
    pods (`slim`)."""
    meta, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    source = texts(meta.get("annotations")).get(keys.RESTORE_FROM, "")
    owners = mappings(meta.get("ownerReferences"))
    made = any(one.get("kind") == keys.SNAPSHOT_TEMPLATE_KIND for one in owners)
    if not made and not source.startswith(OF_TEMPLATE):
        return slim
    status = mapping(item.get("status"))
    images = {text(one.get("name")): one.get("image") for one in mappings(spec.get("containers"))}
    containers = mappings(slim["spec"]["containers"])
    return {
        "metadata": {
            **slim["metadata"],
            **{name: meta[name] for name in _OF_META if name in meta},
            "annotations": {
                **texts(slim["metadata"].get("annotations")),
                **({keys.RESTORE_FROM: source} if source else {}),
            },
        },
        "spec": {
            **slim["spec"],
            "containers": [{**one, "image": images.get(one["name"])} for one in containers],
        },
        "status": {
            **slim["status"],
            "message": status.get("message"),
            "containerStatuses": [
                {name: one.get(name) for name in ("name", "imageID", "state")}
                for one in mappings(status.get("containerStatuses"))
            ],
        },
    }


def _asking(warm_up: str, image: str) -> Json:
    """The container, clean by Pod Security `restricted`."""
    amounts = {"cpu": "50m", "memory": "64Mi"}
    return {
        "name": WARM_UP,
        "image": image,
        "args": [f"--warm-up={warm_up}"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "readinessProbe": {"tcpSocket": {"port": WARM_UP_PORT}, "periodSeconds": 1},
        "resources": {"limits": dict(amounts), "requests": dict(amounts)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _owner(template: Template) -> Json:
    return owned_by(keys.SNAPSHOT_TEMPLATE_KIND, template.name, template.uid)


def _failure(pod: pods.Pod) -> str:
    """Why it will never be ready, in a sentence; empty if it may be."""
    for one in _statuses(pod):
        ended = mapping(mapping(one.get("state")).get("terminated"))
        if ended:
            said = text(ended.get("message")).strip() or text(ended.get("reason"))
            return f"container {one.get('name')} ended with {ended.get('exitCode')}: {said[-500:]}"
    if pod.over:
        return text(pod.status.get("message")) or f"it has ended ({pod.status.get('phase')})"
    return ""


def _statuses(pod: pods.Pod) -> list[Json]:
    return mappings(pod.status.get("containerStatuses"))
