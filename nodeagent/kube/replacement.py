"""Pods that the kubelet failed for good because it had no seats to give at that moment.

At a reboot the kubelet admits its pods again as soon as it runs. If the device plugin hasn't
registered by then, it fails those that hold a seat, and nothing brings a failed pod back: somebody
must make another one. Who owns the pod does so; the pod says that it is to be done, and why.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from kybernate import keys
from kybernate.types import PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

log = logging.getLogger(__name__)

_REASON = "UnexpectedAdmissionError"


class Notices(Protocol):
    """Who writes it down; calls are quick and only queue."""

    def told_pod(self, pod: PodRef, kind: str, reason: str, sentence: str) -> None:
        """An event about the pod."""
        ...

    def mark_failed(self, pod: PodRef, sentence: str) -> None:
        """The condition kyb.ai/replace."""
        ...


class Replacements:
    """Marks such pods, once each. Fed by the watch, on the loop."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._marked: set[PodUid] = set()

    def event(self, kind: str, pod: Mapping[str, Any]) -> None:
        """An event of the watch: ADDED, MODIFIED or DELETED."""
        uid = PodUid(pod["metadata"]["uid"])
        if kind == "DELETED":
            self._marked.discard(uid)
            return
        resource = refused_seat(pod)
        if resource is None or uid in self._marked or _is_marked(pod):
            return
        self._marked.add(uid)
        meta = pod["metadata"]
        ref = PodRef(meta["namespace"], meta["name"], uid)
        sentence = (
            f"the kubelet failed the pod for good, because no {resource} was there when it asked; "
            f"{_who_replaces(meta)}"
        )
        log.warning("pod %s: %s", ref, sentence)
        self._notices.told_pod(ref, "Warning", "SeatsNotThere", sentence)
        self._notices.mark_failed(ref, sentence)


def refused_seat(pod: Mapping[str, Any]) -> str | None:
    """The seat resource that the kubelet failed the pod for, None if it didn't."""
    status = pod.get("status") or {}
    if status.get("phase") != "Failed" or status.get("reason") != _REASON:
        return None
    message = str(status.get("message", ""))
    return next((seat for seat in _seats(pod) if seat in message), None)


def _seats(pod: Mapping[str, Any]) -> Iterator[str]:
    for container in (pod.get("spec") or {}).get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        yield from (name for name in limits if keys.seat_resource_size(name))


def _is_marked(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == keys.REPLACE_CONDITION for one in conditions)


def _who_replaces(meta: Mapping[str, Any]) -> str:
    owners = meta.get("ownerReferences") or ()
    owner = next((one for one in owners if one.get("controller")), None)
    if owner is None:
        return "delete it and create it again: nobody owns it who would"
    return f"{owner['kind']} {owner['name']} makes another one"
