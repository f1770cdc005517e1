"""RestoreRequests: which artifact is meant, the pod that is made, and what becomes of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kybernate.adapters.registry import wire
from kybernate.api.lenient import text
from kybernate.api.pods import read_pod
from kybernate.api.restoring.copies import is_made_for, pod_to_make
from kybernate.api.watched.nodefacts import SeatFacts
from kybernate.core.artifacts.grants import why_not
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.core.requests.restore import (
    MAKE,
    MadePod,
    Missing,
    RestoreReason,
    RestoreRequest,
    Restoring,
    Source,
    decide,
)
from kybernate.errors import (
    ConflictError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.types import ArtifactId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from controller.base.cluster import Cluster
    from controller.base.lasting import Lasting
    from controller.base.queue import Key
    from controller.restoring.artifacts import Artifacts
    from kybernate.adapters.registry.client import Registry
    from kybernate.api.templates.reading import Recipe
    from kybernate.core.artifacts.grants import Grant
    from kybernate.core.requests.asked import Decision
    from kybernate.core.requests.restore import RestoreStatus
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

_REGISTRY_S = 4.0
_QUOTA = "exceeded quota"


class Sources:
    """Which artifact a request means, and whether it may have it."""

    def __init__(
        self,
        artifacts: Artifacts,
        registry: Callable[[], Registry] | None,
        grants: Callable[[], Iterable[Grant]],
        templates: Callable[[Key], Lasting[Recipe] | None],
    ) -> None:
        """`registry` gives a client by the certificates of now, None where there is no registry;
        `grants` raises RetryableError until they are known; `templates`: a SnapshotTemplate by its
        namespace and name."""
        self._artifacts = artifacts
        self._registry = registry
        self._grants = grants
        self._templates = templates

    def find(self, request: RestoreRequest, now: float) -> Source | Missing:
        """The artifact, or why it can't be had: nothing of what another namespace has is told."""
        if request.source_template:
            return self._of_template(request)
        try:
            found = self._named(request) if request.artifact else self._newest(request)
            where = request.source_namespace
            what = (
                f"artifact {request.artifact}" if request.artifact else "pod " + request.source_pod
            )
            if request.foreign and (
                found is None or why_not(found.artifact, request.namespace, self._grants, now)
            ):
                return Missing(
                    RestoreReason.NOT_GRANTED,
                    f"no ArtifactGrant of namespace {where} lets {request.namespace} restore "
                    f"{what}, or there is none",
                )
        except KybernateError as error:
            return Missing(RestoreReason.REGISTRY_AWAY, str(error))
        if found is None:
            return Missing(
                RestoreReason.NO_ARTIFACT,
                f"the registry has no verified {what} of namespace {where}; kubectl -n {where} get "
                "artifacts shows what there is"
                if request.artifact
                else f"the registry has no verified artifact of {what} of namespace {where}",
            )
        return found

    def stopped(self, request: RestoreRequest, cluster: Cluster) -> Missing | None:
        """Why the pod of a successor's artifact may still run, or has a successor already; None if
        its place is free, or its own agent is to say so."""
        try:
            return self._place(request, cluster, self._client())
        except NotFoundError:
            return None
        except KybernateError as error:
            return Missing(RestoreReason.REGISTRY_AWAY, str(error))

    def _place(
        self, request: RestoreRequest, cluster: Cluster, registry: Registry
    ) -> Missing | None:
        known = registry.pod(request.namespace, request.status.source_uid, _REGISTRY_S)
        if known.successor and known.successor != request.status.pod_uid:
            taken = f"pod {known.successor} on node {known.successor_node} continues in its place"
            return Missing(RestoreReason.TAKEN, taken)
        if known.stopped is not None:
            return None
        return self._proven(request, cluster, registry, known)

    def _proven(
        self, request: RestoreRequest, cluster: Cluster, registry: Registry, known: wire.Pod
    ) -> Missing | None:
        uid = request.status.source_uid
        name = request.source_pod or request.status.artifact.partition("/")[2].partition("@")[0]
        pod = cluster.pod(request.namespace, name)
        if pod is not None and pod.uid == uid and not pod.ended:
            return Missing(
                RestoreReason.SOURCE_RUNS,
                f"pod {name} is still there, and only one may have its state: delete it, or write "
                "as: template",
            )
        off = cluster.is_off(known.node) if known.node else ""
        if off:
            # Else its node's agent tells that it has stopped; the successor waits for that.
            told = wire.Stop(proof=wire.Proof.OUT_OF_SERVICE, why=off)
            registry.stopped(request.namespace, uid, told, _REGISTRY_S)
        return None

    def template(self, request: RestoreRequest) -> Recipe | None:
        """The SnapshotTemplate that it names; None if there is none, or it can't be read."""
        known = self._templates((request.namespace, request.source_template))
        return known.says if known else None

    def _of_template(self, request: RestoreRequest) -> Source | Missing:
        name, recipe = f"SnapshotTemplate {request.source_template}", self.template(request)
        if recipe is None:
            lack = f"namespace {request.namespace} has no {name} of which pods can be made"
            return Missing(RestoreReason.NO_ARTIFACT, lack)
        status = recipe.template.status
        if status.artifact is None:
            why = f"{name} has no artifact yet: {status.message or 'it was just created'}"
            return Missing(RestoreReason.TEMPLATE_NOT_READY, why)
        try:
            entry = self._client().get(ArtifactId(status.artifact.name), _REGISTRY_S)
        except NotFoundError:
            lack = f"the registry does not know {status.artifact.name}, which {name} has made"
            return Missing(RestoreReason.TEMPLATE_NOT_READY, lack)
        except KybernateError as error:
            return Missing(RestoreReason.REGISTRY_AWAY, str(error))
        return Source(entry.id, entry.pod_uid)

    def _named(self, request: RestoreRequest) -> Source | None:
        found = self._artifacts.get((request.source_namespace, request.artifact))
        if found is None:
            return None
        try:
            # What is shown may be of a while ago.
            entry = self._client().get(found.artifact, _REGISTRY_S)
        except NotFoundError:
            return None
        return Source(entry.id, entry.pod_uid)

    def _newest(self, request: RestoreRequest) -> Source | None:
        wanted = wire.Latest(namespace=request.source_namespace, pod=request.source_pod)
        try:
            entry = self._client().latest(wanted, _REGISTRY_S)
        except NotFoundError:
            return None
        return Source(entry.id, entry.pod_uid)

    def _client(self) -> Registry:
        if self._registry is None:
            raise RetryableError("the controller knows no registry (registry_url)")
        return self._registry()


class RestoreCarrier:
    """Implements `worker.Carrier` for RestoreRequests. `wall` gives seconds since 1970."""

    kind = "restore"

    def __init__(
        self,
        cluster: Cluster,
        sources: Sources,
        fence: Fence,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._sources = sources
        self._fence = fence
        self._wall = wall

    def decided(self, request: RestoreRequest) -> Decision[RestoreStatus, str]:
        """See `worker.Carrier`."""
        seen = self._observe(request)
        step = decide(seen, self._wall())
        if step.act == MAKE:
            self._fence.check()
            step = decide(Restoring(request, pod=self._made(request)), self._wall())
        return step

    def counted(self, request: RestoreRequest) -> str:
        """See `worker.Carrier`."""
        return f"Restore{request.kind.value.capitalize()}"

    def call_off(self, request: RestoreRequest) -> None:
        """Nothing has to be: a clone goes with its request, others stay."""

    def _observe(self, request: RestoreRequest) -> Restoring:
        if request.ended:
            return Restoring(request)
        if not request.status.artifact:
            return Restoring(request, self._sources.find(request, self._wall()))
        pod = self._cluster.whole_pod(request.namespace, request.status.pod)
        if pod is not None:
            return Restoring(request, pod=self._seen(request, pod))
        if request.kind is RestoreAs.SUCCESSOR and not request.status.pod_uid:
            return Restoring(request, pod=self._sources.stopped(request, self._cluster))
        return Restoring(request)

    def _made(self, request: RestoreRequest) -> MadePod | Missing:
        try:
            recipe = self._sources.template(request) if request.source_template else None
            like = None if request.template or recipe else self._like(request)
            wanted = pod_to_make(request, like, recipe.pod if recipe else None)
            if wanted is None:
                return Missing(
                    RestoreReason.TEMPLATE_NEEDED,
                    f"pod {request.status.source_uid}, of which the artifact is, is gone: say in "
                    "spec.template what its pod looks like",
                )
        except RefusedError as error:
            return Missing(RestoreReason.TEMPLATE_NEEDED, str(error))
        try:
            return self._seen(request, self._cluster.make_pod(wanted))
        except ConflictError:
            found = self._cluster.whole_pod(request.namespace, request.status.pod)
            if found is None:
                raise
            return self._seen(request, found)
        except (RefusedError, NotFoundError) as error:
            full = _QUOTA in str(error)
            return Missing(RestoreReason.QUOTA if full else RestoreReason.REFUSED, str(error))

    def _like(self, request: RestoreRequest) -> Json | None:
        """The artifact's pod, if it is there."""
        name = request.status.artifact.partition("/")[2].partition("@")[0]
        for one in dict.fromkeys((request.source_pod, name)):
            pod = self._cluster.whole_pod(request.source_namespace, one) if one else None
            if pod is not None and pod["metadata"]["uid"] == request.status.source_uid:
                return pod
        return None

    def _seen(self, request: RestoreRequest, item: Json) -> MadePod:
        pod = read_pod(item)
        node, ours = pod.node or "", is_made_for(request, item)
        seat = self._cluster.seat(node, pod.ref.uid) if node and ours else SeatFacts()
        scheduled = pod.condition("PodScheduled") or {}
        return MadePod(
            pod.ref.uid,
            node,
            ours,
            pod.over or pod.leaving,
            seat.restored,
            seat.reason or ("" if node else text(scheduled.get("message"))),
            seat.copied,
        )
