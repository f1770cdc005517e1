"""Pods that are lost: with their node, or failed by their kubelet. What makes another pod in the
place of one has that continue from the newest artifact, by a CheckpointRequest that is made here.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.api import pods
from kybernate.api.requests import to_evict
from kybernate.core.requests.checkpoint import Mode, Outcome, PodFacts, Remnant
from kybernate.core.requests.evictions import LOST, lost_pod
from kybernate.core.requests.reasons import Reason
from kybernate.errors import KybernateError, NotFoundError, RefusedError
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.base.cluster import Cluster
    from controller.base.known import Requests
    from controller.base.queue import Key, Queue
    from kybernate.adapters.registry.client import Registry
    from kybernate.core.requests.checkpoint import Request
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_WITHIN_S = 3600
"""Seconds in which a node that isn't heard of has to be back, or known to be off."""
_NEWS_S = 600.0
"""Seconds for which a pod that went may be found to be lost; a replica that leads later knows
those of before. They count from what the pod itself says: a controller that was restarted is told
of all pods again."""
_AGAIN_S = 1.0
"""Seconds until it is looked whether a request has taken over what is known of its pod."""
_REGISTRY_S = 4.0
_NOTHING = ", and the registry has no verified artifact of it in the object store"
_UNPROVEN = (
    "its agent does not answer, and without a registry (registry_url) nothing proves that it has "
    "stopped"
)
_MOST = 100
"""Artifacts of a pod that are looked through for one in the object store."""


class Replaced(NamedTuple):
    """A pod with a seat that somebody replaces, and that goes. `failed`: by its kubelet; `at`:
    since when, in seconds since 1970."""

    name: str
    uid: str
    node: str
    owner: str
    failed: bool
    at: float


class LostPods:
    """Pods that go, of the last minutes. Fed by the watch's thread; any thread may ask. `due` is
    told of their namespaces."""

    def __init__(self, due: Callable[[Key], None], wall: Callable[[], float] = time.time) -> None:
        """`wall` gives seconds since 1970."""
        self._due = due
        self._wall = wall
        self._lock = threading.Lock()
        self._replaced: dict[str, dict[str, Replaced]] = {}
        self._tidied = wall()

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        pod = pods.read_pod(item)
        failed, leaves = pod.failed_by_kubelet, kind == "DELETED" or pod.leaving
        kind_of_owner = (pod.owner or {}).get("kind")
        if not (pod.asks and pod.succession and pod.node):
            return
        if kind_of_owner == keys.SNAPSHOT_TEMPLATE_KIND:
            # The next pod of a template is to start cold.
            return
        if failed or (leaves and not pod.over):
            facts = pod.ref.name, str(pod.ref.uid), str(pod.node), pod.succession
            now = self._wall()
            # One that vanishes is news, whenever it was deleted.
            left = now if kind == "DELETED" else pod.left_at()
            at = min(now, (pod.failed_at() if failed else left) or now)
            with self._lock:
                self._tidy()
                those = self._replaced.setdefault(pod.namespace, {})
                those.setdefault(str(pod.ref.uid), Replaced(*facts, failed, at))
            self._due((pod.namespace, ""))

    def _tidy(self) -> None:
        """Where another replica leads nobody asks for them."""
        now = self._wall()
        if now - self._tidied < _NEWS_S:
            return
        self._tidied = now
        for namespace, found in [*self._replaced.items()]:
            young = {uid: one for uid, one in found.items() if now - one.at < _NEWS_S}
            self._replaced[namespace] = young
            if not young:
                del self._replaced[namespace]

    def of(self, namespace: str) -> list[Replaced]:
        """Those of a namespace; earlier ones are forgotten."""
        with self._lock:
            found = self._replaced.pop(namespace, {})
            young = {k: one for k, one in found.items() if self._wall() - one.at < _NEWS_S}
            if young:
                self._replaced[namespace] = young
        return [*young.values()]

    def forget(self, namespace: str, uid: str) -> None:
        """Nobody needs to know of it any more."""
        with self._lock:
            self._replaced.get(namespace, {}).pop(uid, None)

    def pinned(self, request: Request) -> PodFacts | None:
        """What a request for a lost pod is about; None if that isn't known any more."""
        uid = lost_pod(request)
        with self._lock:
            found = self._replaced.get(request.namespace, {}).get(uid)
        return found and PodFacts(uid, found.node, seat=True, ended=False, owner=found.owner)


class LostWorker:
    """Makes the requests for pods that are lost: while their node is away, or if their kubelet has
    failed them. Others are deleted because somebody wants that."""

    kind = "lost"

    def __init__(
        self,
        queue: Queue,
        lost: LostPods,
        requests: Requests[Request],
        cluster: Cluster,
        fence: Fence,
    ) -> None:
        self._queue = queue
        self._fence = fence
        self._lost = lost
        self._requests = requests
        self._cluster = cluster

    def look(self, key: Key) -> None:
        """Make the requests that pods of the namespace need. What fails for one pod holds up no
        other; then raises its KybernateError."""
        open_, failure = False, None
        for one in self._lost.of(key[0]):
            try:
                done = self._is_done(key[0], one)
            except KybernateError as error:
                failure = error
                continue
            if done:
                self._lost.forget(key[0], one.uid)
            open_ |= not done
        if failure is not None:
            raise failure
        if open_:
            self._queue.add(key, _AGAIN_S)

    def _is_done(self, namespace: str, pod: Replaced) -> bool:
        name = f"{LOST}{pod.uid}"
        seen = self._requests.get((namespace, name))
        if seen is not None:
            return bool(seen.request.status.operation)
        evictions = [one for one in self._requests.of(namespace) if _evicts(one, pod.uid)]
        if any(one.status.reason is Reason.EVICTED for one in evictions):
            return True
        away = self._cluster.is_away(pod.node)
        why = "its kubelet has failed it" if pod.failed else away
        if not why:
            return True
        if not away and any(not one.ended for one in evictions):
            # Its agent may be putting the state away just now.
            return False
        self._fence.check()
        try:
            self._cluster.ask(namespace, to_evict(name, pod.name, _WITHIN_S, None))
        except RefusedError as error:
            log.warning("pod %s/%s is lost with its state: %s", namespace, pod.name, error)
            return True
        log.info("pod %s/%s is lost: %s", namespace, pod.name, why)
        return False


def _evicts(request: Request, uid: str) -> bool:
    return request.mode is Mode.EVICT and request.status.pod_uid == uid


class Remains:
    """What lost pods have left. `registry` gives a client by the certificates of now, None where
    there is no registry."""

    def __init__(self, cluster: Cluster, registry: Callable[[], Registry] | None) -> None:
        self._cluster = cluster
        self._registry = registry

    def of(self, request: Request, pod: PodFacts | None, *, silent: bool = False) -> Remnant | None:
        """What the request's pod has left, given the pod of its name as it is now; None while it
        isn't known that nothing of it runs, or while its agent is to be asked. Where there is no
        registry a lost pod has nothing left once its agent is `silent`: nothing would ever prove
        that it has stopped. Raises KybernateError."""
        if self._registry is None:
            return Remnant(_UNPROVEN, None) if silent and lost_pod(request) else None
        uid, node = request.status.pod_uid, request.status.node
        mine = pod if pod is not None and pod.uid == uid else None
        if mine is not None and not (mine.leaving or mine.ended):
            return None
        off = self._cluster.is_off(node)
        if not off and not (lost_pod(request) and (mine is None or mine.ended)):
            return None
        registry = self._registry()
        if off:
            told = wire.Stop(proof=wire.Proof.OUT_OF_SERVICE, why=off)
            try:
                registry.stopped(request.namespace, uid, told, _REGISTRY_S)
            except NotFoundError:
                log.info("the registry knows nothing of pod %s", uid)
        outcome, continued = self._left(registry, request.namespace, uid)
        why = (off or "the pod has ended") + ("" if outcome else _NOTHING)
        return Remnant(why, outcome, continued)

    def _left(self, registry: Registry, namespace: str, uid: str) -> tuple[Outcome | None, str]:
        """What its successor continues from, and a sentence of that; without one its newest, and
        none. What its successor continued from may be forgotten since, and counts as put away."""
        claimed = self._claim(registry, namespace, uid)
        if claimed is None:
            return self._newest(registry, namespace, uid), ""
        with_what = claimed.artifact or "its state"
        told = f"pod {claimed.successor} on node {claimed.successor_node} continues with "
        found = (
            self._known(registry, claimed.artifact)
            if claimed.artifact
            else self._newest(registry, namespace, uid)
        )
        return found or Outcome(claimed.artifact, Tier.OBJECT.value, 0), told + with_what

    @staticmethod
    def _claim(registry: Registry, namespace: str, uid: str) -> wire.Pod | None:
        try:
            known = registry.pod(namespace, uid, _REGISTRY_S)
        except NotFoundError:
            return None
        return known if known.successor not in ("", uid) else None

    @staticmethod
    def _known(registry: Registry, artifact: str) -> Outcome | None:
        try:
            found = registry.get(artifact, _REGISTRY_S)
        except NotFoundError:
            return None
        # A pod that moved may have left none elsewhere than on its successor's node.
        tier = Tier.OBJECT if any(map(_is_there, found.copies)) else Tier.NVME
        return Outcome(artifact, tier.value, found.size)

    @staticmethod
    def _newest(registry: Registry, namespace: str, uid: str) -> Outcome | None:
        wanted = wire.Filter(namespace=namespace, pod_uid=uid, place=Tier.OBJECT, limit=_MOST)
        for one in registry.page(wanted, _REGISTRY_S).items:
            if any(map(_is_there, one.copies)):
                return Outcome(one.id, Tier.OBJECT.value, one.size)
        return None


def _is_there(copy: wire.KnownCopy) -> bool:
    return copy.place is Tier.OBJECT and copy.state is wire.CopyState.VERIFIED
