"""Seats whose workloads go on in other pods, as far as the rest of the agent must know of it.

going      the next dump goes to the successor
handed     the workload may go on elsewhere: whoever calls for it, it does not wake
elsewhere  it does, for good
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.types import PodUid
    from nodeagent.offload.leaving import Departure


class Departures:
    """All of this node's, by their pods' UIDs. Lives on the loop."""

    def __init__(self) -> None:
        self.going: dict[PodUid, Departure] = {}
        self._handed: set[PodUid] = set()
        self._elsewhere: dict[PodUid, str] = {}
        self._successors: dict[PodUid, str] = {}

    def resume(self, handed: Iterable[PodUid]) -> None:
        """After a restart: these may go on elsewhere."""
        self._handed = set(handed)

    def hand(self, uid: PodUid) -> None:
        """From here on its successor may run."""
        self._handed.add(uid)

    def stay(self, uid: PodUid) -> None:
        """It goes on here."""
        self.going.pop(uid, None)
        self._handed.discard(uid)

    def leave(self, uid: PodUid, where: str, successor: str = "") -> None:
        """It never goes on here: `where` it does, or why nowhere, as a sentence. `successor`: the
        name of the pod that goes on."""
        self._elsewhere[uid], self._successors[uid] = where, successor

    def forget(self, uid: PodUid) -> None:
        """Its seat is no more."""
        self._elsewhere.pop(uid, None)
        self._successors.pop(uid, None)
        self._handed.discard(uid)

    def went_to(self, uid: PodUid, successor: str) -> bool:
        """Whether it goes on in the pod of this name: to move it there is done."""
        return bool(successor) and self._successors.get(uid) == successor

    def where(self, uid: PodUid) -> str:
        """What `leave` was told; empty if it may wake here again."""
        return self._elsewhere.get(uid, "")

    def sleeps(self, uid: PodUid) -> bool:
        """Whether nothing may wake it here, now or ever."""
        return uid in self._elsewhere or uid in self._handed
