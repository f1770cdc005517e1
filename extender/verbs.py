"""What filter, prioritize and preempt answer, as functions of a snapshot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extender.wire import Filtered
from kybernate.core.placement import candidates, score

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from extender.objects import SeatPod
    from extender.wire import Victims
    from kybernate.core.ledger import NodeView
    from kybernate.core.placement import Policy
    from kybernate.types import NodeName, PodUid

    Views = Mapping[NodeName, NodeView | None]


def filter_nodes(pod: SeatPod, views: Views) -> Filtered:
    """Which of the nodes have a seat for the pod. All of them if it asks for none."""
    if pod.problem:
        return Filtered((), hopeless=dict.fromkeys(views, pod.problem))
    if pod.demand is None:
        return Filtered(tuple(views))
    passed: list[NodeName] = []
    failed: dict[NodeName, str] = {}
    hopeless: dict[NodeName, str] = {}
    for name, view in views.items():
        if view is None:
            failed[name] = "no GPUNode tells of the node's GPUs: is the node agent running there?"
            continue
        groups, reason, seat_helps = candidates(view, pod.demand)
        if groups:
            passed.append(name)
        else:
            (failed if seat_helps else hopeless)[name] = reason
    return Filtered(tuple(passed), failed, hopeless)


def prioritize_nodes(pod: SeatPod, views: Views, policy: Policy) -> dict[NodeName, int]:
    """How well each node suits the pod, 0 to 10."""
    demand = pod.demand
    return {
        name: score(view, demand, policy) if view is not None and demand is not None else 0
        for name, view in views.items()
    }


def allowed_victims(
    proposed: Mapping[NodeName, Victims], known: Callable[[PodUid], SeatPod | None]
) -> dict[NodeName, Victims]:
    """The nodes all of whose victims may be deleted: those whose owners marked them so."""

    def expendable(uid: PodUid) -> bool:
        pod = known(uid)
        return pod is not None and pod.expendable

    return {
        node: victims
        for node, victims in proposed.items()
        if all(expendable(uid) for uid in victims.uids)
    }
