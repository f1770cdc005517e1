"""Preemption as the extender sees it: who may be deleted, and the plan of whom to suspend.

The kube-scheduler tells of nodes on which a pod might run: in `filter` of those where all but a
seat is there, in `preempt` of those where all is there once others are gone. A plan that is carried
out is one for these nodes: taints, affinities, CPU and memory are the scheduler's to judge.
"""

from __future__ import annotations

import threading
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import flask

from extender.http.verbs import allowed_victims
from extender.http.wire import Victims
from kybernate.core.plans import preemption
from kybernate.core.plans.preemption import Holder, Pending
from kybernate.core.plans.steps import document
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from extender.bind.cluster import Cluster
    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.core.ledger.ledger import NodeView
    from kybernate.types import NodeName, PodUid

_FRESH_S = 600.0
"""Seconds for which the scheduler's word on nodes counts: it tries each pod every five minutes."""
_MOST = 1000
"""Pods of which it is known where they might run. Beyond, the namespace with the most of them
forgets its oldest: who makes thousands wait pushes out nobody else's."""


class _Heard(NamedTuple):
    """Nodes that the scheduler has named, and when (s)."""

    nodes: Sequence[NodeName]
    at: float


class Preemption:
    """Answers of both kinds, from the snapshot as it is. `clock` gives seconds."""

    def __init__(
        self,
        snapshot: Snapshot,
        cluster: Cluster,
        clock: Callable[[], float] = time.monotonic,
        expendable: Callable[[SeatPod], bool] = attrgetter("expendable"),
    ) -> None:
        """`expendable` says whether a pod may be deleted for a more important one."""
        self._snapshot = snapshot
        self._cluster = cluster
        self._clock = clock
        self._expendable = expendable
        self._lock = threading.Lock()
        self._heard: dict[str, dict[PodUid, dict[str, _Heard]]] = {}

    def heard(self, pod: SeatPod, nodes: Sequence[NodeName], verb: str = "filter") -> None:
        """The pod might run on these nodes, but for a seat."""
        if pod.demand is None or pod.gang or not pod.preempts:
            return
        with self._lock:
            mine = self._heard.setdefault(pod.ref.namespace, {})
            known = mine.pop(pod.ref.uid, {})
            mine[pod.ref.uid] = {**known, verb: _Heard(nodes, self._clock())}
            if not known:
                self._shorten()

    def _shorten(self) -> None:
        if sum(map(len, self._heard.values())) > _MOST:
            namespace, most = max(self._heard.items(), key=lambda one: len(one[1]))
            del most[next(iter(most))]
            if not most:
                del self._heard[namespace]

    def veto(self, pod: SeatPod, proposed: Mapping[NodeName, Victims]) -> dict[NodeName, Victims]:
        """The nodes where deleting is allowed by the victims' owners and gives the pod a seat, and
        whom to delete there.

        The scheduler counts seats only: it would delete pods on a node none of whose groups fits,
        and may propose others than those that are marked.
        """
        if pod.demand is None:
            return allowed_victims(proposed, self._may_go)
        self.heard(pod, tuple(proposed), "preempt")
        views = self._snapshot.views(proposed, without=pod.ref.uid)
        allowed = allowed_victims(proposed, self._may_go)
        found = {}
        for node, view in views.items():
            if view is None:
                continue
            victims = allowed.get(node)
            if victims is None or not preemption.makes_room(view, pod.demand, victims.uids):
                victims = self._marked(pod, view)
            if victims is not None:
                found[node] = victims
        return found

    def page(self, namespace: str, name: str) -> dict[str, Any]:
        """Whom to suspend for a pod that waits; `?spare=UID,UID` names pods that stay."""
        spared = frozenset(filter(None, flask.request.args.get("spare", "").split(",")))
        return self.plan(namespace, name, spared)

    def plan(
        self, namespace: str, name: str, spared: Collection[str] = frozenset()
    ) -> dict[str, Any]:
        """Whom to suspend for a pod that waits, as JSON; those `spared`, by UID, stay. `checked`
        says that the scheduler has named the nodes. Raises KybernateError."""
        pod = self._snapshot.read_pod(self._cluster.pod(namespace, name))
        if pod.demand is None:
            raise RefusedError(pod.problem or f"pod {pod.ref} asks for no seat")
        if pod.node is not None:
            raise RefusedError(f"pod {pod.ref} is bound to {pod.node} and needs nobody's seat")
        nodes = self._nodes(pod)
        names = self._snapshot.names()
        views = self._snapshot.views(
            names if nodes is None else [one for one in names if one in nodes],
            without=pod.ref.uid,
        )
        found = preemption.plan(
            _pending(pod),
            (view for view in views.values() if view),
            {uid: one for uid, one in self._holders().items() if uid not in spared},
            self._snapshot.policy(pod.demand),
        )
        return {
            "pod": str(pod.ref),
            "uid": pod.ref.uid,
            "priority": pod.priority,
            "sentence": found.sentence,
            "checked": nodes is not None,
            "node": found.node,
            "group": found.group,
            "id": found.id if found.node is not None else None,
            "steps": list(map(document, found.steps)),
        }

    def _nodes(self, pod: SeatPod) -> frozenset[NodeName] | None:
        """Where the pod might run, as the scheduler has said; None if it has said nothing."""
        with self._lock:
            known = self._heard.get(pod.ref.namespace, {}).get(pod.ref.uid, {})
        now = self._clock()
        fresh = [one.nodes for one in known.values() if now - one.at < _FRESH_S]
        return frozenset().union(*fresh) if fresh else None

    def _marked(self, pod: SeatPod, view: NodeView) -> Victims | None:
        """Those to delete on the node, if they are all marked so."""
        assert pod.demand is not None  # noqa: S101 - looked at before
        policy = self._snapshot.policy(pod.demand)
        found = preemption.plan(_pending(pod), [view], self._holders(), policy)
        if not found.victims or not all(one.expendable for one in found.victims):
            return None
        return Victims(tuple(one.pod.uid for one in found.victims), 0)

    def _holders(self) -> dict[PodUid, Holder]:
        """Who may make room. What nobody replaces would not come back, and a gang is nothing with
        one pod less."""
        return {
            pod.ref.uid: Holder(pod.priority, expendable, pod.leaving)
            for pod in self._snapshot.pods()
            if (expendable := self._expendable(pod))
            or pod.leaving
            or (pod.succession and not pod.gang)
        }

    def _may_go(self, uid: PodUid) -> bool:
        pod = self._snapshot.pod(uid)
        return pod is not None and self._expendable(pod)


def _pending(pod: SeatPod) -> Pending:
    assert pod.demand is not None  # noqa: S101 - looked at before
    return Pending(pod.ref, pod.demand, pod.priority, pod.preempts and not pod.gang)
