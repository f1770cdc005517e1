"""Plans of defragmentation, asked for by people and the operator: GET /defrag/NAMESPACE/POD.

`*/*` is all pods that wait. The query may say `moves`, `seconds` and `effort` (`defrag.Budget`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import flask

from kybernate.core.defrag import Budget, Cluster, Pending, Seated, document, plan
from kybernate.core.ledger.parking import seat_cost
from kybernate.core.placement import Demand
from kybernate.core.tiers.tiers import move_seconds
from kybernate.errors import NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from extender.bind import cluster
    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.core.ledger.ledger import Claim, NodeView
    from kybernate.types import NodeName, PodUid

    Json = dict[str, Any]

_ALL = "*"
_MOST = {"moves": 100, "seconds": inf, "effort": 20_000}
_DEFAULTS = {"moves": 10.0, "seconds": inf, "effort": 1000.0}


class Defragmenter:
    """Plans from the snapshot as it is; keeps nothing."""

    def __init__(self, snapshot: Snapshot, cluster: cluster.Cluster) -> None:
        self._snapshot = snapshot
        self._cluster = cluster

    def page(self, namespace: str, name: str) -> Json:
        """The plan for one pod or all, as JSON. Raises KybernateError."""
        budget = read_budget(flask.request.args)
        return self.plan(namespace, name, budget)

    def plan(self, namespace: str, name: str, budget: Budget) -> Json:
        """See `page`."""
        pods = {pod.ref.uid: pod for pod in self._snapshot.pods()}
        wanted = self._all(pods) if name == _ALL else [self._one(namespace, name)]
        if not wanted:
            raise NotFoundError("no pod waits for a seat")
        views = self._snapshot.views(self._snapshot.names())
        known = {node: view for node, view in views.items() if view is not None}
        seated = {
            claim.pod.uid: seat_of(view, claim, pods.get(claim.pod.uid))
            for view in known.values()
            for claim in view.claims
        }
        for one in wanted:
            # What is reserved for a pod that waits must not stand in its own way.
            seated.pop(one.pod.uid, None)
        found = plan(Cluster(_without(known, wanted), seated), wanted, budget)
        fixed = Counter(one.why for one in seated.values() if one.seconds is None)
        return document(found, wanted, fixed)

    def _all(self, pods: Mapping[PodUid, SeatPod]) -> list[Pending]:
        return [
            Pending(pod.ref, pod.demand)
            for pod in sorted(pods.values(), key=lambda pod: (-pod.priority, str(pod.ref)))
            if pod.demand is not None and pod.node is None and not pod.leaving
        ]

    def _one(self, namespace: str, name: str) -> Pending:
        pod = self._snapshot.read_pod(self._cluster.pod(namespace, name))
        if pod.demand is None:
            raise RefusedError(pod.problem or f"pod {pod.ref} asks for no seat")
        if pod.node is not None:
            raise RefusedError(f"pod {pod.ref} is bound to {pod.node} and waits for nothing")
        return Pending(pod.ref, pod.demand)


def seat_of(view: NodeView, claim: Claim, pod: SeatPod | None) -> Seated:
    """What is known of a claim, and why its pod must stay, if it must."""
    groups = {group.name: group for group in view.seats.groups}
    demand = pod.demand if pod is not None else None
    if claim.group not in groups or demand is None or pod is None:
        why = "it is not known what they ask for"
        return Seated(claim, Demand(claim.resource, claim.vram), None, why)
    demand = replace(demand, prefer_group=None, traffic=claim.traffic)
    why = _stays(pod)
    if why:
        return Seated(claim, demand, None, why)
    size = seat_cost(view.gpus(groups[claim.group]), claim.vram)
    return Seated(claim, demand, move_seconds(size))


def _stays(pod: SeatPod) -> str:
    if pod.node is None:
        return "they are about to be bound"
    if pod.leaving:
        return "they are being deleted"
    return "they belong to a gang, which would have to move as a whole" if pod.gang else ""


def _without(
    views: Mapping[NodeName, NodeView], wanted: Sequence[Pending]
) -> dict[NodeName, NodeView]:
    waiting = {one.pod.uid for one in wanted}
    found = {}
    for node, view in views.items():
        claims = tuple(claim for claim in view.claims if claim.pod.uid not in waiting)
        found[node] = view if len(claims) == len(view.claims) else replace(view, claims=claims)
    return found


def read_budget(query: Mapping[str, str]) -> Budget:
    """The budget that a query names. Raises RefusedError, naming the field."""
    found = {}
    for field, most in _MOST.items():
        text = query.get(field)
        try:
            value = _DEFAULTS[field] if text is None else float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            limit = f"from 0 to {most:g}" if most < inf else "of 0 or more"
            raise RefusedError(f"{field}: {text!r} is not a number {limit}")
        found[field] = value
    return Budget(found["seconds"], int(found["moves"]), int(found["effort"]))
