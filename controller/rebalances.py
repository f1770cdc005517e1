"""RebalanceRequests: planned by the extender, carried out by CheckpointRequests and evictions.

Plans are made by one thread, one after the other, and namespaces take turns: however many requests
one of them makes, no step of another waits for a plan, and the extender makes one at a time.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from kybernate import keys
from kybernate.adapters import extender
from kybernate.api.rebalances.reading import read_plan
from kybernate.api.requests import to_evict, to_wake
from kybernate.core.plans.steps import Kind
from kybernate.core.requests.asked import Decision
from kybernate.core.requests.evictions import is_step
from kybernate.core.requests.rebalance import (
    Act,
    NoPlan,
    Observed,
    Plan,
    current,
    decide,
    is_made_by,
    made_name,
    orphans,
    wake_name,
)
from kybernate.errors import ConfigError, KybernateError, NotFoundError, RefusedError
from kybernate.lib.rounds import rounds_blocking

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from controller.base.cluster import Cluster
    from controller.base.known import PodsSeen, Requests
    from controller.base.queue import Queue
    from kybernate.core.requests import checkpoint, rebalance
    from kybernate.core.requests.rebalance import Status, Step
    from kybernate.runtime.lead import Fence

log = logging.getLogger(__name__)

_PLAN_S = 60.0
"""Seconds that the extender gets for a plan."""
_ALL = "*"


class Planner:
    """Asks the extender at `url`, with the certificate in the folder `tls`."""

    def __init__(self, url: str, tls: Path) -> None:
        self._url = url
        self._tls = tls

    def plan(self, request: rebalance.Request) -> Plan | NoPlan:
        """What is to be done as things are now."""
        within = _ALL if request.namespace == keys.NAMESPACE else request.namespace
        try:
            found = extender.ask(self._url, self._tls, _question(request, within), _PLAN_S)
            plan = read_plan(found)
        except (RefusedError, NotFoundError) as error:
            return NoPlan(str(error))
        except (ConfigError, KybernateError, ValueError) as error:
            return NoPlan(str(error), for_now=True)
        if not found.get("room"):
            return NoPlan(plan.told)
        strangers = (one for one in plan.steps if within not in (one.namespace, _ALL))
        if any(one.kind is not Kind.PLACE for one in strangers):
            return NoPlan(f"pods of other namespaces than {within} would have to move")
        return plan


def _question(request: rebalance.Request, within: str) -> str:
    query: dict[str, str | float] = {"moves": request.budget.moves, "within": within}
    if request.budget.seconds:
        query["seconds"] = request.budget.seconds
    namespace, pod = within, _ALL
    if request.empty:
        query["empty"] = request.empty
    elif request.pod:
        namespace, pod = request.namespace, request.pod
    if request.model:
        namespace, query = request.namespace, query | {"model": request.model}
    if request.target is not None:
        query |= {"node": request.target.node, "group": request.target.group}
    return f"/defrag/{quote(namespace, safe='*')}/{quote(pod, safe='*')}?{urlencode(query)}"


class RebalanceCarrier:
    """Implements `worker.Carrier` for RebalanceRequests; what needs a plan goes into `plans`.
    `made` are all CheckpointRequests, `pods` all with seats; `standing` as for `decide`;
    `withdrawn`: why who asked for a move wants it no more, in a sentence, empty if that is not so.
    """

    kind = "rebalance"

    def __init__(  # noqa: PLR0913, PLR0917 - what a look needs, each of one owner
        self,
        requests: Requests[rebalance.Request],
        made: Requests[checkpoint.Request],
        pods: PodsSeen,
        plans: Queue,
        cluster: Cluster,
        fence: Fence,
        wall: Callable[[], float] = time.time,
        *,
        standing: int,
        withdrawn: Callable[[rebalance.Request], str] = lambda _: "",
    ) -> None:
        self._requests = requests
        self._cluster = cluster
        self._fence = fence
        self._wall = wall
        self._made = made
        self._withdrawn = withdrawn
        self._pods = pods
        self._plans = plans
        self._standing = standing

    def decided(self, request: rebalance.Request) -> Decision[Status, Act]:
        """See `worker.Carrier`."""
        step, seen = current(request), self.observed(request)
        decision = decide(seen, self._wall(), self._standing)
        if decision.act is Act.PLAN:
            self._plans.add((request.namespace, request.name))
        elif step is not None and decision.act is not None:
            held = self._carry_out(decision.act, request, step)
            if held:
                decision = decide(replace(seen, held=held), self._wall(), self._standing)
        return decision

    def observed(self, request: rebalance.Request) -> Observed:
        """The request, and what was seen for it."""
        made = self._of(request, current(request))
        return Observed(
            request,
            pods=self._pods.all(),
            checkpoint=made,
            ahead=0 if request.policy else self._ahead(request),
            withdrawn=self._withdrawn(request),
        )

    def _ahead(self, request: rebalance.Request) -> int:
        """What policies ask for needs no approval: it waits for no person, nor holds one up."""
        others = (one for one in self._requests.of(request.namespace) if not one.policy)
        older = (one for one in others if _age(one) < _age(request))
        return sum(not (one.ended or one.status.began_at) for one in older)

    def call_off(self, request: rebalance.Request) -> None:
        """No more steps begin; the one under way is taken back."""
        log.info("rebalance %s/%s is gone", request.namespace, request.name)
        self.tidy()

    def counted(self, request: rebalance.Request) -> str:
        """See `worker.Carrier`."""
        if request.policy:
            return "Balance"
        return "Move" if request.target else "EmptyNode" if request.empty else "Defragment"

    def keep_tidy(self, every: float, stopping: threading.Event) -> None:
        """See to what requests have left that are gone, every so many seconds."""
        rounds_blocking(partial(self._tidy_if_leading), stopping, every, "rebalances")

    def tidy(self) -> None:
        """Take back what requests have left that are gone. Raises KybernateError."""
        mine = [one for one in self._made.all() if is_step(one)]
        for one, act in orphans(mine, self._requests.wanted(), self._pods.all()):
            self._fence.check()
            log.info("pod %s/%s: %s is taken back", one.namespace, one.pod, one.name)
            if act is Act.REMOVE:
                self._cluster.remove(one)
            else:
                self._cluster.ask(one.namespace, to_wake(wake_name(one.name), one.pod))

    def _tidy_if_leading(self) -> None:
        if self._fence.closed() is None:
            self.tidy()

    def _of(self, request: rebalance.Request, step: Step | None) -> checkpoint.Request | None:
        if step is None:
            return None
        seen = self._made.get((step.namespace, made_name(request, step)))
        return seen.request if seen is not None and is_step(seen.request) else None

    def _carry_out(self, act: Act, request: rebalance.Request, step: Step) -> str:
        """Why it could not be done, in a sentence; empty if it is."""
        name = made_name(request, step)
        self._fence.check()
        if act is Act.EVICT:
            return self._cluster.evict(step.namespace, step.pod, step.uid)
        if act is Act.WAKE:
            self._cluster.ask(step.namespace, to_wake(wake_name(name), step.pod))
            return ""
        within = request.save_s(self._wall())
        try:
            made = self._cluster.ask(
                step.namespace, to_evict(name, step.pod, round(within), step.target)
            )
        except RefusedError as error:
            return str(error)
        known = self._made.get((step.namespace, name))
        if not made and known is not None and not is_step(known.request):
            return f"somebody else has made CheckpointRequest {name}"
        return ""


class PlanCarrier:
    """Implements `worker.Carrier` for RebalanceRequests that need a plan; all else of them is for
    `carrier`."""

    kind = "plan"

    def __init__(
        self,
        carrier: RebalanceCarrier,
        planner: Planner,
        wall: Callable[[], float] = time.time,
        *,
        standing: int,
    ) -> None:
        self._carrier = carrier
        self._planner = planner
        self._wall = wall
        self._standing = standing

    def decided(self, request: rebalance.Request) -> Decision[Status, Act]:
        """See `worker.Carrier`."""
        seen = self._carrier.observed(request)
        if decide(seen, self._wall(), self._standing).act is not Act.PLAN:
            return Decision(request.status, again=0.0)
        found = self._planner.plan(request)
        return decide(replace(seen, found=found), self._wall(), self._standing)

    def call_off(self, request: rebalance.Request) -> None:
        """See `worker.Carrier`."""
        self._carrier.call_off(request)

    def counted(self, request: rebalance.Request) -> str:
        """See `worker.Carrier`."""
        return self._carrier.counted(request)


def have_looked_at(
    made: checkpoint.Request, requests: Requests[rebalance.Request], queue: Queue
) -> None:
    """Put the request whose step the CheckpointRequest is into its `queue`: it has changed."""
    if is_step(made):
        for one in requests.all():
            if is_made_by(made, one.uid):
                queue.add((one.namespace, one.name))


def _age(request: rebalance.Request) -> tuple[float, str]:
    return request.created_at, request.uid
