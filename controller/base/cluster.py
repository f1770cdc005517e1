"""What the controller reads and writes in the API server, beside its watches."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from controller.base.kinds import CHECKPOINT, kind_of
from kybernate import keys
from kybernate.api import events, pods
from kybernate.api.lenient import mapping, mappings, text, whole
from kybernate.api.requests import DEPLOYMENT, regular
from kybernate.api.watched.nodefacts import SeatFacts, read_seat
from kybernate.core.rate import Bucket
from kybernate.core.reasons import Standing
from kybernate.core.requests.checkpoint import PodFacts
from kybernate.errors import (
    ConflictError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)

if TYPE_CHECKING:
    from controller.base.known import Seen
    from kybernate.adapters.k8s import Api
    from kybernate.core.policy.effective import Policy
    from kybernate.core.policy.snapshots import Order
    from kybernate.core.reasons import Reasoned
    from kybernate.core.requests.asked import Asked
    from kybernate.types import Tier

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_APPS = "/apis/apps/v1"
_PER_SECOND, _BURST = 5.0, 100.0
"""Events of all requests together; those beyond are left out, conditions say the same."""


class Replicas(NamedTuple):
    """How many pods a Deployment is to have, and as of which version of it."""

    number: int
    version: str


class Cluster:
    """Each call takes at most `timeout` seconds, and raises KybernateError."""

    def __init__(self, api: Api, timeout: float) -> None:
        self._api = api
        self._timeout = timeout
        self._bucket = Bucket(_PER_SECOND, _BURST)
        self._lock = threading.Lock()

    def pod(self, namespace: str, name: str) -> PodFacts | None:
        """The pod of this name as it is now; None if there is none."""
        try:
            pod = pods.read_pod(self._api.get(pods.path(namespace, name), timeout=self._timeout))
        except NotFoundError:
            return None
        node, seat = pod.node or "", bool(pod.asks)
        return PodFacts(
            *(pod.ref.uid, node),
            seat=seat,
            ended=pod.over,
            owner=pod.succession,
            leaving=pod.leaving,
            limit=pod.ask.most_memory if pod.ask else 0,
        )

    def whole_pod(self, namespace: str, name: str) -> Json | None:
        """The pod of this name, all that the API server has of it; None if there is none."""
        try:
            return self._api.get(pods.path(namespace, name), timeout=self._timeout)
        except NotFoundError:
            return None

    def make_pod(self, pod: Json) -> Json:
        """Create a pod. Raises ConflictError if there is one of its name."""
        path = pods.path(pod["metadata"]["namespace"], "")[:-1]
        return self._api.post(path, pod, timeout=self._timeout)

    def seat(self, node: str, uid: str) -> SeatFacts:
        """What the node's GPUNode tells of the seat of the pod with this UID."""
        try:
            found = self._api.get(f"{keys.GPU_NODES_PATH}/{node}", timeout=self._timeout)
        except NotFoundError:
            return SeatFacts()
        return read_seat(found, uid)

    def is_off(self, node: str) -> str:
        """How it is known that nothing runs on the node any more, in a sentence; empty if it may:
        an administrator has taken its object away, or has tainted it so."""
        try:
            found = self._api.get(f"/api/v1/nodes/{node}", timeout=self._timeout)
        except NotFoundError:
            return f"node {node} is gone"
        return pods.why_off(found)

    def is_away(self, node: str) -> str:
        """See `pods.why_away`; a node that isn't there is away."""
        try:
            found = self._api.get(f"/api/v1/nodes/{node}", timeout=self._timeout)
        except NotFoundError:
            return f"node {node} is gone"
        return pods.why_away(found)

    def held_back(self, namespace: str, name: str) -> str:
        """Why the pod may not be evicted now, as a PodDisruptionBudget has it, in a sentence; empty
        if it may, or is gone. Nothing is evicted: it is a dry run."""
        return self._evicted(namespace, name, {}, {"dryRun": "All"})

    def evict(self, namespace: str, name: str, uid: str) -> str:
        """Evict the pod of this UID; why that can't be now, in a sentence, empty if it goes, or is
        gone."""
        options = {"deleteOptions": {"preconditions": {"uid": uid}}}
        try:
            return self._evicted(namespace, name, options, {})
        except ConflictError:
            # Another pod has its name.
            return ""
        except RefusedError as error:
            return str(error)

    def _evicted(self, namespace: str, name: str, options: Json, query: dict[str, str]) -> str:
        meta = {"namespace": namespace, "name": name}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, **options}
        path = f"{pods.path(namespace, name)}/eviction"
        try:
            self._api.post(path, body, query, timeout=self._timeout)
        except NotFoundError:
            return ""
        except RetryableError as error:
            return str(error)
        return ""

    def ask(self, namespace: str, body: Json) -> bool:
        """Create a CheckpointRequest, unless there is one of its name; whether it was made."""
        return self.create(CHECKPOINT.path(namespace), body)

    def write(self, seen: Seen[Any], status: Any, now: float) -> Json:
        """Write a request's status, and return the request as it is then. Raises ConflictError if
        it was changed since it was seen."""
        told = kind_of(seen.request).dump(status, seen.status, seen.generation, now)
        body = {"metadata": {"resourceVersion": seen.version}, "status": told}
        return self._api.patch(f"{_path(seen.request)}/status", body, timeout=self._timeout)

    def remove(self, request: Asked) -> None:
        """Delete a request whose time is over, and no other one of its name."""
        body = {"preconditions": {"uid": request.uid}}
        try:
            self._api.delete(_path(request), body, timeout=self._timeout)
        except NotFoundError:
            return

    def make(self, policy: Policy, order: Order, tier: Tier | None) -> None:
        """Create the request, unless there is one of its name: that one is it."""
        self.ask(policy.namespace, regular(policy, order, tier))

    def deployment(self, namespace: str, replica_set: str) -> tuple[str, str] | None:
        """Name and UID of the Deployment that has made the ReplicaSet; None if none has."""
        path = f"{_APPS}/namespaces/{namespace}/replicasets/{replica_set}"
        try:
            found = self._api.get(path, timeout=self._timeout)
        except NotFoundError:
            return None
        owners = mappings(mapping(found.get("metadata")).get("ownerReferences"))
        mine = (one for one in owners if one.get("controller") and one.get("kind") == DEPLOYMENT)
        return next(((text(one.get("name")), text(one.get("uid"))) for one in mine), None)

    def replicas(self, namespace: str, deployment: str) -> Replicas | None:
        """How many pods the Deployment is to have; None if there is none."""
        try:
            found = self._api.get(_scale(namespace, deployment), timeout=self._timeout)
        except NotFoundError:
            return None
        number = whole(mapping(found.get("spec")).get("replicas"))
        return Replicas(number, str(found["metadata"]["resourceVersion"]))

    def scale(self, namespace: str, deployment: str, seen: Replicas, number: int) -> None:
        """Have it so many pods. Raises ConflictError if it was changed since it was seen."""
        body = {"metadata": {"resourceVersion": seen.version}, "spec": {"replicas": number}}
        self._api.patch(_scale(namespace, deployment), body, timeout=self._timeout)

    def scaler(self, namespace: str, deployment: str) -> str:
        """The name of the HorizontalPodAutoscaler that scales it; empty if none does."""
        path = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
        for item in self._api.get(path, timeout=self._timeout).get("items") or ():
            target = mapping(mapping(item.get("spec")).get("scaleTargetRef"))
            if (target.get("kind"), target.get("name")) == (DEPLOYMENT, deployment):
                return text(mapping(item.get("metadata")).get("name"))
        return ""

    def create(self, path: str, body: Json) -> bool:
        """Create an object there, unless there is one of its name; whether it was made."""
        try:
            self._api.post(path, body, timeout=self._timeout)
        except ConflictError:
            return False
        return True

    def end_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete this pod, and no other one of its name."""
        with contextlib.suppress(NotFoundError, ConflictError):
            body = {"preconditions": {"uid": uid}}
            self._api.delete(pods.path(namespace, name), body, timeout=self._timeout)

    def write_status(self, path: str, version: str, status: Json) -> Json:
        """Write the status of a policy or a template, and return the object as it is then. Raises
        ConflictError if it was changed since it was seen."""
        body = {"metadata": {"resourceVersion": version}, "status": status}
        return self._api.patch(f"{path}/status", body, timeout=self._timeout)

    def tell(self, request: Asked, reason: Reasoned, message: str) -> None:
        """An event on the request. Never raises: the condition says the same."""
        named = request.namespace, request.name, request.uid
        about = events.of_object(keys.API_VERSION, kind_of(request).name, *named)
        warning = reason.standing is Standing.TERMINAL
        self.say(about, reason.value, message, warning=warning)

    def say(self, about: Json, reason: str, message: str, *, warning: bool) -> None:
        """An event on an object. Never raises."""
        with self._lock:
            if self._bucket.take(time.monotonic()):
                return
        source = {"component": "kyb-controller"}
        body = events.event(
            *(about, reason, message), warning=warning, source=source, wall=time.time()
        )
        try:
            self._api.post(events.path(about["namespace"]), body, timeout=self._timeout)
        except KybernateError as error:
            log.warning("an event about %s/%s: %s", about["namespace"], about["name"], error)


def _scale(namespace: str, deployment: str) -> str:
    return f"{_APPS}/namespaces/{namespace}/deployments/{deployment}/scale"


def _path(request: Asked) -> str:
    return kind_of(request).path(request.namespace, request.name)
