"""What filter, prioritize and preempt answer, as functions of a snapshot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.placement.verdicts import Fits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from extender.http.wire import Victims
    from extender.state.objects import SeatPod
    from kybernate.core.placement import Demand
    from kybernate.types import NodeName, PodRef, PodUid

    Judge = Callable[[PodRef, Demand, Sequence[NodeName]], Fits]
    Rank = Callable[[PodUid, Demand, Sequence[NodeName]], Sequence[int]]


def filter_nodes(pod: SeatPod, names: Sequence[NodeName], judge: Judge) -> Fits:
    """Which of the nodes have a seat for the pod. All of them if it asks for none.

    `judge` says of a pod and a demand what each node is to it.
    """
    if pod.problem:
        return Fits([], {}, dict.fromkeys(names, pod.problem))
    if pod.demand is None:
        return Fits(list(names), {}, {})
    return judge(pod.ref, pod.demand, names)


def prioritize_nodes(pod: SeatPod, names: Sequence[NodeName], rank: Rank) -> Sequence[int]:
    """How well each node suits the pod, 0 to 10. `rank` says it of a pod and a demand."""
    if pod.demand is None:
        return [0] * len(names)
    return rank(pod.ref.uid, pod.demand, names)


def allowed_victims(
    proposed: Mapping[NodeName, Victims], expendable: Callable[[PodUid], bool]
) -> dict[NodeName, Victims]:
    """The nodes all of whose victims may be deleted, as `expendable` says of each."""
    return {
        node: victims
        for node, victims in proposed.items()
        if all(expendable(uid) for uid in victims.uids)
    }
