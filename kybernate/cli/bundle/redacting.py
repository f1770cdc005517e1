"""What of objects and logs may be given away: names and states, no values of tenants. Pure.

Of a pod's spec only fields that are listed here are taken, wherever it stands. In anything else
values under certain keys are replaced, and what looks like a secret in any text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kybernate import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Json = dict[str, Any]

REDACTED = "(redacted)"

_POD = frozenset(
    {
        *("nodeName", "nodeSelector", "schedulerName", "schedulingGates", "readinessGates"),
        *("priority", "priorityClassName", "preemptionPolicy", "runtimeClassName", "tolerations"),
        *("restartPolicy", "terminationGracePeriodSeconds", "activeDeadlineSeconds", "affinity"),
        *("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "serviceAccountName"),
        *("containers", "initContainers", "ephemeralContainers", "volumes", "topologySpread"),
    }
)
_CONTAINER = frozenset(
    {
        *("name", "image", "imagePullPolicy", "resources", "ports", "securityContext", "env"),
        *("restartPolicy", "volumeMounts", "command", "args"),
    }
)
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_VALUES = frozenset(
    {
        *("data", "stringData", "binaryData", "headers", "httpHeaders", "body", "caBundle"),
        *("volumeAttributes", "password", "passwd", "token", "secret", "apikey", "accesskey"),
        *("secretkey", "credentials", "authorization"),
    }
)
_LETTERS = re.compile(r"[^a-z]")
_NOTES = (f"{keys.GROUP}/", keys.SHORT_PREFER_GROUP)
_OF_TENANTS = frozenset({"Unhealthy", "FailedPostStartHook", "FailedPreStopHook"})
"""Reasons of events in which the kubelet repeats what a container has answered."""

_PEM = r"-----END [A-Z ]{1,40}-----"
_WORD = r"[\w-]{0,40}"
_KEY = (
    r"(?:password|passwd|passphrase|secret|token|api_?-?key|access_?-?key|private_?-?key|"
    r"credential|signature)"
)
_VALUE = (
    r"""(?:"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|"""
    r"""\\{1,3}["'](?:(?!\\{1,3}["']|\n).)*(?:\\{1,3}["'])?|[^\s"'&,;}]+)"""
)
"""Between quotes, also those of JSON within JSON, or one word."""
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(rf"-----BEGIN [A-Z ]{{1,40}}-----.*?(?:{_PEM}|\Z)", re.DOTALL),
        "",
    ),
    (re.compile(rf"\A(?:(?!-----BEGIN).)*?{_PEM}", re.DOTALL), ""),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?"), ""),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), r"\1 "),
    (re.compile(r"(://)[^/\s:@]{0,200}:[^/\s@]{1,200}@"), r"\1"),
    (
        re.compile(
            rf"(?i)(\b{_WORD}{_KEY}{_WORD}\\{{0,3}}[\"']?\s{{0,3}}[:=]\s{{0,3}}|"
            rf"--{_WORD}{_KEY}{_WORD}\s{{1,3}}(?!-)){_VALUE}"
        ),
        r"\1",
    ),
    (
        re.compile(
            r"\b(?:A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|"
            r"(?:sk|hf|xox[abp]|gh[pousr]|github_pat|glpat|npm|nvapi)[-_][\w-]{16,})"
        ),
        "",
    ),
)


def text(found: str) -> str:
    """The text without what looks like a key, a token, a password or a certificate."""
    for pattern, kept in _SECRETS:
        found = pattern.sub(kept + REDACTED, found)
    return found


def item(found: Json) -> Json:
    """A Kubernetes object of any kind as it may be given away."""
    told: Json = _any(found)
    if found.get("reason") in _OF_TENANTS and "involvedObject" in found:
        told["message"] = REDACTED
    return told


def _any(found: Any, key: str = "") -> Any:
    if isinstance(found, str):
        return text(found)
    if isinstance(found, list):
        return [_any(one) for one in found]
    if not isinstance(found, dict):
        return found
    if isinstance(found.get("containers"), list):
        return _listed(found, _POD)
    return {name: _value(name, one, key) for name, one in found.items() if name != "managedFields"}


def _value(name: str, found: Any, of: str) -> Any:
    if name == "annotations" and isinstance(found, dict):
        return {one: text(str(value)) if _ours(one) else REDACTED for one, value in found.items()}
    if name == "message" and of == "terminated":
        return REDACTED
    shape = _SHAPES.get(name)
    if shape is not None:
        return shape(found)
    # A selector's `matchLabels: {token: x}` is no secret; a text or a map of values is.
    return REDACTED if _LETTERS.sub("", name.lower()) in _LOWER else _any(found, name)


def _ours(annotation: str) -> bool:
    return annotation.startswith(_NOTES)


def _listed(found: Mapping[str, Any], fields: frozenset[str]) -> Json:
    """Fields that are known; what else there is is named alone."""
    told = {name: _value(name, one, "") for name, one in found.items() if name in fields}
    more = sorted(text(name) for name in found if name not in fields)
    return {**told, REDACTED: more} if more else told


def _containers(found: Any) -> Any:
    return [_listed(one, _CONTAINER) for one in found or () if isinstance(one, dict)]


def _env(found: Any) -> Any:
    """Names, and where a value comes from, which is a name again."""
    if not isinstance(found, list):
        return REDACTED
    return [
        {
            "name": one.get("name"),
            **({"valueFrom": one["valueFrom"]} if "valueFrom" in one else {"value": REDACTED}),
        }
        for one in found
        if isinstance(one, dict)
    ]


def _words(found: Any) -> Any:
    return f"{REDACTED}: {len(found)} words" if isinstance(found, list) else REDACTED


def _volumes(found: Any) -> Any:
    """Names, and of what kind each is."""
    return [
        {"name": one.get("name"), "kind": sorted(set(one) - {"name"})}
        for one in found or ()
        if isinstance(one, dict)
    ]


_SHAPES: Mapping[str, Callable[[Any], Any]] = {
    "args": _words,
    "command": _words,
    "env": _env,
    "volumes": _volumes,
    **dict.fromkeys(_CONTAINERS, _containers),
}
_LOWER = frozenset(name.lower() for name in _VALUES)
