"""Events on waiting pods: the latest sentence about each, and not too many of them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from kybernate.api import events, pods
from kybernate.core.rate import Bucket
from kybernate.dataclass import dataclass
from kybernate.errors import KybernateError
from kybernate.lib.rounds import rounds_blocking

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.k8s import Api
    from kybernate.types import PodRef, PodUid

    Json = dict[str, Any]

log = logging.getLogger(__name__)

SAME_S = 300.0
"""Seconds until the same sentence is told of a pod again."""
OTHER_S = 15.0
"""Seconds until another sentence of the same kind is told of it."""
PER_SECOND, BURST = 5.0, 50.0
"""Events of all pods together."""
FLUSH_S = 0.5
MOST_KNOWN = 20_000


@dataclass(slots=True)
class _Told:
    """The sentence that waits to be told of a pod, if any, and the last one that was."""

    pod: PodRef
    waiting: str = ""
    last: str = ""
    at: float = float("-inf")

    def due(self, now: float) -> bool:
        """Whether there is something to tell, and long enough after the last time."""
        return bool(self.waiting) and now >= self.at + (
            SAME_S if self.waiting == self.last else OTHER_S
        )


class Events:
    """Sentences come from any thread and at any rate; one thread tells them."""

    def __init__(
        self,
        post: Callable[[str, Json], object],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """`post` writes an event into a namespace; it may raise KybernateError.

        `clock` gives seconds, `wall` those since 1970.
        """
        self._post = post
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._told: dict[tuple[PodUid, str], _Told] = {}
        self._bucket = Bucket(PER_SECOND, BURST)

    def tell(self, pod: PodRef, reason: str, sentence: str) -> None:
        """Tell a sentence about a pod, unless a newer one of the same reason comes first. Quick."""
        with self._lock:
            known = self._told.get((pod.uid, reason))
            if known is None:
                if len(self._told) >= MOST_KNOWN:
                    del self._told[next(iter(self._told))]
                known = self._told[pod.uid, reason] = _Told(pod)
            known.waiting = sentence[: events.MESSAGE_LIMIT]

    def forget(self, uid: PodUid, reason: str) -> None:
        """What waits to be told is true no more."""
        with self._lock:
            self._told.pop((uid, reason), None)

    def flush(self) -> None:
        """Write the events that are due."""
        now = self._clock()
        with self._lock:
            due = [(key[1], one) for key, one in self._told.items() if one.due(now)]
        for reason, one in due:
            if self._bucket.take(now):
                return
            sentence, one.waiting = one.waiting, ""
            one.last, one.at = sentence, now
            try:
                self._post(one.pod.namespace, self._event(one.pod, reason, sentence))
            except KybernateError as error:
                log.warning("an event about pod %s was not written: %s", one.pod, error)

    def _event(self, pod: PodRef, reason: str, sentence: str) -> Json:
        warning, source = reason not in NORMAL, {"component": "kyb-extender"}
        about, wall = events.of_pod(pod), self._wall()
        return events.event(about, reason, sentence, warning=warning, source=source, wall=wall)

    def run(self, stopping: threading.Event) -> None:
        """Write events until told to stop."""
        rounds_blocking(self.flush, stopping, FLUSH_S, "events")


GANG_PLANNED = "GangPlanned"
GANG_WAITING = "GangWaiting"
NO_SEAT = "NoSeat"
NORMAL = (GANG_PLANNED,)


class ApiWrites:
    """What the extender writes beside Bindings. Each call takes at most `timeout` seconds."""

    def __init__(self, api: Api, timeout: float) -> None:
        self._api = api
        self._timeout = timeout

    def patch(self, pod: PodRef, body: Json, kind: str) -> Json:
        """Patch a pod, and return it as it is then."""
        path = pods.path(pod.namespace, pod.name)
        return self._api.patch(path, body, kind, timeout=self._timeout)

    def event(self, namespace: str, body: Json) -> None:
        """Write an event."""
        self._api.post(events.path(namespace), body, timeout=self._timeout)
