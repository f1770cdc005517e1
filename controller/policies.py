"""CheckpointPolicies: whom each governs, as its status says, and the snapshots that it has made.

Agents go by policies without this: what is here is for people, and for what is made of policies.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from controller.base.lasting import Objects, write_lasting
from controller.checkpoints.agents import forget
from kybernate import keys
from kybernate.api import pods
from kybernate.api.lenient import text
from kybernate.api.policies import dump_policy_status, read_policy
from kybernate.core.policy.balance import Pod
from kybernate.core.policy.effective import Policy, PutAway, governing, in_order
from kybernate.core.policy.findings import (
    Findings,
    Labelled,
    PolicyReason,
    findings,
    governed_by,
)
from kybernate.core.policy.snapshots import Governed, Made, Plan, plan
from kybernate.core.requests.checkpoint import Mode
from kybernate.core.requests.evictions import is_for_others
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.turns import STUCK
from kybernate.errors import RefusedError
from kybernate.lib.keyed import Keyed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from controller.balances import Balances
    from controller.base.cluster import Cluster
    from controller.base.known import Requests
    from controller.base.lasting import Lasting
    from controller.base.queue import Key, Queue
    from controller.checkpoints.agents import Agents
    from kybernate.core.requests import rebalance
    from kybernate.core.requests.checkpoint import Request
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

log = logging.getLogger(__name__)

MANAGED = {"labelSelector": f"{keys.MANAGED_LABEL}=true"}
_LOOK_S = 30.0
"""Seconds between two looks at how busy the GPUs of a policy's pods are."""
_AGAIN_S = 60.0
"""Seconds until what an agent could not do is asked of it again."""
_WAITS = STUCK | {Reason.AGENT_UNREACHABLE}


class Owner(NamedTuple):
    """What makes another pod in a pod's place; empty if nothing does."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Seated(NamedTuple):
    """A pod with a seat. `since`: when it began to run, in seconds since 1970, infinite if it does
    not; `notes`: annotations; `leaving`: it is being deleted; `node`: where it is bound."""

    labelled: Labelled
    since: float
    notes: Mapping[str, str] = MappingProxyType({})
    owner: Owner = Owner()
    leaving: bool = False
    node: str = ""


class Policies(Objects[Policy]):
    """CheckpointPolicies, and pods with seats. `told` is told of namespaces of which something may
    have changed."""

    settle_s = 0.5

    def __init__(
        self, due: Callable[[Key, float], None], told: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(keys.CHECKPOINT_POLICIES_PATH, read_policy, due)
        self._told = told
        self._pods: Keyed[Seated] = Keyed()
        self._counting: dict[str, tuple[Policy, ...]] = {}

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch of policies: it may change whom others govern."""
        before, now = self.saw(kind, item)
        self._sort(str(item["metadata"]["namespace"]))
        if before is None or now is None or now.generation != before.generation:
            self.touch(str(item["metadata"]["namespace"]))

    def on_pod(self, kind: str, item: Json) -> None:
        """Take in an event of the watch of pods."""
        pod = pods.read_pod(item)
        uid, namespace = str(pod.ref.uid), pod.namespace
        found = None if kind == "DELETED" or not pod.asks or pod.over else _seated(pod)
        if self._pods.put(namespace, uid, found) != found:
            self.touch(namespace)

    def touch(self, namespace: str = "") -> None:
        """Have all policies of a namespace looked at."""
        super().touch(namespace)
        self._told(namespace)

    def counting(self, namespace: str) -> tuple[Policy, ...]:
        """Those of a namespace that count, in their order."""
        return self._counting.get(namespace, ())

    def limiting(self, request: Request) -> Policy | None:
        """The policy whose limits count for a request's pod. None where no policy of its namespace
        has any, since there may be thousands of requests, and for evictions that the controller has
        asked for: a tenant's limits slow no preemption, and no node's emptying."""
        pod = self._pods.get(request.namespace, request.status.pod_uid)
        every = self.counting(request.namespace)
        for_others = request.mode is Mode.EVICT and is_for_others(request)
        if pod is None or for_others or all(one.limits == PutAway() for one in every):
            return None
        return governing(every, pod.labelled.labels)

    def moves(self, request: rebalance.Request) -> str:
        """Why a move that a policy has asked for is not its wish any more, in a sentence; empty if
        it is, and for what no policy has asked for."""
        if not request.policy:
            return ""
        every = self.counting(request.namespace)
        policy = next((one for one in every if one.uid == request.policy), None)
        if policy is None or policy.rebalance is None:
            return "the CheckpointPolicy that asked for it is gone, or has pods moved no more"
        pod = self._named(request.namespace, request.pod)
        if pod is not None and governing(every, pod.labelled.labels) is not policy:
            return f"CheckpointPolicy {policy.name} governs pod {request.pod} no more"
        return ""

    def pods(self, namespace: str) -> tuple[Seated, ...]:
        """A namespace's pods with seats."""
        return self._pods.of(namespace)

    def all_pods(self) -> tuple[Seated, ...]:
        """The pods with seats of all namespaces."""
        return self._pods.all()

    def _sort(self, namespace: str) -> None:
        """Of policies that changed, for all who ask: there may be thousands of evictions."""
        every = [one.says for one in self.of(namespace) if one.says is not None]
        self._counting[namespace] = in_order(every)
        if not every:
            del self._counting[namespace]

    def _named(self, namespace: str, name: str) -> Seated | None:
        there = self.pods(namespace)
        return next((one for one in there if one.labelled.name == name and not one.leaving), None)

    def names(self) -> dict[str, str]:
        """The names of all policies, by UID."""
        return {one.says.uid: one.says.name for one in self.all() if one.says is not None}


class PolicyWorker:
    """Writes policies' statuses, and has their snapshots made and dropped. `wall` gives seconds
    since 1970."""

    kind = "policy"

    def __init__(  # noqa: PLR0913, PLR0917 - each of them is another part
        self,
        queue: Queue,
        policies: Policies,
        requests: Requests[Request],
        balances: Balances,
        cluster: Cluster,
        agents: Agents,
        fence: Fence,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._fence = fence
        self._policies = policies
        self._requests = requests
        self._balances = balances
        self._cluster = cluster
        self._agents = agents
        self._wall = wall

    def look(self, key: Key) -> None:
        """Do what the policy of this name needs now. Raises KybernateError."""
        seen = self._policies.get(key)
        if seen is None:
            return
        if seen.says is None:
            self._write(seen, Findings(PolicyReason.INVALID, seen.wrong))
            return
        namespace = key[0]
        counting, there = self._policies.counting(namespace), self._policies.pods(namespace)
        # It may have been changed since it was taken above: by what counts all of this is decided.
        counts = next((one for one in counting if one.uid == seen.says.uid), None)
        policy = counts or seen.says
        mine, matched = governed_by(policy, counting, [one.labelled for one in there])
        every = self._requests.of(namespace)
        asked = [one for one in every if one.policy == policy.uid]
        made, again, problem = [_made(one) for one in asked], math.inf, ""
        if counts is not None and policy.snapshots is not None:
            since = {one.labelled.uid: one.since for one in there}
            targets = [Governed(pod.uid, pod.name, since[pod.uid]) for pod in mine]
            taken = [one.name for one in every]
            wanted = plan(policy.snapshots, policy.uid, targets, made, self._wall(), taken)
            again, problem = self._carry_out(policy, wanted, {one.uid: one for one in asked})
        found = findings(policy, counting, len(mine), matched, made, problem)
        if counts is not None and policy.rebalance is not None:
            uids = {one.uid for one in mine}
            movable = [
                Pod(one.labelled.uid, f"{policy.namespace}/{one.labelled.name}", one.node)
                for one in there
                if one.labelled.uid in uids and _moves(one)
            ]
            verdict = self._balances.look(policy, policy.rebalance, movable)
            again = min(again, verdict.again, max(policy.rebalance.every, 1.0), _LOOK_S)
            found = replace(found, balanced=verdict)
        self._queue.add(key, again)
        self._write(seen, found)

    def _carry_out(
        self, policy: Policy, wanted: Plan, asked: dict[str, Request]
    ) -> tuple[float, str]:
        """In how many seconds to look again, and what could not be done, in a sentence."""
        again, problem = wanted.again, ""
        # First what makes room: of requests, too, there may be so many only.
        for one in (*wanted.drop, *wanted.remove):
            self._fence.check()
            told = f"CheckpointPolicy {policy.namespace}/{policy.name} keeps it no longer"
            if one.sealed and (why := forget(self._agents, asked[one.uid], told)):
                problem = f"snapshot {one.name} stays: {why}"
                continue
            self._cluster.remove(asked[one.uid])
        for order in wanted.make:
            self._fence.check()
            try:
                tier = policy.snapshots.tier if policy.snapshots else None
                self._cluster.make(policy, order, tier)
            except RefusedError as error:
                problem = f"snapshot {order.name} can't be asked for: {error}"
                continue
            log.info("policy %s/%s: snapshot %s", policy.namespace, policy.name, order.name)
        if not problem:
            return again, ""
        log.warning("policy %s/%s: %s", policy.namespace, policy.name, problem)
        return min(again, _AGAIN_S), problem

    def _write(self, seen: Lasting[Policy], found: Findings) -> None:
        status = dump_policy_status(found, seen.status, seen.generation, self._wall())
        write_lasting(self._cluster, seen, status, self._fence)


def _seated(pod: pods.Pod) -> Seated:
    since = pod.runs_since() if not pod.leaving else None
    owner = pod.owner or {}
    return Seated(
        Labelled(pod.ref.uid, pod.ref.name, pod.labels),
        math.inf if since is None else since,
        pod.notes,
        Owner(text(owner.get("kind")), text(owner.get("name")), text(owner.get("uid"))),
        pod.leaving,
        pod.node or "",
    )


def _moves(one: Seated) -> bool:
    """Whether a pod is made in its place, so that it may be evicted."""
    return bool(one.owner.uid) and bool(one.node) and not one.leaving and one.since < math.inf


def _made(request: Request) -> Made:
    status = request.status
    return Made(
        request.uid,
        request.name,
        request.pod,
        request.created_at,
        status.ended_at,
        status.reason is Reason.SEALED,
        status.node,
        status.operation,
        not status.began_at and status.reason in _WAITS,
    )
