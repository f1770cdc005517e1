"""Preemption as the extender sees it: a veto against deleting, and the plan of whom to suspend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from extender.http.verbs import allowed_victims
from kybernate.core.plans import preemption
from kybernate.core.plans.preemption import Holder, Pending
from kybernate.core.plans.steps import document
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from extender.bind.cluster import Cluster
    from extender.http.wire import Victims
    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.types import NodeName, PodUid


class Preemption:
    """Answers of both kinds, from the snapshot as it is."""

    def __init__(self, snapshot: Snapshot, cluster: Cluster) -> None:
        self._snapshot = snapshot
        self._cluster = cluster

    def veto(self, pod: SeatPod, proposed: Mapping[NodeName, Victims]) -> dict[NodeName, Victims]:
        """The nodes where deleting is allowed by the victims' owners and gives the pod a seat.

        The scheduler counts seats only: it would delete pods on a node none of whose groups fits.
        """
        allowed = allowed_victims(proposed, self._snapshot.pod)
        if pod.demand is None:
            return allowed
        views = self._snapshot.views(allowed, without=pod.ref.uid)
        return {
            node: victims
            for node, victims in allowed.items()
            if (view := views[node]) is not None
            and preemption.makes_room(view, pod.demand, victims.uids)
        }

    def plan(self, namespace: str, name: str) -> dict[str, Any]:
        """Whom to suspend for a pod that waits, as JSON. Raises KybernateError."""
        pod = self._snapshot.read_pod(self._cluster.pod(namespace, name))
        if pod.demand is None:
            raise RefusedError(pod.problem or f"pod {pod.ref} asks for no seat")
        if pod.node is not None:
            raise RefusedError(f"pod {pod.ref} is bound to {pod.node} and needs nobody's seat")
        pending = Pending(pod.ref, pod.demand, pod.priority, pod.preempts)
        views = self._snapshot.views(self._snapshot.names(), without=pod.ref.uid)
        policy = self._snapshot.policy(pod.demand)
        found = preemption.plan(
            pending, (view for view in views.values() if view), self._holders(), policy
        )
        return {
            "pod": str(pod.ref),
            "uid": pod.ref.uid,
            "priority": pod.priority,
            "sentence": found.sentence,
            "node": found.node,
            "group": found.group,
            "id": found.id if found.node is not None else None,
            "steps": list(map(document, found.steps)),
        }

    def _holders(self) -> dict[PodUid, Holder]:
        return {
            pod.ref.uid: Holder(pod.priority, pod.expendable, pod.leaving)
            for pod in self._snapshot.pods()
        }
