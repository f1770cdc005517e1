"""What the controller reads and writes in the API server, beside its watches."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from controller.kinds import CHECKPOINT, kind_of
from kybernate import keys
from kybernate.api import events, pods
from kybernate.api.requests import regular
from kybernate.core.rate import Bucket
from kybernate.core.requests.checkpoint import PodFacts
from kybernate.core.requests.reasons import Standing
from kybernate.errors import ConflictError, KybernateError, NotFoundError, RetryableError

if TYPE_CHECKING:
    from controller.kinds import Ask, Why
    from controller.known import Seen
    from kybernate.adapters.k8s import Api
    from kybernate.core.policy.effective import Policy
    from kybernate.core.policy.snapshots import Order
    from kybernate.types import Tier

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_PER_SECOND, _BURST = 5.0, 100.0
"""Events of all requests together; those beyond are left out, conditions say the same."""


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
        return PodFacts(pod.ref.uid, node, seat=seat, ended=pod.over, owner=pod.succession)

    def held_back(self, namespace: str, name: str) -> str:
        """Why the pod may not be evicted now, as a PodDisruptionBudget has it, in a sentence; empty
        if it may, or is gone. Nothing is evicted: it is a dry run."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
        }
        path = f"{pods.path(namespace, name)}/eviction"
        try:
            self._api.post(path, body, {"dryRun": "All"}, timeout=self._timeout)
        except NotFoundError:
            return ""
        except RetryableError as error:
            return str(error)
        return ""

    def write(self, seen: Seen[Any], status: Any, now: float) -> Json:
        """Write a request's status, and return the request as it is then. Raises ConflictError if
        it was changed since it was seen."""
        told = kind_of(seen.request).dump(status, seen.status, seen.generation, now)
        body = {"metadata": {"resourceVersion": seen.version}, "status": told}
        return self._api.patch(f"{_path(seen.request)}/status", body, timeout=self._timeout)

    def remove(self, request: Ask) -> None:
        """Delete a request whose time is over, and no other one of its name."""
        body = {"preconditions": {"uid": request.uid}}
        try:
            self._api.delete(_path(request), body, timeout=self._timeout)
        except NotFoundError:
            return

    def make(self, policy: Policy, order: Order, tier: Tier | None) -> None:
        """Create the request, unless there is one of its name: that one is it."""
        path, body = CHECKPOINT.path(policy.namespace), regular(policy, order, tier)
        with contextlib.suppress(ConflictError):
            self._api.post(path, body, timeout=self._timeout)

    def write_policy(self, path: str, version: str, status: Json) -> None:
        """Write a policy's status. Raises ConflictError if it was changed since it was seen."""
        body = {"metadata": {"resourceVersion": version}, "status": status}
        self._api.patch(f"{path}/status", body, timeout=self._timeout)

    def tell(self, request: Ask, reason: Why, message: str) -> None:
        """An event on the request. Never raises: the condition says the same."""
        with self._lock:
            if self._bucket.take(time.monotonic()):
                return
        about = {
            "apiVersion": keys.API_VERSION,
            "kind": kind_of(request).name,
            "namespace": request.namespace,
            "name": request.name,
            "uid": request.uid,
        }
        warning, source = reason.standing is Standing.TERMINAL, {"component": "kyb-controller"}
        body = events.event(
            *(about, reason.value, message), warning=warning, source=source, wall=time.time()
        )
        try:
            self._api.post(events.path(request.namespace), body, timeout=self._timeout)
        except KybernateError as error:
            log.warning("an event about %s/%s: %s", request.namespace, request.name, error)


def _path(request: Ask) -> str:
    return kind_of(request).path(request.namespace, request.name)
