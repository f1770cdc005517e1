"""Where the pods of a gang meet before the first of them is bound.

Seats are held for all of them, but CPU, memory, taints and volumes are for the kube-scheduler to
judge, pod by pod. A pod that comes to be bound was judged to fit, and the scheduler keeps its place
while it waits here. Only when all have come does any continue: a gang of which one pod fits nowhere
runs in no part.
"""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING

from kybernate.core.gangs.gang import MOST_MEMBERS
from kybernate.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kybernate.types import PodUid

MOST = MOST_MEMBERS
"""So many pods wait at a time: any one gang whole, or several smaller ones."""

LASTS = 20.0
"""Seconds for which a pod that was sent away at once counts as come: the scheduler tries it again
after 10 s at most."""


class Rendezvous:
    """Pods that have come to be bound. Each waits in the thread of its own call."""

    def __init__(self, clock: Callable[[], float], wait: float, most: int = MOST) -> None:
        """A pod waits `wait` seconds for the others; at most `most` wait at a time.

        The rest is sent away at once and counts as come all the same: gangs must not keep each
        other from meeting. So each of their pods was found to fit, but not all of them at the same
        moment.
        """
        self._clock = clock
        self._wait = wait
        self._most = most
        self._waiting = 0
        self._until: dict[PodUid, float] = {}
        self._turn = threading.Condition()

    def meet(self, uid: PodUid, others: Collection[PodUid]) -> None:
        """Return once all others have come too. Raises ConflictError if they don't in time, or if
        the pod is forgotten meanwhile."""
        with self._turn:
            self._until[uid] = self._clock() + LASTS
            if not self._missing(others):
                self._turn.notify_all()
                return
            if self._waiting < self._most:
                self._await(uid, others)
            missing = self._missing(others) if uid in self._until else len(others)
        if missing:
            raise ConflictError(
                f"{missing} other pods of its gang have not come so far yet; it is tried again"
            )

    def forget(self, uid: PodUid) -> None:
        """The pod starts again, or is gone."""
        with self._turn:
            if self._until.pop(uid, None) == inf:
                self._turn.notify_all()

    def _await(self, uid: PodUid, others: Collection[PodUid]) -> None:
        self._waiting += 1
        self._until[uid] = inf
        self._turn.wait_for(lambda: uid not in self._until or not self._missing(others), self._wait)
        self._waiting -= 1
        if uid in self._until:
            # Whoever continues in time leaves this to the others, who are on their way as well.
            self._until[uid] = 0.0 if self._missing(others) else self._clock() + LASTS

    def _missing(self, others: Collection[PodUid]) -> int:
        now = self._clock()
        return sum(self._until.get(uid, 0.0) <= now for uid in others)
