"""One look at a request: see, decide, act, write. Nothing is remembered from one to the next."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol

from controller import metrics
from controller.kinds import R
from kybernate.core.requests.checkpoint import Act, Mode, Observed, Operation, decide
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.turns import has_turn
from kybernate.errors import ConflictError, KybernateError, RefusedError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from controller.agents import Agents
    from controller.cluster import Cluster
    from controller.known import Requests, Seen
    from controller.queue import Key, Queue
    from kybernate.core.requests.checkpoint import Decision, Request
    from kybernate.runtime.lead import Fence

log = logging.getLogger(__name__)

_STANDBY_S = 0.2


class Shift:
    """What a thread does with keys that are due: one look each. `kind` says what they name."""

    kind = "request"

    def __init__(self, queue: Queue, fence: Fence) -> None:
        self._queue = queue
        self._fence = fence

    def look(self, key: Key) -> None:
        """Do what is needed now. Raises KybernateError."""
        raise NotImplementedError

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
                self.look(key)
        except ConflictError:
            # It was changed meanwhile, which the watch tells, or its own answer.
            outcome, failed = "conflict", True
        except KybernateError as error:
            outcome, failed = "error", True
            log.warning("%s %s/%s: %s", self.kind, *key, error)
        except Exception:
            outcome, failed = "fault", True
            log.exception("%s %s/%s", self.kind, *key)
        metrics.RECONCILES.labels(outcome).inc()
        self._queue.done(key, failed=failed)


class Step(Protocol):
    """What is decided of a request: its status as it is to be, whether it goes now, and in how many
    seconds it is due again."""

    @property
    def status(self) -> Any:
        """Its status."""
        ...

    @property
    def over(self) -> bool:
        """Whether the object is to be deleted."""
        ...

    @property
    def again(self) -> float | None:
        """Seconds until the next look; None for when the request changes."""
        ...


class RequestWorker(Shift, Generic[R]):
    """Carries out objects of one kind: what one of them needs is for `decided` to say. `wall` gives
    seconds since 1970."""

    def __init__(
        self,
        queue: Queue,
        requests: Requests[R],
        cluster: Cluster,
        fence: Fence,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(queue, fence)
        self._requests = requests
        self._cluster = cluster
        self._wall = wall

    def look(self, key: Key) -> None:
        """Do what the request of this name needs now. Raises KybernateError."""
        for request in self._requests.gone(key):
            self.call_off(request)
        seen = self._requests.get(key)
        if seen is None:
            return
        decision = self.decided(seen.request)
        if decision.over:
            self._fence.check()
            self._cluster.remove(seen.request)
            return
        if decision.status != seen.request.status:
            self._write(seen, decision.status)
        if decision.again is not None:
            self._queue.add(key, decision.again)

    def decided(self, request: R) -> Step:
        """What is decided once no act is left but to remove it. Raises KybernateError."""
        raise NotImplementedError

    def call_off(self, request: R) -> None:
        """It is gone, and had not ended. Raises KybernateError."""
        raise NotImplementedError

    def counted(self, request: R) -> str:
        """As what its end is counted."""
        raise NotImplementedError

    def _write(self, seen: Seen[R], status: Any) -> None:
        before, reason = seen.request.status, status.reason
        self._fence.check()
        self._requests.wrote(self._cluster.write(seen, status, self._wall()))
        if reason is None or reason is before.reason:
            return
        where = f"{seen.request.namespace}/{seen.request.name}"
        log.info("request %s: %s: %s", where, reason, status.message)
        self._cluster.tell(seen.request, reason, status.message)
        if status.ended_at:
            metrics.ENDED.labels(self.counted(seen.request), reason.value).inc()


class Worker(RequestWorker["Request"]):
    """Carries out CheckpointRequests. So many `snapshots` of a namespace are under way at a
    time."""

    def __init__(  # noqa: PLR0913 - what a look needs, each of one owner
        self,
        queue: Queue,
        requests: Requests[Request],
        cluster: Cluster,
        agents: Agents,
        fence: Fence,
        wall: Callable[[], float] = time.time,
        *,
        snapshots: int,
    ) -> None:
        super().__init__(queue, requests, cluster, fence, wall)
        self._agents = agents
        self._snapshots = snapshots

    def decided(self, request: Request) -> Decision:
        """See `RequestWorker`."""
        seen = self._observe(request)
        decision = decide(seen, self._wall())
        if decision.act is Act.BEGIN:
            seen = replace(seen, waits=self._waits(request))
            decision = decide(seen, self._wall())
        if decision.act is Act.BEGIN:
            self._fence.check()
            seen = replace(seen, operation=self._agents.begin(request, request.left(self._wall())))
            decision = decide(seen, self._wall())
        if decision.act is Act.CANCEL:
            self._fence.check()
            status = request.status
            after = self._agents.cancel(status.node, status.operation)
            # What it came to meanwhile counts; what can't be cancelled now is the sweep's.
            operation = after if isinstance(after, Operation) else seen.operation
            decision = decide(replace(seen, operation=operation, cancelled=True), self._wall())
        return decision

    def _waits(self, request: Request) -> tuple[Reason, str] | None:
        """Why it may not begin yet."""
        if request.mode is Mode.EVICT:
            # What may not go is not parked: it would serve nobody, and stay.
            try:
                why = self._cluster.held_back(request.namespace, request.pod)
            except RefusedError as error:
                # Such as by a webhook that can't be tried without effect.
                return Reason.PENDING, f"whether its pod may go can't be asked: {error}"
            return (Reason.DISRUPTION_BUDGET, why) if why else None
        if has_turn(request, self._requests.of(request.namespace), self._snapshots):
            return None
        return Reason.QUEUED, f"{self._snapshots} snapshots of {request.namespace} come first"

    def _observe(self, request: Request) -> Observed:
        status, operation = request.status, None
        if request.ended:
            return Observed(request)
        if status.operation:
            operation = self._agents.find(status.node, status.operation)
            if isinstance(operation, Operation):
                return Observed(request, operation=operation)
        return Observed(request, self._cluster.pod(request.namespace, request.pod), operation)

    def counted(self, request: Request) -> str:
        """See `RequestWorker`."""
        return request.mode.value

    def call_off(self, request: Request) -> None:
        """It was deleted; if its agent can't be told now, the sweep tells it."""
        self._fence.check()
        found = self._agents.cancel(request.status.node, request.status.operation)
        log.info("operation %s: its request is gone: %s", request.status.operation, found)
