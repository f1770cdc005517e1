"""The pod that a RestoreRequest has made: of the request's template, or like the artifact's pod.

The webhook admits it as any other. Of a pod of another namespace nothing is taken that names
something of this one: neither an account nor a Secret.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.api.lenient import mapping, mappings, text, texts
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.requests.restore import RestoreRequest

    Json = dict[str, Any]

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_OF_THE_POD = (
    *("nodeName", "schedulerName", "readinessGates", "schedulingGates", "ephemeralContainers"),
    *("priority", "preemptionPolicy", "hostname", "subdomain", "serviceAccount"),
)
"""What others have written into a pod's spec, or what two pods can't both be."""
_OURS = (keys.POD_VOLUME, "kyb-shm")
_ACCOUNT = "kube-api-access-"
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_KEPT_NOTES = (
    *(keys.MODEL, keys.VRAM, keys.GPUS_ANNOTATION, keys.GPU_PRODUCT, keys.GPU_TOPOLOGY),
    *(keys.POLICY, keys.READY_WITHIN, keys.PARK_TIER, keys.COOPERATE, keys.CONNECTIONS),
    keys.READY_WHILE,
    keys.NCCL,
)
"""Annotations that say what a seat needs, and nothing of where or with whom it is."""
_KEPT_VOLUMES = ("emptyDir", "downwardAPI")
_OF_OWNERS = (
    *("pod-template-hash", "controller-revision-hash", "statefulset.kubernetes.io/pod-name"),
    *("apps.kubernetes.io/pod-index", "job-name", "controller-uid"),
)
_HOSTNAME = "kubernetes.io/hostname"


def pod_to_make(
    request: RestoreRequest,
    source: Mapping[str, Any] | None,
    template: Mapping[str, Any] | None = None,
) -> Json | None:
    """The pod to create; None if the request has no template, that of a SnapshotTemplate is None,
    and its source is gone. Raises RefusedError if no pod can be made of it."""
    if request.template:
        return _restoring(request, _of_template(request.template))
    if template is not None:
        pod = _of_template(template)
        if request.kind is RestoreAs.CLONE:
            # As of a pod's clone: no probe reaches it, and no Service is to find it.
            pod["metadata"]["labels"] = {}
            for container in mappings(pod["spec"].get("containers")):
                _unprobed(container)
        return _restoring(request, pod)
    if source is None:
        return None
    return _restoring(request, _like(source, request))


def is_made_for(request: RestoreRequest, pod: Mapping[str, Any]) -> bool:
    """Whether this pod was made for the request."""
    notes = texts(mapping(pod.get("metadata")).get("annotations"))
    return notes.get(keys.MADE_FOR) == _made_for(request)


def request_of(pod: Mapping[str, Any]) -> str:
    """The name of the request that a pod says it is made for, empty if it says none."""
    notes = texts(mapping(pod.get("metadata")).get("annotations"))
    return notes.get(keys.MADE_FOR, "").partition("/")[0]


def why_not_asked(request: RestoreRequest, pod: Mapping[str, Any]) -> str:
    """Why this is not the pod that the request asks for, in a sentence; empty if it is, as far as
    the request says what it looks like."""
    meta, status = mapping(pod.get("metadata")), request.status
    notes = texts(meta.get("annotations"))
    wanted = {keys.RESTORE_FROM: request.restores, keys.RESTORE_AS: request.kind.value}
    same = status.artifact and notes.items() >= wanted.items() and not request.ended
    if not (same and is_made_for(request, pod) and meta.get("name") == status.pod):
        return f"RestoreRequest {request.name} asks for another pod than this"
    if request.template and _seen(mapping(pod.get("spec"))) != _seen(
        mapping(request.template.get("spec"))
    ):
        return f"RestoreRequest {request.name} has another template than this pod"
    return ""


def _seen(spec: Json) -> tuple[object, ...]:
    """What admission leaves as it is of what a pod may reach."""
    images = [one.get("image") for one in mappings(spec.get("containers"))]
    names = [text(one.get("name")) for one in mappings(spec.get("volumes"))]
    volumes = sorted(one for one in names if not one.startswith(_ACCOUNT) and one not in _OURS)
    return images, text(spec.get("serviceAccountName")) or "default", volumes


def _made_for(request: RestoreRequest) -> str:
    return f"{request.name}/{request.uid}"


def _of_template(template: Mapping[str, Any]) -> Json:
    meta = mapping(template.get("metadata"))
    return {
        "metadata": {
            "labels": dict(texts(meta.get("labels"))),
            "annotations": dict(texts(meta.get("annotations"))),
        },
        "spec": deepcopy(mapping(template.get("spec"))),
    }


def _restoring(request: RestoreRequest, pod: Json) -> Json:
    meta, spec = pod["metadata"], pod["spec"]
    meta["name"], meta["namespace"] = request.status.pod, request.namespace
    meta["labels"] |= {keys.MANAGED_LABEL: "true"}
    meta["annotations"] |= {
        keys.RESTORE_FROM: request.restores,
        keys.RESTORE_AS: request.kind.value,
        # Rather than a workload that has forgotten everything, none.
        keys.RESTORE_ELSE: "fail",
        keys.MADE_FOR: _made_for(request),
    }
    if request.stopped:
        meta["annotations"][keys.CLONE_STOPPED] = "true"
    if request.kind is RestoreAs.CLONE:
        meta["ownerReferences"] = [_owner(request)]
    if request.node_selector:
        spec["nodeSelector"] = dict(request.node_selector)
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _owner(request: RestoreRequest) -> Json:
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.RESTORE_REQUEST_KIND,
        "name": request.name,
        "uid": request.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _like(source: Mapping[str, Any], request: RestoreRequest) -> Json:
    """As whoever made the source wrote it, so far as it is known."""
    meta, spec = mapping(source.get("metadata")), deepcopy(mapping(source.get("spec")))
    notes = texts(meta.get("annotations"))
    seat = _as_it_was(spec, notes.get(keys.ORIGINAL_RESOURCES, ""))
    for name in _OF_THE_POD:
        spec.pop(name, None)
    _without_ours(spec)
    if request.foreign:
        _of_nobody(spec, seat)
    if request.kind is RestoreAs.CLONE:
        # No probe reaches a clone, and no Service is to find it.
        labels: Json = {}
        _unprobed(seat)
    else:
        labels = {k: v for k, v in texts(meta.get("labels")).items() if k not in _OF_OWNERS}
    hints = {name: notes[name] for name in _KEPT_NOTES if name in notes}
    return {"metadata": {"labels": labels, "annotations": hints}, "spec": spec}


def _unprobed(container: Json) -> None:
    for name in _PROBES:
        container.pop(name, None)


def _as_it_was(spec: Json, told: str) -> Json:
    """The seat's container, as it was before the webhook changed it."""
    try:
        original = json.loads(told)
        name, resources = text(original["container"]), mapping(original["resources"])
        probes = mapping(original.get("probes"))
    except (ValueError, TypeError, KeyError, AttributeError):
        name = ""
    found = [one for one in mappings(spec.get("containers")) if one.get("name") == name]
    if len(found) != 1:
        raise RefusedError(
            "the artifact's pod does not tell how its container was written; say spec.template"
        )
    container = found[0]
    container["resources"] = resources
    command = container.get("command") or []
    if command[:3] == [keys.KYB_INIT_PATH, "--image", "--"]:
        del container["command"]
    elif command[:2] == [keys.KYB_INIT_PATH, "--"]:
        container["command"] = command[2:]
    for probe, handler in probes.items():
        if isinstance(container.get(probe), dict):
            rest = {k: v for k, v in container[probe].items() if k not in _HANDLERS}
            container[probe] = {**rest, **handler}
    return container


def _without_ours(spec: Json) -> None:
    """Without what the webhook and Kubernetes' own admission have added."""
    inner = mappings(spec.get("initContainers"))
    spec["initContainers"] = [one for one in inner if one.get("name") != keys.SIDECAR]
    for container in (*mappings(spec.get("containers")), *spec["initContainers"]):
        mounts = mappings(container.get("volumeMounts"))
        container["volumeMounts"] = [one for one in mounts if not _is_ours(one)]
    spec["volumes"] = [one for one in mappings(spec.get("volumes")) if not _is_ours(one)]
    wanted = {k: v for k, v in mapping(spec.get("nodeSelector")).items() if k != _HOSTNAME}
    spec["nodeSelector"] = wanted


def _is_ours(named: Json) -> bool:
    name = text(named.get("name"))
    return name in _OURS or name.startswith(_ACCOUNT)


def _of_nobody(spec: Json, seat: Json) -> None:
    """Nothing of the namespace where it is made but its default account: what stands in there was
    written in another one."""
    if seat.get("envFrom") or any(one.get("valueFrom") for one in mappings(seat.get("env"))):
        raise RefusedError(
            "the artifact's pod takes variables from objects of its namespace; say spec.template"
        )
    for name in ("serviceAccountName", "imagePullSecrets", "initContainers", "resourceClaims"):
        spec.pop(name, None)
    spec["containers"] = [seat]
    spec["volumes"] = [
        one if any(kind in one for kind in _KEPT_VOLUMES) else {"name": one["name"], "emptyDir": {}}
        for one in spec["volumes"]
    ]
