"""Plans of moves, asked for by people and the controller: GET /defrag/NAMESPACE/POD.

`*` stands for all: all pods that wait, or all namespaces. The query may say `moves`, `seconds` and
`effort` (`defrag.Budget`); `node` and `group`, where a pod that has a seat is to go, or with
`model` those of a model; or `empty`, a node that all pods are to leave. `within` names the only
namespace whose pods may be moved.

One plan is made at a time, as it may take seconds of the time of all who bind; who asks meanwhile
is told to ask again.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import flask

from kybernate import keys
from kybernate.core.defrag import Budget, Cluster, Pending, Seated, document, plan
from kybernate.core.placement import Demand
from kybernate.core.tiers.tiers import rebalance_seconds
from kybernate.errors import NotFoundError, RefusedError, RetryableError
from kybernate.types import GroupName, NodeName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from extender.bind import cluster
    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.core.ledger.ledger import Claim, NodeView
    from kybernate.types import PodUid

    Json = dict[str, Any]

_ALL = "*"
_MOST = {"moves": 100, "seconds": inf, "effort": 20_000}
_DEFAULTS = {"moves": 10.0, "seconds": inf, "effort": 1000.0}


class Defragmenter:
    """Plans from the snapshot as it is; keeps nothing."""

    def __init__(self, snapshot: Snapshot, cluster: cluster.Cluster) -> None:
        self._snapshot = snapshot
        self._cluster = cluster
        self._turn = threading.Lock()

    def page(self, namespace: str, name: str) -> Json:
        """The plan for one pod or all, as JSON. Raises KybernateError."""
        if not self._turn.acquire(blocking=False):
            # Who waits here keeps a thread from the scheduler.
            raise RetryableError("another plan is being made; ask again")
        try:
            return self._page(namespace, name)
        finally:
            self._turn.release()

    def _page(self, namespace: str, name: str) -> Json:
        query = flask.request.args
        budget, empty = read_budget(query), query.get("empty")
        if empty is not None:
            return self.emptied(NodeName(empty), namespace, budget)
        if "node" in query or "group" in query:
            target = query.get("node", ""), query.get("group", "")
            return self.moved(namespace, name, target, budget, query.get("model", ""))
        return self.plan(namespace, name, budget, query.get("within", _ALL))

    def plan(self, namespace: str, name: str, budget: Budget, within: str = _ALL) -> Json:
        """How pods that wait get seats; pods of one namespace move, if `within` names one."""
        pods = {pod.ref.uid: pod for pod in self._snapshot.pods()}
        wanted = self._all(pods, namespace) if name == _ALL else [self._one(namespace, name)]
        if not wanted:
            raise NotFoundError("no pod waits for a seat")
        return self._answer(wanted, pods, within, budget)

    def emptied(self, node: NodeName, namespace: str, budget: Budget) -> Json:
        """How the pods of a node get seats on others."""
        view = self._snapshot.views([node])[node]
        if view is None:
            raise NotFoundError(f"there is no GPUNode {node}")
        pods = {pod.ref.uid: pod for pod in self._snapshot.pods()}
        why = f"node {node} is to be emptied"
        seats = [seat_of(view, claim, pods.get(claim.pod.uid)) for claim in view.claims]
        wanted = [_leaves(one, why) for one in seats if one.seconds is not None]
        found = [one for one in wanted if namespace in (_ALL, one.pod.namespace)]
        return self._answer(found, pods, namespace, budget, closed={node: why})

    def moved(
        self,
        namespace: str,
        name: str,
        target: tuple[str, str],
        budget: Budget,
        model: str = "",
    ) -> Json:
        """How a pod that has a seat gets one of a group, or anywhere on a node, or how all pods of
        a `model` do that aren't there; no other pod is moved for it. `target`: node, empty for its
        own, and group, empty for any."""
        pods = self._to_move(namespace, name, model)
        seats = [self._seat(pod) for pod in pods]
        node = NodeName(target[0]) or seats[0].claim.node
        if node not in self._snapshot.names():
            raise NotFoundError(f"there is no GPUNode {node}")
        group, there = GroupName(target[1]), []
        for seat in seats:
            at = seat.claim
            if (at.node, at.group) == (node, group or at.group):
                there.append(at.pod.uid)
        if there and not model:
            at = seats[0].claim
            raise RefusedError(f"pod {at.pod} is on node {node}, group {at.group}; name another")
        wanted = [_goes(_may_go(one), group) for one in seats if one.claim.pod.uid not in there]
        others = (one for one in self._snapshot.names() if one != node)
        closed = dict.fromkeys(others, f"it is to go to node {node}")
        moving = {pod.ref.uid: pod for pod in pods if pod.ref.uid not in there}
        return self._answer(wanted, moving, _ALL, budget, closed=closed)

    def _to_move(self, namespace: str, name: str, model: str) -> list[SeatPod]:
        """The pods that have seats: the one of this name, or all of a model. Raises NotFoundError
        if there is none."""
        found = [
            one
            for one in self._snapshot.pods()
            if one.ref.namespace == namespace
            and one.node is not None
            and (one.model == model and not one.leaving if model else one.ref.name == name)
        ]
        if not found:
            who = f"of model {model} in namespace {namespace}" if model else f"{namespace}/{name}"
            raise NotFoundError(f"no pod {who} has a seat")
        return sorted(found, key=lambda one: one.ref.name)

    def _seat(self, pod: SeatPod) -> Seated:
        """Raises NotFoundError."""
        view = self._snapshot.views([pod.node])[pod.node] if pod.node else None
        claims = view.claims if view else ()
        claim = next((one for one in claims if one.pod.uid == pod.ref.uid), None)
        if view is None or claim is None:
            raise NotFoundError(f"no GPUNode tells of the seat of pod {pod.ref}")
        return seat_of(view, claim, pod)

    def _answer(
        self,
        wanted: Sequence[Pending],
        pods: Mapping[PodUid, SeatPod],
        namespace: str,
        budget: Budget,
        *,
        closed: Mapping[NodeName, str] = MappingProxyType({}),
    ) -> Json:
        """The plan, in which pods of the namespace move, and only those that are known (`pods`);
        nobody goes to nodes that are `closed`, and why not."""
        views = self._snapshot.views(self._snapshot.names())
        known = {
            node: _closed(view, closed.get(node, ""))
            for node, view in views.items()
            if view is not None
        }
        seated = {
            claim.pod.uid: seat_of(view, claim, pods.get(claim.pod.uid), namespace)
            for view in known.values()
            for claim in view.claims
        }
        waiting = [one for one in wanted if one.home is None]
        for one in waiting:
            # What is reserved for a pod that waits must not stand in its own way.
            seated.pop(one.pod.uid, None)
        found = plan(Cluster(_without(known, waiting), seated), wanted, budget)
        fixed = Counter(one.why for one in seated.values() if one.seconds is None)
        return document(found, wanted, fixed)

    def _all(self, pods: Mapping[PodUid, SeatPod], namespace: str) -> list[Pending]:
        return [
            Pending(pod.ref, pod.demand)
            for pod in sorted(pods.values(), key=lambda pod: (-pod.priority, str(pod.ref)))
            if pod.demand is not None and pod.node is None and not pod.leaving
            if namespace in (_ALL, pod.ref.namespace)
        ]

    def _one(self, namespace: str, name: str) -> Pending:
        pod = self._snapshot.read_pod(self._cluster.pod(namespace, name))
        if pod.demand is None:
            raise RefusedError(pod.problem or f"pod {pod.ref} asks for no seat")
        if pod.node is not None:
            raise RefusedError(f"pod {pod.ref} is bound to {pod.node} and waits for nothing")
        return Pending(pod.ref, pod.demand)


def _may_go(seat: Seated) -> Seated:
    """Raises RefusedError if its pod must stay."""
    if seat.seconds is None:
        raise RefusedError(f"pod {seat.claim.pod} must stay: of such pods, {seat.why}")
    return seat


def seat_of(view: NodeView, claim: Claim, pod: SeatPod | None, namespace: str = _ALL) -> Seated:
    """What is known of a claim, and why its pod must stay, if it must: as do those of other
    namespaces."""
    groups = {group.name: group for group in view.seats.groups}
    demand = pod.demand if pod is not None else None
    if claim.group not in groups or demand is None or pod is None:
        why = "it is not known what they ask for"
        return Seated(claim, Demand(claim.resource, claim.vram), None, why)
    demand = replace(demand, prefer_group=None, traffic=claim.traffic)
    why = _stays(pod)
    if not why and namespace not in (_ALL, pod.ref.namespace):
        why = "they are of other namespaces"
    if why:
        return Seated(claim, demand, None, why)
    return Seated(claim, demand, rebalance_seconds(view.state_size(claim)))


def _stays(pod: SeatPod) -> str:
    if pod.node is None:
        return "they are about to be bound"
    if pod.leaving:
        return "they are being deleted"
    if pod.gang:
        return "they belong to a gang, which would have to move as a whole"
    return (
        "" if pod.succession else "nobody makes another pod in their place, as a Deployment would"
    )


def _leaves(seat: Seated, why: str) -> Pending:
    claim = seat.claim
    return Pending(claim.pod, seat.demand, (claim.node, claim.group), seat.seconds or 0.0, why)


def _goes(seat: Seated, group: GroupName) -> Pending:
    """To this group, empty for any. Raises RefusedError if the pod requires another one."""
    own = seat.demand.require_group
    if own and group and own != group:
        raise RefusedError(f"pod {seat.claim.pod} requires group {own} ({keys.REQUIRE_GROUP})")
    wanted = _leaves(seat, "it is asked for")
    return replace(wanted, demand=replace(wanted.demand, require_group=group or own))


def _closed(view: NodeView, why: str) -> NodeView:
    # It is like no other node any more.
    return replace(view, seats=replace(view.seats, not_ready=why), layout=None) if why else view


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
