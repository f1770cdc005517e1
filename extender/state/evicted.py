"""What was evicted, and which new pod continues from it.

A CheckpointRequest of mode Evict says what is in the object store and who makes another pod in the
evicted one's place; for a pod that is lost the controller makes one. The new pod's UID is written
into that request before the pod is bound, so that no other one gets the same state, whichever
replica binds it and however often.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kybernate import keys
from kybernate.adapters.k8s.requests import RequestIndex
from kybernate.api.pods import is_alone, why_away
from kybernate.core.requests.evictions import (
    PREEMPTED,
    ROOM_S,
    continues,
    is_preemption,
    lost_pod,
    predecessor,
)
from kybernate.errors import NotFoundError, RetryableError
from kybernate.types import NodeName, PodUid

if TYPE_CHECKING:
    from collections.abc import Callable

    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.adapters.k8s import Api
    from kybernate.core.requests.checkpoint import Request, Target

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_UNDECIDED_S = 60.0
"""Seconds from its creation for which a pod waits for the controller's word: another replica may
have to begin to lead before."""

_UNTOLD_S = 600.0
"""Seconds for which a pod that failed, and of which no request tells, has a successor."""

_LOOKED_S, _MOST_NODES = 5.0, 5000
"""Seconds for which it counts what a Node said, and of how many: of one owner many pods may go at
once."""


class _Room(NamedTuple):
    """What remains of a pod on the node for the pod `waiter`, since `at` (s since 1970)."""

    waiter: PodUid
    node: NodeName
    at: float


class _Seen(NamedTuple):
    """Implements `evictions.Seen` by what is known now, or, with `soon`, once pods that are leaving
    are gone."""

    snapshot: Snapshot
    soon: bool = False

    def stays(self, uid: str, node: str) -> bool:
        """See `evictions.Seen`."""
        return self.snapshot.stays(uid, node)

    def untaken(self, uid: str, successor: str) -> bool:
        """See `evictions.Seen`."""
        pod = self.snapshot.pod(PodUid(successor))
        gone = pod is None or (self.soon and pod.leaving)
        return gone and self.snapshot.tells_of(uid)


class Evicted:
    """Evictions whose states wait for a successor. Fed by a watch; any thread may ask."""

    def __init__(
        self,
        api: Api,
        snapshot: Snapshot,
        timeout: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """A call takes at most `timeout` seconds; `wall` gives seconds since 1970."""
        self._api = api
        self._snapshot = snapshot
        self._timeout = timeout
        self._wall = wall
        self.requests = RequestIndex(api, _owner, self._freed)
        self._rooms: dict[tuple[str, str], _Room] = {}
        self._away: dict[NodeName, tuple[bool, float]] = {}

    def _freed(self, namespace: str, name: str, request: Request | None) -> None:
        """Keep in mind for whom a pod has made room. Only the watch's thread writes, and readers
        see one table or the next."""
        rooms = {key: one for key, one in self._rooms.items() if key != (namespace, name)}
        if request is not None and is_preemption(request) and continues(request):
            uid = name.removeprefix(PREEMPTED).removesuffix(f"-{request.status.pod_uid}")
            node, at = NodeName(request.status.node), request.status.ended_at
            rooms[namespace, name] = _Room(PodUid(uid), node, at)
        if rooms != self._rooms:
            self._rooms = rooms

    def kept_from(self, pod: SeatPod) -> dict[NodeName, str]:
        """Nodes on which less important pods have made room for a more important one than this,
        which is yet to come, with a sentence each."""
        found = {}
        for room in self._rooms.values():
            waiter = self._snapshot.pod(room.waiter)
            if waiter is None or waiter.node is not None or waiter.leaving:
                continue
            if waiter.priority > pod.priority and self._wall() - room.at < ROOM_S:
                why = f"room is being made there for pod {waiter.ref} of priority {waiter.priority}"
                found[room.node] = why
        return found

    def claim(self, pod: SeatPod) -> str:
        """The UID of the pod from whose state this one continues, which no other one does from now
        on; empty if it begins again. Raises KybernateError if that can't be said now."""
        if _may_continue(pod) and (why := self.requests.not_ready()):
            raise RetryableError(why)
        known = self._known(pod)
        if self._may_be_lost(pod, known):
            raise RetryableError("whether the pod in whose place it comes is lost isn't known yet")
        untold = self._untold(pod, known)
        if not known and not untold:
            return ""
        if self._snapshot.pod(pod.ref.uid) is None:
            # Then the watch may not have told of the evicted pod's end either.
            raise RetryableError("the watch has not told of this pod yet")
        requests = [request for request, _ in known.values()]
        found = predecessor(pod.ref.uid, requests, _Seen(self._snapshot), self._wall())
        if found is None:
            young = self._wall() - pod.created <= _UNDECIDED_S
            if young and predecessor(
                pod.ref.uid, requests, _Seen(self._snapshot, soon=True), self._wall()
            ):
                raise RetryableError("the pod that was to continue before it is still ending")
            return untold
        if found.successor != pod.ref.uid:
            self._write(found, known[found.name][1], pod)
            log.info("pod %s continues from pod %s", pod.ref, found.status.pod_uid)
        return found.status.pod_uid

    def _untold(self, pod: SeatPod, known: dict[str, tuple[Request, str]]) -> str:
        """The UID of the pod that its kubelet failed, that was deleted at once, and of which the
        controller made no request: it was away just then, and now nothing tells it of that pod.
        Empty for none, and of pods that others replace, too: these stay until somebody deletes
        them."""
        if not _may_continue(pod) or not is_alone(pod.succession):
            return ""
        told = {request.status.pod_uid for request, _ in known.values()}
        left = self._snapshot.left_by(pod.ref.namespace, pod.succession, _UNTOLD_S)
        return next((uid for uid in reversed(left) if uid not in told), "")

    def _may_be_lost(self, pod: SeatPod, known: dict[str, tuple[Request, str]]) -> bool:
        """Whether the controller may be about to say that the pod in whose place it was made just
        now is lost, or deleted as somebody wants."""
        if not _may_continue(pod) or self._wall() - pod.created > _UNDECIDED_S:
            return False
        told = {request.status.pod_uid: request for request, _ in known.values()}
        return any(
            self._is_undecided(one, told.get(one.ref.uid))
            for one in self._snapshot.replaced(pod.ref.namespace, pod.succession, _UNDECIDED_S)
        )

    def _is_undecided(self, gone: SeatPod, request: Request | None) -> bool:
        if request is None:
            return gone.failed or bool(gone.node and self._is_away(gone.node))
        # Of an open one a state that is known is waited for on the successor's node.
        return not request.ended and self._snapshot.stays(gone.ref.uid, request.status.node)

    def _is_away(self, node: NodeName) -> bool:
        told, at = self._away.get(node, (False, -_LOOKED_S))
        if not 0 <= self._wall() - at < _LOOKED_S:
            told = self._look(node)
            if len(self._away) >= _MOST_NODES:
                self._away.clear()
            self._away[node] = told, self._wall()
        return told

    def _look(self, node: NodeName) -> bool:
        try:
            found = self._api.get(f"/api/v1/nodes/{node}", timeout=self._timeout)
        except NotFoundError:
            return True
        return bool(why_away(found))

    def target(self, pod: SeatPod) -> Target | None:
        """Where the pod is to be bound, if it continues from an eviction that says so."""
        known = self._known(pod)
        if not any(request.target for request, _ in known.values()):
            return None
        requests = [request for request, _ in known.values()]
        found = predecessor(pod.ref.uid, requests, _Seen(self._snapshot), self._wall())
        return found.target if found else None

    def _known(self, pod: SeatPod) -> dict[str, tuple[Request, str]]:
        if not _may_continue(pod):
            return {}
        return self.requests.of(pod.ref.namespace, pod.succession)

    def _write(self, request: Request, version: str, pod: SeatPod) -> None:
        """Raises ConflictError if somebody else was faster."""
        note = {keys.SUCCESSOR: pod.ref.uid}
        body = {"metadata": {"resourceVersion": version, "annotations": note}}
        namespace = f"/apis/{keys.API_VERSION}/namespaces/{request.namespace}"
        path = f"{namespace}/checkpointrequests/{request.name}"
        self._api.patch(path, body, timeout=self._timeout)


def _owner(request: Request) -> str | None:
    told = continues(request) or lost_pod(request)
    return (request.status.owner or None) if told else None


def _may_continue(pod: SeatPod) -> bool:
    return bool(pod.succession) and not pod.restore
