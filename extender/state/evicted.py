"""What was evicted, and which new pod continues from it.

A CheckpointRequest of mode Evict says what is in the object store and who makes another pod in the
evicted one's place. The new pod's UID is written into that request before the pod is bound, so that
no other one gets the same state, whichever replica binds it and however often.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from kybernate import keys
from kybernate.adapters.k8s.requests import RequestIndex
from kybernate.core.requests.evictions import continues, predecessor
from kybernate.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.adapters.k8s import Api
    from kybernate.core.requests.checkpoint import Request, Target

    Json = dict[str, Any]

log = logging.getLogger(__name__)


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
        self.requests = RequestIndex(api, _owner)

    def claim(self, pod: SeatPod) -> str:
        """The UID of the pod from whose state this one continues, which no other one does from now
        on; empty if it begins anew. Raises KybernateError if that can't be said now."""
        if _may_continue(pod) and (why := self.requests.not_ready()):
            raise RetryableError(why)
        known = self._known(pod)
        if not known:
            return ""
        if self._snapshot.pod(pod.ref.uid) is None:
            # Then the watch may not have told of the evicted pod's end either.
            raise RetryableError("the watch has not told of this pod yet")
        requests = [request for request, _ in known.values()]
        found = predecessor(pod.ref.uid, requests, self._snapshot, self._wall())
        if found is None:
            return ""
        if found.successor != pod.ref.uid:
            self._write(found, known[found.name][1], pod)
            log.info("pod %s continues from pod %s", pod.ref, found.status.pod_uid)
        return found.status.pod_uid

    def target(self, pod: SeatPod) -> Target | None:
        """Where the pod is to be bound, if it continues from an eviction that says so."""
        known = self._known(pod)
        if not any(request.target for request, _ in known.values()):
            return None
        requests = [request for request, _ in known.values()]
        found = predecessor(pod.ref.uid, requests, self._snapshot, self._wall())
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
    return request.status.owner if continues(request) else None


def _may_continue(pod: SeatPod) -> bool:
    return bool(pod.succession) and not pod.restore
