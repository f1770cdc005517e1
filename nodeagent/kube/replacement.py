"""Pods that the kubelet failed for good because it had no seats to give at that moment.

At a reboot the kubelet admits its pods again as soon as it runs. If the device plugin hasn't
registered by then, it fails those that hold a seat, and nothing brings a failed pod back: somebody
must make another one. Who owns the pod does so; the pod says that it is to be done, and why. The
journal of before a boot says nothing: that such a pod has stopped is known from here alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from kybernate import keys
from kybernate.api.pods import read_pod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.api.pods import Pod
    from kybernate.types import PodRef, PodUid

log = logging.getLogger(__name__)


class Notices(Protocol):
    """Who writes it down; calls are quick and only queue."""

    def told_pod(self, pod: PodRef, kind: str, reason: str, sentence: str) -> None:
        """An event about the pod."""
        ...

    def mark_failed(self, pod: PodRef, sentence: str) -> None:
        """The condition kyb.ai/replace."""
        ...


class Replacements:
    """Marks such pods, once each, and tells `failed` of all that their kubelet has failed, with a
    sentence, and `ended` of all that have ended or were deleted. Fed by the watch, on the loop.
    `there`: the pods that are left."""

    def __init__(
        self,
        notices: Notices,
        failed: Callable[[PodRef, str], None],
        ended: Callable[[PodUid], None],
    ) -> None:
        self.there: set[PodUid] = set()
        self._notices = notices
        self._failed = failed
        self._ended = ended
        self._marked: set[PodUid] = set()
        self._told: set[PodUid] = set()

    def event(self, kind: str, pod: Mapping[str, Any]) -> None:
        """An event of the watch: ADDED, MODIFIED or DELETED."""
        found = read_pod(pod)
        ref, uid = found.ref, found.ref.uid
        if kind == "DELETED" or found.over:
            self.there.discard(uid)
            self._ended(uid)
        else:
            self.there.add(uid)
        if kind == "DELETED":
            self._marked.discard(uid)
            self._told.discard(uid)
            return
        if found.asks and found.failed_by_kubelet and uid not in self._told:
            self._told.add(uid)
            self._failed(ref, f"its kubelet has failed it: {found.reason}")
        resource = found.refused_seat
        marked = uid in self._marked or found.condition(keys.REPLACE_CONDITION) is not None
        if resource is None or marked:
            return
        self._marked.add(uid)
        sentence = (
            f"the kubelet failed the pod for good, because no {resource} was there when it asked; "
            f"{_who_replaces(found)}"
        )
        log.warning("pod %s: %s", ref, sentence)
        self._notices.told_pod(ref, "Warning", "SeatsNotThere", sentence)
        self._notices.mark_failed(ref, sentence)


def _who_replaces(pod: Pod) -> str:
    owner = pod.owner
    if owner is None:
        return "delete it and create it again: nobody owns it who would"
    return f"{owner['kind']} {owner['name']} makes another one"
