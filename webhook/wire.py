"""AdmissionReview v1 as the API server speaks it: bytes in, a plain answer out. Pure."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import orjson

from kybernate import keys
from kybernate.api.lenient import check_brackets
from kybernate.dataclass import dataclass
from kybernate.errors import RefusedError
from webhook.pods.original import DEEPEST, MOST_VALUES, extent
from webhook.pods.probes import HANDLERS, ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

_LONGEST_MESSAGE = 4000
_MOST_ANNOTATIONS = 256 * 1024
"""The API server's own limit, which it looks at only after admission."""

_EPHEMERAL = "ephemeralcontainers"
_PODS = (("", "Pod"),)
_EVICTIONS = (("policy", "Eviction"),)
_ASKED = (
    (keys.GROUP, keys.CHECKPOINT_REQUEST_KIND),
    (keys.GROUP, keys.REBALANCE_REQUEST_KIND),
    (keys.GROUP, keys.RESTORE_REQUEST_KIND),
)
_UNPROCESSABLE = 422
_TOO_MANY_REQUESTS = 429
_UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class Review:
    """One question of the API server. `pod` is checked to have the shape that we read.

    `before` is the pod without the ephemeral containers that are to be added, None if it is not
    about those but about a new pod. `user` is who makes it.
    """

    uid: str
    operation: str
    dry_run: bool
    pod: Json
    before: Json | None = None
    user: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of the API server about an object of ours. `user` is who makes it."""

    uid: str
    spec: Json
    user: str


@dataclass(frozen=True, slots=True)
class Eviction:
    """One question of the API server about a pod that somebody wants evicted."""

    uid: str
    namespace: str
    pod: str
    dry_run: bool
    user: str


def parse_review(body: bytes) -> Review:
    """The question in a request's body. Raises RefusedError, naming the field, if it is none."""
    request, uid = _opened(body, _PODS, "pods alone")
    pod = _field(request, "object", dict, "request.object")
    too_much = extent(pod, DEEPEST, MOST_VALUES)
    if too_much:
        raise RefusedError(f"object is {too_much}, which no pod is.")
    _check_pod(pod)
    operation = _field(request, "operation", str, "request.operation")
    before = None
    if request.get("subResource") == _EPHEMERAL:
        before = _field(request, "oldObject", dict, "request.oldObject")
        _check_debuggers(before, "oldObject")
        _check_debuggers(pod, "object")
    user = _optional(request, "userInfo", dict, "request") or {}
    name = _optional(user, "username", str, "request.userInfo") or ""
    return Review(uid, operation, bool(request.get("dryRun")), pod, before, name)


def parse_asked(body: bytes) -> Asked:
    """As `parse_review`, of a new request of any kind."""
    request, uid = _opened(body, _ASKED, "requests of kyb.ai alone at this path")
    found = _field(request, "object", dict, "request.object")
    user = _field(request, "userInfo", dict, "request.userInfo")
    spec = _field(found, "spec", dict, "object.spec")
    return Asked(uid, spec, _field(user, "username", str, "request.userInfo.username"))


def parse_eviction(body: bytes) -> Eviction:
    """As `parse_review`, of an eviction."""
    request, uid = _opened(body, _EVICTIONS, "pods/eviction alone at this path")
    namespace = _field(request, "namespace", str, "request.namespace")
    name = _field(request, "name", str, "request.name")
    user = _field(request, "userInfo", dict, "request.userInfo")
    found = _field(request, "object", dict, "request.object")
    # Either of the two makes it one.
    options = _optional(found, "deleteOptions", dict, "request.object") or {}
    dry_run = bool(request.get("dryRun") or options.get("dryRun"))
    username = _field(user, "username", str, "request.userInfo.username")
    return Eviction(uid, namespace, name, dry_run, username)


def _opened(body: bytes, wanted: Sequence[tuple[str, str]], only: str) -> tuple[Json, str]:
    """The review's request, about one of these groups and kinds, and its UID."""
    check_brackets(body, "The body")
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(f"The body is not JSON: {error}.") from error
    _check(review, dict, "the body")
    if review.get("apiVersion") != API_VERSION or review.get("kind") != KIND:
        raise RefusedError(f"The body is not an {KIND} of {API_VERSION}.")
    request = _field(review, "request", dict, "request")
    uid = _field(request, "uid", str, "request.uid")
    kind = _field(request, "kind", dict, "request.kind")
    if (kind.get("group", ""), kind.get("kind")) not in wanted:
        named = " or ".join(name for _, name in wanted)
        raise RefusedError(f"request.kind is not {named}; register this webhook for {only}.")
    return request, uid


def allow(uid: str, patch: list[Json] | None = None, warnings: Sequence[str] = ()) -> Json:
    """Yes, with these changes, and with what the user is to be told all the same."""
    response: Json = {"uid": uid, "allowed": True}
    if warnings:
        response["warnings"] = list(warnings)
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(patch)).decode()
    return _review(response)


def deny(uid: str, message: str, *, later: bool = False) -> Json:
    """No, and why. `later`: the same pod may be right in a moment."""
    status = {
        "status": "Failure",
        "code": _UNAVAILABLE if later else _UNPROCESSABLE,
        "reason": "ServiceUnavailable" if later else "Invalid",
        "message": message[:_LONGEST_MESSAGE],
    }
    return _review({"uid": uid, "allowed": False, "status": status})


def not_yet(uid: str, message: str) -> Json:
    """Not now, as a PodDisruptionBudget answers: who evicts tries again. No time to wait is named:
    clients would wait for it without a word to people."""
    status = {
        "status": "Failure",
        "code": _TOO_MANY_REQUESTS,
        "reason": "TooManyRequests",
        "message": message[:_LONGEST_MESSAGE],
    }
    return _review({"uid": uid, "allowed": False, "status": status})


def _review(response: Json) -> Json:
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _check_pod(pod: Json) -> None:
    metadata = _field(pod, "metadata", dict, "object.metadata")
    for field in ("labels", "annotations"):
        for name, value in (_optional(metadata, field, dict, "object.metadata") or {}).items():
            _check(value, str, f"object.metadata.{field}[{name}]")
    if sum(map(len, (metadata.get("annotations") or {}).values())) > _MOST_ANNOTATIONS:
        raise RefusedError("object.metadata.annotations hold more than the 256 KiB that they may.")
    spec = _field(pod, "spec", dict, "object.spec")
    for field in ("resources", "os", "nodeSelector"):
        _optional(spec, field, dict, "object.spec")
    _field(spec, "containers", list, "object.spec.containers")
    for field in ("containers", "initContainers"):
        for container in _objects(spec, field, "object.spec"):
            _check_container(container, f"object.spec.{field}")
    for volume in _objects(spec, "volumes", "object.spec"):
        _field(volume, "name", str, "object.spec.volumes.name")
    for field in ("tolerations", "readinessGates", "schedulingGates"):
        _objects(spec, field, "object.spec")
    _optional(spec, "terminationGracePeriodSeconds", int, "object.spec")


def _check_debuggers(pod: Json, where: str) -> None:
    spec = _field(pod, "spec", dict, f"{where}.spec")
    for container in _objects(spec, "ephemeralContainers", f"{where}.spec"):
        _field(container, "name", str, f"{where}.spec.ephemeralContainers.name")
        for variable in _objects(container, "env", f"{where}.spec.ephemeralContainers"):
            _field(variable, "name", str, f"{where}.spec.ephemeralContainers.env.name")


def _check_container(container: Json, where: str) -> None:
    _field(container, "name", str, f"{where}.name")
    resources = _optional(container, "resources", dict, where) or {}
    for field in ("limits", "requests"):
        _optional(resources, field, dict, f"{where}.resources")
    for field in ("command", "args"):
        for word in _optional(container, field, list, where) or ():
            _check(word, str, f"{where}.{field}")
    for variable in _objects(container, "env", where):
        _field(variable, "name", str, f"{where}.env.name")
    for mount in _objects(container, "volumeMounts", where):
        _field(mount, "mountPath", str, f"{where}.volumeMounts.mountPath")
    rights = _optional(container, "securityContext", dict, where) or {}
    added = _optional(rights, "capabilities", dict, f"{where}.securityContext") or {}
    for name in _optional(added, "add", list, f"{where}.securityContext.capabilities") or ():
        _check(name, str, f"{where}.securityContext.capabilities.add")
    for port in _objects(container, "ports", where):
        _field(port, "containerPort", int, f"{where}.ports.containerPort")
    _check_probes(container, where)
    hook = _optional(container, "lifecycle", dict, where) or {}
    _optional(hook, "postStart", dict, f"{where}.lifecycle")


def _check_probes(container: Json, where: str) -> None:
    for name in ROLES:
        probe = _optional(container, name, dict, where) or {}
        for seconds in ("initialDelaySeconds", "periodSeconds", "failureThreshold"):
            _optional(probe, seconds, int, f"{where}.{name}")
        _optional(probe, "timeoutSeconds", int, f"{where}.{name}")
        for handler in HANDLERS:
            inner = _optional(probe, handler, dict, f"{where}.{name}") or {}
            for word in _optional(inner, "command", list, f"{where}.{name}.{handler}") or ():
                _check(word, str, f"{where}.{name}.{handler}.command")


def _objects(holder: Json, field: str, where: str) -> list[Json]:
    items: list[Json] = _optional(holder, field, list, where) or []
    for item in items:
        _check(item, dict, f"{where}.{field}")
    return items


def _optional(holder: Json, field: str, form: type, where: str) -> Any:
    value = holder.get(field)
    if value is not None:
        _check(value, form, f"{where}.{field}")
    return value


def _field(holder: Json, field: str, form: type, where: str) -> Any:
    value = holder.get(field)
    _check(value, form, where)
    return value


_FORMS = {dict: "an object", list: "a list", str: "a text", int: "a number"}


def _check(value: object, form: type, where: str) -> None:
    if not isinstance(value, form):
        raise RefusedError(f"{where} is not {_FORMS[form]}.")
