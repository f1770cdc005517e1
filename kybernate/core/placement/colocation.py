"""What sharing a group's GPUs means for a pod: with whom, how long it waits, what is left to park.

The numbers are for `model.Place`; the policies say what they are worth.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kybernate.core.ledger.sharing import refusal, strangers
from kybernate.core.placement.lattice import by_name, filled, member
from kybernate.core.swap.forecast import TURN, UNKNOWN, Sharer, clash, wait_seconds, worth
from kybernate.core.tiers.tiers import switch_seconds, wake_seconds
from kybernate.types import NodeName

if TYPE_CHECKING:
    from kybernate.core.ledger.ledger import Claim, NodeView
    from kybernate.core.placement.lattice import Member
    from kybernate.core.placement.model import Demand
    from kybernate.types import Group, GroupName


def neighbours(view: NodeView, group: Group) -> tuple[Claim, ...]:
    """The claims on any group that has a GPU in common with this one."""
    names = member(view, group).names
    return tuple(claim for claim in view.claims if claim.group in names)


def expected_wait(view: NodeView, group: Group, demand: Demand) -> float:
    """Seconds of waiting that each call for the pod would bring about there; see
    `forecast.wait_seconds`."""
    present = sharers_of(view, group)
    if not present:
        return 0.0
    mine, slots = member(view, group), _slots(view, group, demand)
    size = filled(mine, demand.vram)
    newcomer = Sharer(demand.traffic or UNKNOWN, _switch(size, len(mine.gpus)))
    return _wait(present, newcomer, slots)


@lru_cache(maxsize=16_384)
def _wait(present: tuple[Sharer, ...], newcomer: Sharer, slots: int) -> float:
    """Kept: when a node has changed, most of its groups have not."""
    return wait_seconds(present, newcomer, slots)


_switch = lru_cache(maxsize=4096)(switch_seconds)


def expected_wake(view: NodeView, group: Group, demand: Demand) -> float:
    """Seconds until the state from which the pod continues is in the group's GPUs, from where that
    is soonest; 0 if it continues from none that is known."""
    if not demand.states:
        return 0.0
    # Which node of its shape this is counts nowhere: what lies on it is in `holds`.
    gpus = len(group.gpus)
    return min([wake_seconds(one, _ANY, gpus) for one in (*demand.states, *view.holds)])


_ANY = NodeName("")


def detour(view: NodeView, group: Group, demand: Demand) -> float:
    """Seconds that this takes longer than on the node where it is soonest: what every node would
    cost is no reason to prefer one, nor to mind waits less."""
    if not demand.states:
        return 0.0
    here = (replace(one, node=None) for one in demand.states)
    soonest = min([wake_seconds(one, _ANY, len(group.gpus)) for one in here])
    return expected_wake(view, group, demand) - soonest


def sharers_of(view: NodeView, group: Group) -> tuple[Sharer, ...]:
    """Those that are there already, with their traffic."""
    everyone, names = view.once("sharers", lambda: _sharers(view)), member(view, group).names
    return tuple([one for name, one in everyone if name in names])


def hot_together(view: NodeView, group: Group, demand: Demand) -> tuple[int, ...]:
    """The hours of UTC in which the pod and one that is there would both be hot."""
    if demand.traffic is None or _slots(view, group, demand) > 1:
        return ()
    return clash(sharers_of(view, group), demand.traffic)


def strange_parties(view: NodeView, group: Group, demand: Demand) -> tuple[str, ...]:
    """The parties on the group's GPUs with which the pod may not share them."""
    return strangers(demand.party, (claim.party for claim in neighbours(view, group)))


def shares_well(view: NodeView, group: Group, demand: Demand) -> bool:
    """Whether the cluster's rule lets the pod share the group's GPUs."""
    alike = all(claim.party == demand.party for claim in view.claims)
    return alike or not strange_parties(view, group, demand)


def among_strangers(view: NodeView, left: tuple[Group, ...], demand: Demand) -> str:
    """Why it doesn't, for groups that are all refused."""
    found = {party for group in left for party in strange_parties(view, group, demand)}
    return refusal([group.name for group in left], demand.party, sorted(found))


def keeps_cool(view: NodeView, group: Group, demand: Demand) -> bool:
    """Whether the pod, if it must be kept apart, meets no other hot model there."""
    return not (demand.apart and hot_together(view, group, demand))


def among_hot(view: NodeView, left: tuple[Group, ...], demand: Demand) -> str:
    """Why it does, for groups that are all refused."""
    names = ", ".join(group.name for group in left)
    hours = sorted({hour for group in left for hour in hot_together(view, group, demand)})
    holds = "hold hot models" if len(left) > 1 else "holds a hot model"
    return (
        f"{names} {holds}, busy at the same hours as the pod's ({_hours(hours)} UTC), and the "
        "cluster's rule (hot_apart) keeps such models apart"
    )


def _hours(hours: list[int]) -> str:
    """As ranges: 8-10, 23."""
    starts = [hour for hour in hours if hour - 1 not in hours]
    ends = [hour for hour in hours if hour + 1 not in hours]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in pairs)


def strain(view: NodeView) -> float:
    """How busy the node's GPUs are expected to be, all in all: GPUs in use on average over the day,
    per GPU; above 1 if more is asked of them than they can give. A guess at waits, for next to
    nothing."""
    used, groups = 0.0, by_name(view)
    for claim in view.claims:
        if claim.group in groups:
            used += (claim.traffic or UNKNOWN).mean * len(groups[claim.group].gpus)
    return used / max(1, len(view.seats.gpus))


def guess(strained: float) -> int:
    """Points, 0 to 10, of a node of so much strain, before it is looked at more closely."""
    return 9 * worth(TURN * strained, 1000) // 1000


def park_room(view: NodeView, group: Group, demand: Demand) -> int | None:
    """Bytes of host memory that would be left for further parked seats; None: no limit.

    As `parking.bears` counts: one seat more than what the GPUs don't hold must fit.
    """
    budget = view.seats.park_budget
    if budget is None:
        return None
    cost = filled(member(view, group), demand.vram)
    total, largest = view.held
    return budget - max(largest, cost) - max(0, total + cost - on_gpus(view))


def on_gpus(view: NodeView) -> int:
    """Bytes that the node's GPUs hold, those that are ill aside."""
    return view.once("well", lambda: sum(gpu.memory for gpu in view.seats.gpus if gpu.healthy))


def _sharers(view: NodeView) -> list[tuple[GroupName | None, Sharer]]:
    """All on the node that hold a seat of one of its groups, each with the group's name."""
    groups = by_name(view)
    return [
        (claim.group, _sharer(claim, member(view, groups[claim.group])))
        for claim in view.claims
        if claim.group in groups
    ]


def _sharer(claim: Claim, mine: Member) -> Sharer:
    size = filled(mine, claim.vram)
    return Sharer(claim.traffic or UNKNOWN, _switch(size, len(mine.group.gpus), claim.rests))


def _slots(view: NodeView, group: Group, demand: Demand) -> int:
    """How many of the seats on these GPUs can be in GPU memory at a time, at the least."""
    mine = member(view, group)
    if mine.slots == 1:
        return 1
    sizes = [claim.vram for claim in neighbours(view, group)] + [demand.vram]
    if None in sizes:
        return 1
    largest = max(size for size in sizes if size is not None)
    memory = mine.room - view.seats.reserve
    return max(1, min(mine.slots, memory // largest if largest else mine.slots))
