"""CheckpointRequests: carried out by operations of the agent on the pod's node."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from controller.checkpoints.following import Following
from controller.checkpoints.turns import Turns
from kybernate.core.requests.checkpoint import (
    Act,
    Mode,
    Observed,
    Operation,
    Problem,
    Trouble,
    decide,
)
from kybernate.core.requests.evictions import lost_pod
from kybernate.core.requests.reasons import Reason
from kybernate.core.seat.operations import ENDED
from kybernate.errors import KybernateError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.base.cluster import Cluster
    from controller.base.known import Requests
    from controller.base.queue import Queue
    from controller.checkpoints.agents import Agents
    from controller.checkpoints.lost import LostPods, Remains
    from kybernate.core.policy.effective import Policy
    from kybernate.core.requests.asked import Decision
    from kybernate.core.requests.checkpoint import Request, Status
    from kybernate.core.requests.turns import Limits
    from kybernate.runtime.lead import Fence

log = logging.getLogger(__name__)


class CheckpointCarrier:
    """Implements `worker.Carrier` for CheckpointRequests, which wait in `queue`.

    So many `snapshots` of a namespace are under way at a time, and evictions within the `limits`,
    which are cancelled below their pace; `governing`: the policy that governs a request's pod,
    whose own limits count, too, also for its snapshots.
    """

    kind = "checkpoint"

    def __init__(  # noqa: PLR0913, PLR0917 - what a look needs, each of one owner
        self,
        queue: Queue,
        requests: Requests[Request],
        cluster: Cluster,
        agents: Agents,
        lost: LostPods,
        remains: Remains,
        fence: Fence,
        wall: Callable[[], float] = time.time,
        *,
        snapshots: int,
        limits: Limits,
        governing: Callable[[Request], Policy | None],
    ) -> None:
        self._queue = queue
        self._cluster = cluster
        self._fence = fence
        self._wall = wall
        self._agents = agents
        self._following = Following(agents)
        self._lost = lost
        self._remains = remains
        self._limits = limits
        self._governing = governing
        self._turns = Turns(requests, snapshots, limits, governing)

    def decided(self, request: Request) -> Decision[Status, Act]:
        """See `worker.Carrier`."""
        seen = self._observe(request)
        decision = self._decide(seen)
        if decision.act is Act.BEGIN:
            seen = self._begun(seen)
            decision = self._decide(seen)
        if decision.act is Act.CANCEL:
            self._fence.check()
            status = request.status
            after = self._agents.cancel(status.node, status.operation)
            # What it came to meanwhile counts; what can't be cancelled now is the sweep's.
            operation = after if isinstance(after, Operation) else seen.operation
            decision = self._decide(replace(seen, operation=operation, cancelled=True))
        if isinstance(seen.operation, Operation) and seen.operation.state not in ENDED:
            look = partial(self._queue.add, (request.namespace, request.name), first=True)
            self._following.follow(request.status.node, request.status.operation, look)
        return decision

    def _decide(self, seen: Observed) -> Decision[Status, Act]:
        request = seen.request
        pace = self._limits.pace.of(request, self._governing(request))
        return decide(seen, self._wall(), pace)

    def _begun(self, seen: Observed) -> Observed:
        """With what it came to that it was to begin, or why it may not yet."""
        request = seen.request
        if why := self._turns.take(request, self._wall()):
            return replace(seen, waits=(Reason.QUEUED, why))
        begun: Operation | Problem | None = None
        try:
            if waits := self._held_back(request):
                return replace(seen, waits=waits)
            self._fence.check()
            begun = self._agents.begin(request, request.granted(self._wall()))
            return replace(seen, operation=begun)
        finally:
            if not isinstance(begun, Operation):
                self._turns.give_back(request)

    def _held_back(self, request: Request) -> tuple[Reason, str] | None:
        """Why its pod may not go: it isn't parked then, as it would serve nobody, and stay."""
        if request.mode is not Mode.EVICT:
            return None
        try:
            why = self._cluster.held_back(request.namespace, request.pod)
        except RefusedError as error:
            # Such as by a webhook that can't be tried without effect.
            return Reason.PENDING, f"whether its pod may go can't be asked: {error}"
        return (Reason.DISRUPTION_BUDGET, why) if why else None

    def _observe(self, request: Request) -> Observed:
        status, operation = request.status, None
        if request.ended:
            return Observed(request)
        pod = None
        if status.operation:
            operation = self._agents.find(status.node, status.operation)
            if isinstance(operation, Operation):
                return Observed(request, operation=operation)
        elif lost_pod(request):
            pod = self._lost.pinned(request)
        if pod is None:
            pod = self._cluster.pod(request.namespace, request.pod)
        if status.operation and request.mode is Mode.EVICT:
            return self._with_left(Observed(request, pod, operation))
        if pod is not None and lost_pod(request) not in ("", pod.uid):
            # Another pod has its name.
            pod = None
        return Observed(request, pod, operation)

    def _with_left(self, seen: Observed) -> Observed:
        """And what remains of its pod, if it is lost."""
        told = seen.operation
        silent = isinstance(told, Problem) and told.trouble is Trouble.UNREACHABLE
        try:
            return replace(seen, left=self._remains.of(seen.request, seen.pod, silent=silent))
        except KybernateError as error:
            log.warning("what %s has left: %s", seen.request.status.pod_uid, error)
            return replace(seen, unsure=str(error))

    def counted(self, request: Request) -> str:
        """See `worker.Carrier`."""
        return request.mode.value

    def call_off(self, request: Request) -> None:
        """It was deleted; if its agent can't be told now, the sweep tells it."""
        self._fence.check()
        found = self._agents.cancel(request.status.node, request.status.operation)
        log.info("operation %s: its request is gone: %s", request.status.operation, found)
