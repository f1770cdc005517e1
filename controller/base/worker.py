"""One look at a request: see, decide, act, write. Nothing is remembered from one to the next.

Nothing here is a base class: a `Shift` is given what looks, and a `RequestWorker` what decides.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from controller import metrics
from controller.base.kinds import R
from kybernate.core.requests.asked import Asked
from kybernate.errors import ConflictError, KybernateError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from controller.base.cluster import Cluster
    from controller.base.known import Requests, Seen
    from controller.base.queue import Key, Queue
    from kybernate.core.requests.asked import Decision
    from kybernate.runtime.lead import Fence

log = logging.getLogger(__name__)

_STANDBY_S = 0.2

R_contra = TypeVar("R_contra", bound=Asked, contravariant=True)
"""A request, as whoever carries it out takes it."""


class Work(Protocol):
    """What is done with keys that are due. `kind` says what they name."""

    kind: str

    def look(self, key: Key) -> None:
        """Do what is needed now. Raises KybernateError."""
        ...


class Carrier(Protocol[R_contra]):
    """What carries out objects of one `kind`, in as far as kinds differ."""

    kind: str

    def decided(self, request: R_contra) -> Decision[Any, Any]:
        """What is decided once no act is left but to remove it. Raises KybernateError."""
        ...

    def call_off(self, request: R_contra) -> None:
        """It is gone, and had not ended. Raises KybernateError."""
        ...

    def counted(self, request: R_contra) -> str:
        """As what its end is counted."""
        ...


class Shift:
    """What a thread does with the keys of a queue: one look each."""

    def __init__(self, work: Work, queue: Queue, fence: Fence) -> None:
        self._work = work
        self._queue = queue
        self._fence = fence

    def run(self, stopping: threading.Event) -> None:
        """Look at what is due, whenever this replica leads, until told to stop."""
        while not stopping.is_set():
            if self._fence.closed() is not None:
                stopping.wait(_STANDBY_S)
                continue
            key = self._queue.get()
            if key is not None:
                self._take(key)

    def _take(self, key: Key) -> None:
        if self._fence.closed() is not None:
            # Another one leads: it stays due here, for when this one does again.
            self._queue.done(key)
            self._queue.add(key)
            return
        outcome, failed = "done", False
        try:
            with metrics.SECONDS.time():
                self._work.look(key)
        except ConflictError:
            # It was changed meanwhile, which the watch tells, or its own answer.
            outcome, failed = "conflict", True
        except KybernateError as error:
            outcome, failed = "error", True
            log.warning("%s %s/%s: %s", self._work.kind, *key, error)
        except Exception:
            outcome, failed = "fault", True
            log.exception("%s %s/%s", self._work.kind, *key)
        metrics.RECONCILES.labels(self._work.kind, outcome).inc()
        self._queue.done(key, failed=failed)


class RequestWorker(Generic[R]):
    """Has objects of one kind carried out: what one of them needs is for `carrier` to say. It waits
    for its next look in `then`. `wall` gives seconds since 1970."""

    def __init__(
        self,
        carrier: Carrier[R],
        then: Queue,
        requests: Requests[R],
        cluster: Cluster,
        fence: Fence,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.kind = carrier.kind
        self._carrier = carrier
        self._then = then
        self._requests = requests
        self._cluster = cluster
        self._fence = fence
        self._wall = wall

    def look(self, key: Key) -> None:
        """Do what the request of this name needs now. Raises KybernateError."""
        for request in self._requests.gone(key):
            self._carrier.call_off(request)
        seen = self._requests.get(key)
        if seen is None:
            return
        decision = self._carrier.decided(seen.request)
        if decision.over:
            self._fence.check()
            self._cluster.remove(seen.request)
            return
        if decision.status != seen.request.status:
            self._write(seen, decision.status)
        if decision.again is not None:
            self._then.add(key, decision.again)

    def _write(self, seen: Seen[R], status: Any) -> None:
        before, reason = seen.request.status, status.reason
        self._fence.check()
        self._requests.wrote(seen, self._cluster.write(seen, status, self._wall()))
        if reason is None or reason is before.reason:
            return
        where = f"{seen.request.namespace}/{seen.request.name}"
        log.info("request %s: %s: %s", where, reason, status.message)
        self._cluster.tell(seen.request, reason, status.message)
        if status.ended_at:
            metrics.ENDED.labels(self._carrier.counted(seen.request), reason.value).inc()
