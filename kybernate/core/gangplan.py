"""Where the pods of a gang go: seats for all of them at once, or none. Pure.

The search is by depth: pods with the fewest seats to choose from first, and nodes that the gang
is on already before others, so that it stays close together. It is exact unless it meets its
limit of tries, which keeps a gang of many unlike pods from taking long; then it says so.

Since all members have to compute at the same time, no two of them may be given seats that take
turns: what the members on a GPU need together must fit its slots and its memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.ledger import Claim
from kybernate.core.placement import candidates, choose_group, usable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from kybernate.core.gang import Member
    from kybernate.core.ledger import NodeView
    from kybernate.core.placement import Demand, Policy
    from kybernate.types import Group, GroupName, NodeName, PodUid

    Policies = Callable[[Demand], Policy]
    Views = Mapping[NodeName, NodeView]
    Known = Mapping[Demand, Mapping[NodeName, Sequence[Group]]]

TRIES = 2000
TRIES_PER_MEMBER = 60
"""How often the search looks at a node: at most so often, and for each member so often more."""


class Plan(NamedTuple):
    """A seat for each unbound member, or why there are none."""

    seats: Mapping[PodUid, tuple[NodeName, GroupName]]
    reason: str = ""


def plan(
    members: Sequence[Member],
    views: Views,
    policies: Policies,
    avoid: Collection[NodeName] = frozenset(),
    known: Known | None = None,
) -> Plan:
    """Seats for all members that are bound nowhere, beside those that are.

    Each is placed by the policy that `policies` says for its demand. The views show what is taken
    and hold nothing of these members but what the bound ones have. `avoid` are nodes that the
    scheduler did not let the gang's pods have. `known` are for some demands all nodes that can take
    one such pod, with the groups that can; others are looked at.
    """
    left = {name: view for name, view in views.items() if name not in avoid}
    search = _Search(left, policies, known or {})
    unbound = [member for member in members if member.node is None]
    for member in members:
        search.settle(member, views)
    classes = _by_demand(unbound)
    for demand, alike in classes:
        room = search.most(demand)
        if room < len(alike):
            return Plan({}, _shortfall(demand, len(alike), room, len(avoid)))
    classes.sort(key=lambda one: (search.most(one[0]) - len(one[1]), repr(one[0])))
    search.left = TRIES + TRIES_PER_MEMBER * len(unbound)
    if search.place([member for _, alike in classes for member in alike]):
        return Plan(dict(search.found))
    return Plan({}, _too_many_wishes(len(unbound), exact=search.left > 0))


def fits_beside(view: NodeView, here: Sequence[tuple[Group, int | None]], new: Group) -> bool:
    """Whether the last of `here`, in group `new`, can be active together with all others of it.

    `here` are the gang's seats on the node: group, and bytes per GPU (None: the whole).
    """
    for uuid in new.gpus:
        users = [(group, vram) for group, vram in here if uuid in group.gpus]
        if len(users) > min(group.active_slots for group, _ in users):
            return False
        room = min(usable(view, group) for group, _ in users)
        if len(users) > 1 and sum(room if v is None else v for _, v in users) > room:
            return False
    return True


class _Search:
    """One search: what is placed so far, and how many more looks it may take (`left`)."""

    def __init__(self, views: Views, policies: Policies, known: Known) -> None:
        self.left = 0
        self.found: dict[PodUid, tuple[NodeName, GroupName]] = {}
        self._views = dict(views)
        self._policies = policies
        self._known = known
        self._here: dict[NodeName, list[tuple[Group, int | None]]] = defaultdict(list)
        self._sizes: dict[Demand, list[tuple[int, NodeName]]] = {}
        # What a node can take no more of, as long as nothing is taken away from it.
        self._full: dict[NodeName, set[Demand]] = defaultdict(set)

    def settle(self, member: Member, views: Views) -> None:
        """Take in a member that is bound already; its claim is in its node's view."""
        view = views.get(member.node) if member.node is not None else None
        if view is None or member.node is None:
            return
        for group in view.seats.groups:
            if group.name == member.group:
                vram = member.demand.vram if member.demand else None
                self._here[member.node].append((group, vram))

    def most(self, demand: Demand) -> int:
        """How many such pods fit at most, if nothing else were placed."""
        return sum(size for size, _ in self._sizes_for(demand))

    def place(self, members: Sequence[Member]) -> bool:
        """Find seats for all of these; leaves nothing placed if there are none."""
        if not members:
            return True
        member, rest = members[0], members[1:]
        demand = member.demand
        if demand is None:
            return False
        alike = sum(1 for other in members if other.demand == demand)
        for node in self._nodes(demand, alike):
            for group in self._groups(node, demand):
                before = self._views[node]
                self._put(member, node, group, demand)
                if self.place(rest):
                    return True
                self._views[node] = before
                self._here[node].pop()
                self._full[node].clear()
                del self.found[member.pod.uid]
                if self.left <= 0:
                    return False
        return False

    def _put(self, member: Member, node: NodeName, group: Group, demand: Demand) -> None:
        sharing = demand.party, demand.traffic
        claim = Claim(member.pod, node, group.name, group.resource, demand.vram, *sharing)
        view = self._views[node]
        self._views[node] = replace(view, claims=(*view.claims, claim))
        self._here[node].append((group, demand.vram))
        self.found[member.pod.uid] = (node, group.name)

    def _nodes(self, demand: Demand, count: int) -> Iterator[NodeName]:
        """Nodes in the order to try them: the gang's own, then the smallest that takes all."""
        own = [node for node, here in self._here.items() if here and node in self._views]
        own = [node for node in own if demand not in self._full[node]]
        yield from sorted(own, key=lambda node: (-len(self._here[node]), node))
        sizes = self._sizes_for(demand)
        at = bisect_left(sizes, count, key=lambda one: one[0])
        for _, node in (*sizes[at:], *reversed(sizes[:at])):
            if not self._here[node]:
                yield node

    def _groups(self, node: NodeName, demand: Demand) -> Iterator[Group]:
        """The node's groups that can take the pod beside what is placed there, the best first."""
        self.left -= 1
        view, here = self._views[node], self._here[node]
        fitting = [
            group
            for group in candidates(view, demand).groups
            if fits_beside(view, [*here, (group, demand.vram)], group)
        ]
        if not fitting:
            self._full[node].add(demand)
        best = choose_group(view, demand, self._policies(demand)) if fitting else None
        yield from sorted(fitting, key=lambda group: (group != best, group.name))

    def _sizes_for(self, demand: Demand) -> list[tuple[int, NodeName]]:
        """For each node that can take such a pod, how many at most; the smallest first."""
        if demand not in self._sizes:
            known = self._known.get(demand)
            if known is None:
                known = {name: candidates(v, demand).groups for name, v in self._views.items()}
            sizes = ((_size(self._views.get(name), groups), name) for name, groups in known.items())
            self._sizes[demand] = sorted(one for one in sizes if one[0])
        return self._sizes[demand]


def _size(view: NodeView | None, groups: Sequence[Group]) -> int:
    if view is None:
        return 0
    return sum(min(group.seats - view.taken(group.name), group.active_slots) for group in groups)


def _by_demand(members: Sequence[Member]) -> list[tuple[Demand, list[Member]]]:
    ordered = sorted(members, key=lambda one: (repr(one.demand), one.pod.uid))
    grouped = groupby(ordered, key=lambda one: one.demand)
    return [(demand, list(alike)) for demand, alike in grouped if demand is not None]


def _shortfall(demand: Demand, wanted: int, room: int, avoided: int) -> str:
    text = f"{wanted} of its pods need a {demand.resource} at the same time, and {room} can be had"
    if avoided:
        text += f" ({avoided} nodes are left out for now, where the scheduler bound no pod of it)"
    return text


def _too_many_wishes(wanted: int, *, exact: bool) -> str:
    if exact:
        return f"its {wanted} pods can't all have seats at the same time, though each alone could"
    return (
        f"no seats for its {wanted} pods were found in time; fewer different wishes among them "
        "(groups, products, sizes) make the search easier"
    )
