"""Kubernetes' Events: sentences for people about an object."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kybernate.types import PodRef

    Json = dict[str, Any]

MESSAGE_LIMIT = 1024
"""Characters of a sentence that an event has."""
_NAME_LIMIT = 200
"""Of the object's name; what makes the event's own name unique stands behind it."""


def path(namespace: str) -> str:
    """Of a namespace's events."""
    return f"/api/v1/namespaces/{namespace}/events"


def of_pod(pod: PodRef) -> Json:
    """What an event is about: a pod."""
    return of_object("v1", "Pod", pod.namespace, pod.name, str(pod.uid))


def of_object(version: str, kind: str, namespace: str, name: str, uid: str) -> Json:
    """What an event is about: an object of this kind, of this version of the API."""
    named = {"namespace": namespace, "name": name, "uid": uid}
    return {"apiVersion": version, "kind": kind, **named}


def event(
    about: Json, reason: str, sentence: str, *, warning: bool, source: Json, wall: float
) -> Json:
    """An event on the object `about`, which the API server names. One on what has no
    namespace lives in `default`. `wall`: seconds since 1970."""
    now, namespace = stamp(wall), about.get("namespace", "default")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "generateName": f"{beginning(about)}."},
        "involvedObject": about,
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": sentence[:MESSAGE_LIMIT],
        "source": source,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def beginning(about: Json) -> str:
    """What the name of an event on the object begins with."""
    return str(about["name"])[:_NAME_LIMIT].rstrip("-.")


def stamp(seconds: float) -> str:
    """A time as Kubernetes writes it: RFC 3339, whole seconds, UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
