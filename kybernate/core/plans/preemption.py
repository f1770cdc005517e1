"""Whom to suspend so that a pending pod finds a seat. Pure; somebody else carries it out.

The kube-scheduler makes room by deleting pods. A suspended pod's state is saved first, and its
replacement waits until there is a seat again. As there, only pods of lower priority make room, and
of all choices the one is taken that hurts the least important pods; what is left is decided by how
few they are, and by how much has to be saved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.ledger.parking import seat_cost
from kybernate.core.placement import candidates, choose_group
from kybernate.core.plans.steps import WAITS, Kind, Step, plan_id
from kybernate.core.quantity import format_quantity
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kybernate.core.ledger.ledger import Claim, NodeView
    from kybernate.core.placement import Demand, Policy
    from kybernate.types import Group, GroupName, NodeName, PodRef, PodUid


@dataclass(frozen=True, slots=True)
class Holder:
    """What is known of a pod that holds a seat.

    `expendable` says that its owner wants it killed rather than saved; `leaving` that it is being
    deleted, so that its seat frees anyhow.
    """

    priority: int = 0
    expendable: bool = False
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """A pod that waits. `preempts` is False if its priority class says that it never does."""

    ref: PodRef
    demand: Demand
    priority: int = 0
    preempts: bool = True


class Victim(NamedTuple):
    """A pod that gives up its seat; `save` is how many bytes of GPU memory are saved before. With
    `expendable` it is deleted instead."""

    pod: PodRef
    priority: int
    save: int
    group: GroupName | None = None
    expendable: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the pod gets its seat, and who gives theirs up; without a node there is no way.

    `sentence` tells a person. No victims and a node: the pod fits, now or once pods that are being
    deleted are gone.
    """

    sentence: str
    node: NodeName | None = None
    group: GroupName | None = None
    victims: tuple[Victim, ...] = ()
    steps: tuple[Step, ...] = ()
    """Who gives up a seat, each without the others, and then the pod's own place."""

    @property
    def id(self) -> str:
        """See `steps.plan_id`."""
        return plan_id(self.steps)


def plan(
    pending: Pending,
    nodes: Iterable[NodeView],
    holders: Mapping[PodUid, Holder],
    policy: Policy,
) -> Plan:
    """The least harmful way to make room for the pod. A holder that isn't known stays.

    Of equal ways that of the first node counts.
    """
    best: Plan | None = None
    for view in nodes:
        if best is not None and _bound(pending, view, holders) >= _harm(best):
            continue
        found = _on(pending, view, holders, policy)
        if found is not None and (best is None or _harm(found) < _harm(best)):
            best = found
    return best or Plan(_no_way(pending))


def makes_room(view: NodeView, demand: Demand, gone: Collection[PodUid]) -> bool:
    """Whether the node can take the demand once these pods are gone."""
    return bool(candidates(_without(view, gone), demand).groups)


def _on(
    pending: Pending, view: NodeView, holders: Mapping[PodUid, Holder], policy: Policy
) -> Plan | None:
    leaving = {c.pod.uid for c in view.claims if _of(holders, c).leaving}
    victims = _yielding(pending, view, holders)
    gone = leaving | {claim.pod.uid for claim in victims}
    if not makes_room(view, pending.demand, gone):
        return None
    # Spared one after the other, the most important first: whoever is left must go.
    for claim in sorted(victims, key=lambda claim: _worth(view, claim, holders), reverse=True):
        if makes_room(view, pending.demand, gone - {claim.pod.uid}):
            gone -= {claim.pod.uid}
    group = choose_group(_without(view, gone), pending.demand, policy)
    told = [_victim(view, claim, holders) for claim in victims if claim.pod.uid in gone]
    told.sort(key=lambda victim: (str(victim.pod), victim.pod.uid))
    return Plan(
        _sentence(pending, view.seats.name, told),
        view.seats.name,
        group.name if group else None,
        tuple(told),
        _steps(pending, view, told, group),
    )


def _yielding(pending: Pending, view: NodeView, holders: Mapping[PodUid, Holder]) -> list[Claim]:
    """The claims on the node that must make room if it comes to that."""
    if not pending.preempts:
        return []
    return [
        claim
        for claim in view.claims
        if claim.group is not None
        and claim.pod.uid in holders
        and not _of(holders, claim).leaving
        and _of(holders, claim).priority < pending.priority
    ]


def _of(holders: Mapping[PodUid, Holder], claim: Claim) -> Holder:
    return holders.get(claim.pod.uid, Holder())


def _victim(view: NodeView, claim: Claim, holders: Mapping[PodUid, Holder]) -> Victim:
    holder = _of(holders, claim)
    save = 0 if holder.expendable else view.state_size(claim)
    return Victim(claim.pod, holder.priority, save, claim.group, holder.expendable)


def _steps(
    pending: Pending, view: NodeView, victims: Iterable[Victim], group: Group | None
) -> tuple[Step, ...]:
    node = view.seats.name
    steps = [
        Step(
            Kind.DELETE if victim.expendable else Kind.SUSPEND,
            victim.pod,
            None if victim.group is None else (node, victim.group),
            None,
            size=victim.save,
            why=f"pod {pending.ref} of priority {pending.priority} waits, and its own is "
            f"{victim.priority}",
        )
        for victim in victims
    ]
    if group is not None:
        size = seat_cost(view.gpus(group), pending.demand.vram)
        target = (node, group.name)
        steps.append(Step(Kind.PLACE, pending.ref, None, target, size=size, why=WAITS))
    return tuple(steps)


def _worth(
    view: NodeView, claim: Claim, holders: Mapping[PodUid, Holder]
) -> tuple[int, int, PodUid]:
    victim = _victim(view, claim, holders)
    return victim.priority, victim.save, victim.pod.uid


def _without(view: NodeView, gone: Collection[PodUid]) -> NodeView:
    return replace(view, claims=tuple(one for one in view.claims if one.pod.uid not in gone))


Harm = tuple[float, int, int]
_NONE: Harm = (float("-inf"), 0, 0)


def _harm(found: Plan) -> Harm:
    if not found.victims:
        return _NONE
    highest = max(victim.priority for victim in found.victims)
    return highest, len(found.victims), sum(victim.save for victim in found.victims)


def _bound(pending: Pending, view: NodeView, holders: Mapping[PodUid, Holder]) -> Harm:
    """No plan for this node does less harm than this."""
    leaving = {claim.pod.uid for claim in view.claims if _of(holders, claim).leaving}
    if makes_room(view, pending.demand, leaving):
        return _NONE
    victims = [_victim(view, c, holders) for c in _yielding(pending, view, holders)]
    if not victims:
        return float("inf"), 0, 0
    return min(one.priority for one in victims), 1, min(one.save for one in victims)


def _sentence(pending: Pending, node: NodeName, victims: list[Victim]) -> str:
    if not victims:
        return f"pod {pending.ref} needs nobody's seat: {node} can take it, now or soon"
    names = ", ".join(_told(victim) for victim in victims)
    return (
        f"suspending {names} makes room on {node} for pod {pending.ref} of priority "
        f"{pending.priority}"
    )


def _told(victim: Victim) -> str:
    save = f"{format_quantity(victim.save)} to save" if victim.save else "nothing to save"
    return f"{victim.pod} (priority {victim.priority}, {save})"


def _no_way(pending: Pending) -> str:
    if not pending.preempts:
        return (
            f"no node can take pod {pending.ref}, and its priority class says that it takes "
            "nobody's seat (preemptionPolicy: Never)"
        )
    return (
        f"no node can take pod {pending.ref}, even if all seats of pods below its priority of "
        f"{pending.priority} were given up"
    )
