"""Where the pods of a gang meet before the first of them is bound.

Seats are held for all of them, but CPU, memory, taints and volumes are for the kube-scheduler to
judge, pod by pod. A pod that comes to be bound was judged to fit, and the scheduler keeps its place
while it waits here. Only when all have come does any go on: a gang of which one pod fits nowhere
runs in no part.
"""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING

from kybernate.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kybernate.types import PodUid

LASTS = 20.0
"""Seconds for which a pod that was sent away at once counts as come: the scheduler tries it again
after 10 s at most."""


class Rendezvous:
    """Pods that have come to be bound. Each waits in the thread of its own call."""

    def __init__(self, clock: Callable[[], float], wait: float, most: int) -> None:
        """A pod waits `wait` seconds for the others; at most `most` wait at a time.

        The rest is sent away at once and counts as come all the same: their threads are needed to
        answer for the pods that are still to come. So of a larger gang each pod was found to fit,
        but not all of them at the same moment.
        """
        self._clock = clock
        self._wait = wait
        self._most = most
        self._waiting = 0
        self._until: dict[PodUid, float] = {}
        self._came: set[PodUid] = set()
        self._turn = threading.Condition()

    def meet(self, uid: PodUid, others: Collection[PodUid]) -> None:
        """Return once all others have come too. Raises ConflictError if they don't in time."""
        with self._turn:
            self._came.add(uid)
            self._until[uid] = self._clock() + LASTS
            self._turn.notify_all()
            if self._missing(others) and self._waiting < self._most:
                self._waiting += 1
                self._until[uid] = inf
                self._turn.wait_for(lambda: not self._missing(others), self._wait)
                self._waiting -= 1
                # Whoever goes on in time leaves this to the others, who are on their way as well.
                self._until[uid] = self._clock() + LASTS if not self._missing(others) else 0.0
            missing = self._missing(others)
        if missing:
            raise ConflictError(
                f"{missing} other pods of its gang have not come so far yet; it is tried again"
            )

    def came(self, uid: PodUid) -> bool:
        """Whether the pod has come since it was last forgotten."""
        with self._turn:
            return uid in self._came

    def forget(self, uid: PodUid) -> None:
        """The pod starts anew, or is gone."""
        with self._turn:
            self._came.discard(uid)
            self._until.pop(uid, None)

    def _missing(self, others: Collection[PodUid]) -> int:
        now = self._clock()
        return sum(self._until.get(uid, 0.0) <= now for uid in others)
