"""Kubernetes events: sentences for people, told once, and counted when they come again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kybernate.api import events
from kybernate.core.rate import Bucket
from kybernate.dataclass import dataclass
from nodeagent import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.ports import KubeApi

log = logging.getLogger(__name__)

FORGET_AFTER = 600.0
"""Seconds after which the same sentence is a new event."""
COUNT_EVERY = 30.0
"""Seconds between two writes of one event's count."""
BURST = 25
PER_SECOND = 1 / 60
"""New events of one object: so many at once, and one a minute for long."""
_KNOWN_LIMIT = 2048


@dataclass(slots=True)
class _Told:
    """One event. Times are wall-clock seconds; `written` is when its count was last sent."""

    path: str
    name: str
    first: float
    last: float
    written: float
    count: int = 1


class Events:
    """Writes events through `put` (a queue of calls by key). `wall` in seconds since 1970."""

    def __init__(
        self,
        put: Callable[[str, Callable[[KubeApi], object]], None],
        wall: Callable[[], float],
        host: str,
    ) -> None:
        self._put = put
        self._wall = wall
        self._host = host
        self._told: dict[tuple[str, str, str], _Told] = {}
        self._buckets: dict[str, Bucket] = {}
        self._number = 0

    def tell(
        self, namespace: str, about: dict[str, Any], kind: str, reason: str, sentence: str
    ) -> None:
        """An event on the object `about`; `kind` is Normal or Warning. Quick.

        The same reason and sentence again only counts, and that is written every now and then.
        """
        now, of = self._wall(), about.get("uid") or about["name"]
        key = (of, reason, sentence)
        known = self._told.get(key)
        if known is not None and now - known.last < FORGET_AFTER:
            self._again(known, now)
            return
        if self._bucket(of).take(now):
            metrics.EVENTS_DROPPED.inc()
            log.info("no event of it, since %s has too many: %s", about["name"], sentence)
            return
        self._number += 1
        name = f"{events.beginning(about)}.{int(now * 1e6):x}.{self._number:x}"
        path, source = events.path(namespace), {"component": "kyb-agent", "host": self._host}
        self._told[key] = _Told(path, name, now, now, now)
        self._forget(now)
        body = events.event(
            *(about, reason, sentence), warning=kind == "Warning", source=source, wall=now
        )
        # Its name is known before it is written, so that it can be counted.
        body["metadata"] = {"namespace": namespace, "name": name}
        self._put(f"event {name}", lambda api: api.post(path, body))

    def _again(self, known: _Told, now: float) -> None:
        known.count, known.last = known.count + 1, now
        if now - known.written < COUNT_EVERY:
            return
        known.written = now
        body = {"count": known.count, "lastTimestamp": events.stamp(now)}
        path = f"{known.path}/{known.name}"
        self._put(f"event {known.name} again", lambda api: api.patch(path, body))

    def _bucket(self, of: str) -> Bucket:
        if of not in self._buckets:
            if len(self._buckets) >= _KNOWN_LIMIT:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[of] = Bucket(PER_SECOND, BURST)
        return self._buckets[of]

    def _forget(self, now: float) -> None:
        if len(self._told) > _KNOWN_LIMIT:
            live = {key: one for key, one in self._told.items() if now - one.last < FORGET_AFTER}
            # Beyond the limit also younger ones go, oldest first: they are told again.
            self._told = dict(list(live.items())[-_KNOWN_LIMIT // 2 :])
