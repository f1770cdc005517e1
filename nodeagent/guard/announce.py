"""How the warden tells people of what belongs to no seat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kybernate.types import PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Announcer(Protocol):
    """Writes Kubernetes events; quick, nothing waits for it."""

    def told_node(self, kind: str, reason: str, sentence: str) -> None:
        """An event on this node's GPUNode."""
        ...

    def told_pod(self, pod: PodRef, kind: str, reason: str, sentence: str) -> None:
        """An event on a pod that has no seat."""
        ...


class Roster:
    """Names of all pods of the node by UID, managed or not, as the watch shows them."""

    def __init__(self) -> None:
        self._pods: dict[str, PodRef] = {}

    def event(self, kind: str, pod: Mapping[str, Any]) -> None:
        """An event of the watch: ADDED, MODIFIED or DELETED."""
        meta = pod["metadata"]
        if kind == "DELETED":
            self._pods.pop(meta["uid"], None)
        else:
            self._pods[meta["uid"]] = PodRef(meta["namespace"], meta["name"], PodUid(meta["uid"]))

    def named(self, uid: PodUid | None) -> PodRef | None:
        """The pod of this UID, or None. A static pod's UID in its cgroup is another one."""
        return self._pods.get(uid) if uid else None
