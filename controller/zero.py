"""Deployments that are scaled to zero once all their pods rest in the object store, and back.

What is to be done is decided in `kybernate.core.requests.zero`; whom it may be done to, here.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller import metrics
from kybernate import keys
from kybernate.api.requests import DEPLOYMENT, last_step, taken_back
from kybernate.api.turns import read_idle
from kybernate.core.policy.effective import Source, effective
from kybernate.core.requests.zero import Act, Replica, Rest, is_last_step, is_put, plan
from kybernate.errors import ConfigError, RefusedError
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controller.base.cluster import Cluster, Replicas
    from controller.base.known import Nodes, Requests
    from controller.base.queue import Key, Queue
    from controller.policies import Policies, Seated
    from kybernate.core.policy.effective import Policy
    from kybernate.core.requests.checkpoint import Request
    from kybernate.core.requests.zero import Step
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

log = logging.getLogger(__name__)

SETTLE_S = 0.2
"""Seconds in which changes of a namespace are taken together."""
_AGAIN_S = 60.0
"""Seconds until what could not be done is looked at again."""
_QUEUED = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed", "kueue.x-k8s.io/pod-group-name")
_REPLICA_SET = "ReplicaSet"


class ZeroWorker:
    """Looks at namespaces. `wall` gives seconds since 1970."""

    kind = "namespace"

    def __init__(  # noqa: PLR0913, PLR0917 - each of them is another part
        self,
        queue: Queue,
        policies: Policies,
        requests: Requests[Request],
        nodes: Nodes,
        cluster: Cluster,
        fence: Fence,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._fence = fence
        self._policies = policies
        self._requests = requests
        self._nodes = nodes
        self._cluster = cluster
        self._wall = wall
        self._told: dict[tuple[str, str], str] = {}

    def look(self, key: Key) -> None:
        """Do what is needed in the namespace now. Raises KybernateError."""
        namespace, now = key[0], self._wall()
        counting, there = self._policies.counting(namespace), self._policies.pods(namespace)
        resting = self._nodes.resting()
        replicas = [
            # What another node says of it counts for nothing.
            _replica(one, counting, resting.get((one.node, one.labelled.uid), math.inf), now)
            for one in there
            if one.owner.kind == _REPLICA_SET
        ]
        owners = {one.owner for one in replicas}
        for told in [one for one in self._told if one[0] == namespace and one[1] not in owners]:
            del self._told[told]
        asked = [one for one in self._requests.of(namespace) if is_last_step(one)]
        if not asked and all(math.isinf(one.idle) for one in replicas):
            return
        queued = {
            one.labelled.uid for one in there if any(q in one.labelled.labels for q in _QUEUED)
        }
        found = plan(replicas, asked, now)
        again = found.again
        for step in found.steps:
            self._fence.check()
            try:
                why = self._do(namespace, step, queued)
            except RefusedError as error:
                # Such as by a quota: other Deployments are not to wait for it.
                why = str(error)
            if why:
                self._hindered(namespace, step, why)
                again = min(again, _AGAIN_S)
        self._queue.add(key, again)

    def _do(self, namespace: str, step: Step, queued: set[str]) -> str:
        """Carry it out; why it can't be, in a sentence."""
        match step.act:
            case Act.ASK:
                return self._ask(namespace, step.replicas, queued)
            case Act.DOWN:
                return self._down(namespace, step)
            case Act.UP:
                self._up(namespace, step.requests)
            case Act.NOTE:
                self._note(namespace, step.requests)
            case Act.BACK:
                self._back(namespace, step.requests)
            case Act.REMOVE:
                for one in step.requests:
                    self._cluster.remove(one)
        return ""

    def _ask(self, namespace: str, new: Sequence[Replica], queued: set[str]) -> str:
        first = new[0]
        found = self._cluster.deployment(namespace, first.owner_name)
        if found is None:
            return f"no Deployment has made ReplicaSet {first.owner_name}"
        name, uid = found
        if any(one.uid in queued for one in new):
            return "Kueue says when its pods run"
        if not first.model:
            return f"its pods name no model ({keys.MODEL}), so no request would scale it up again"
        there = self._policies.pods(namespace)
        rest = sum(one.owner.uid == first.owner and not one.leaving for one in there)
        if why := self._other(namespace, name, rest, self._cluster.replicas(namespace, name)):
            return why
        for one in new:
            self._fence.check()
            self._cluster.ask(namespace, last_step(Rest(one.name, one.uid, one.model, name, uid)))
        return ""

    def _other(self, namespace: str, name: str, rest: int, seen: Replicas | None) -> str:
        """Who else scales the Deployment, of which so many pods rest, in a sentence."""
        if seen is None:
            return f"there is no Deployment {name}"
        if seen.number not in (0, rest):
            return f"Deployment {name} is to have {seen.number} pods, and {rest} rest"
        if scaler := self._cluster.scaler(namespace, name):
            return f"HorizontalPodAutoscaler {scaler} scales Deployment {name}"
        return ""

    def _down(self, namespace: str, step: Step) -> str:
        name = step.requests[0].deployment
        seen = self._cluster.replicas(namespace, name)
        why = self._other(namespace, name, len(step.replicas), seen)
        if why:
            self._back(namespace, step.requests)
        elif seen is not None and seen.number:
            self._cluster.scale(namespace, name, seen, 0)
            metrics.SCALES.labels("zero").inc()
            self._told.pop((namespace, step.replicas[0].owner), None)
            said = f"its {seen.number} pods rested in the object store; a request scales it up"
            self._say(namespace, name, "ScaledToZero", said)
        return why

    def _up(self, namespace: str, sleeping: Sequence[Request]) -> None:
        name = sleeping[0].deployment
        seen = self._cluster.replicas(namespace, name)
        if seen is not None and not seen.number:
            self._cluster.scale(namespace, name, seen, len(sleeping))
            metrics.SCALES.labels("back").inc()
            self._say(namespace, name, "ScaledUp", "a request for its model came")
        self._note(namespace, sleeping)

    def _note(self, namespace: str, scaled_up: Sequence[Request]) -> None:
        for one in scaled_up:
            self._fence.check()
            known = self._requests.get((namespace, one.name))
            if known is not None:
                now = self._wall()
                status = replace(known.request.status, scaled_up_at=now)
                self._requests.wrote(known, self._cluster.write(known, status, now))

    def _back(self, namespace: str, requests: Sequence[Request]) -> None:
        """They stay awake, or are woken: not all of them rest, or somebody else scales them."""
        for one in requests:
            self._fence.check()
            if is_put(one):
                self._cluster.ask(namespace, taken_back(one))
            self._cluster.remove(one)

    def _hindered(self, namespace: str, step: Step, why: str) -> None:
        if not step.replicas:
            where = f"{namespace}/{step.requests[0].deployment}"
            log.warning("deployment %s: %s came to nothing: %s", where, step.act, why)
            return
        replica = step.replicas[0]
        if self._told.get((namespace, replica.owner)) == why:
            return
        self._told[namespace, replica.owner] = why
        log.warning("%s/%s is not scaled to zero: %s", namespace, replica.owner_name, why)
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": replica.name}
        about["uid"] = replica.uid
        self._cluster.say(about, "NotScaledToZero", why, warning=True)

    def _say(self, namespace: str, name: str, reason: str, message: str) -> None:
        log.info("deployment %s/%s: %s: %s", namespace, name, reason, message)
        about = {"apiVersion": "apps/v1", "kind": DEPLOYMENT, "namespace": namespace, "name": name}
        self._cluster.say(about, reason, message, warning=False)


def _replica(one: Seated, counting: Sequence[Policy], since: float, now: float) -> Replica:
    pod, owner = one.labelled, one.owner
    idle = _idle(one, counting, now)
    model = one.notes.get(keys.MODEL, "")
    return Replica(pod.uid, pod.name, owner.uid, owner.name, model, since, idle, one.leaving)


def _idle(one: Seated, counting: Sequence[Policy], now: float) -> float:
    """Seconds of rest in the object store after which its policy wants its pod gone."""
    found = effective(one.labelled.labels, one.notes, counting, now).values.get(keys.IDLE)
    if found is None or found.source is Source.ANNOTATION:
        return math.inf
    try:
        return read_idle({keys.IDLE: found.text}).get(Tier.OBJECT.value, math.inf)
    except ConfigError:
        return math.inf
