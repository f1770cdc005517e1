"""Where the pods of a gang go: seats for all of them at once, or none. Pure.

The search is by depth: pods with the fewest seats to choose from first, and nodes that the gang
is on already before others, so that it stays close together. It is exact unless it meets its
limit of tries, which keeps a gang of many unlike pods from taking long; then it says so.

Since all members have to compute at the same time, no two of them may be given seats that take
turns: what the members on a GPU need together must fit its slots and its memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import field, replace
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.ledger.ledger import Claim
from kybernate.core.placement import candidates, choose_group, usable
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kybernate.core.gangs.gang import Member
    from kybernate.core.ledger.ledger import NodeView
    from kybernate.core.placement import Demand, Policy
    from kybernate.types import Group, GroupName, NodeName, PodUid

    Policies = Callable[[Demand], Policy]
    Views = Mapping[NodeName, NodeView]
    Known = Mapping[Demand, Mapping[NodeName, Sequence[Group]]]

TRIES = 2000
TRIES_PER_MEMBER = 60
"""How often the search looks at a node: at most so often, and for each member so often more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the kube-scheduler was seen to allow beyond seats: CPU, memory, taints, affinity.

    `most` is how many unbound members a node may get, for some nodes; `offered` the only nodes that
    some members may get.
    """

    most: Mapping[NodeName, int] = field(default_factory=dict)
    offered: Mapping[PodUid, frozenset[NodeName]] = field(default_factory=dict)

    def takes(self, node: NodeName, wish: Wish, placed: int) -> bool:
        """Whether the node may get one more member that wishes so, beside so many placed there."""
        offered = wish.offered is None or node in wish.offered
        return offered and placed < self.most.get(node, placed + 1)


NO_LIMITS = Limits()


class Wish(NamedTuple):
    """What a member asks for, and where it may go (None: anywhere). Members of one are alike."""

    demand: Demand
    offered: frozenset[NodeName] | None


class Plan(NamedTuple):
    """A seat for each unbound member, or why there are none."""

    seats: Mapping[PodUid, tuple[NodeName, GroupName]]
    reason: str = ""


def plan(
    members: Sequence[Member],
    views: Views,
    policies: Policies,
    limits: Limits = NO_LIMITS,
    known: Known | None = None,
) -> Plan:
    """Seats for all members that are bound nowhere, beside those that are.

    Each is placed by the policy that `policies` says for its demand. The views show what is taken
    and hold nothing of these members but what the bound ones have. `known` are for some demands all
    nodes that can take one such pod, with the groups that can; others are looked at.
    """
    search = _Search(views, policies, known or {}, limits)
    unbound = [member for member in members if member.node is None]
    for member in members:
        search.settle(member, views)
    classes = _by_wish(unbound, limits)
    for wish, alike in classes:
        room = search.most(wish)
        if room < len(alike):
            return Plan({}, _shortfall(wish.demand, len(alike), room, search.seats(wish.demand)))
    # Sorting keeps the order of classes with as much room to choose.
    classes.sort(key=lambda one: search.most(one[0]) - len(one[1]))
    search.left = TRIES + TRIES_PER_MEMBER * len(unbound)
    if search.place([(member, wish) for wish, alike in classes for member in alike]):
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

    def __init__(self, views: Views, policies: Policies, known: Known, limits: Limits) -> None:
        self.left = 0
        self.found: dict[PodUid, tuple[NodeName, GroupName]] = {}
        self._views = dict(views)
        self._policies = policies
        self._known = known
        self._limits = limits
        self._placed: Counter[NodeName] = Counter()
        self._here: dict[NodeName, list[tuple[Group, int | None]]] = defaultdict(list)
        self._seats: dict[Demand, list[tuple[int, NodeName]]] = {}
        self._sizes: dict[Wish, list[tuple[int, NodeName]]] = {}
        # What a node can take no more of, as long as nothing is taken away from it.
        self._full: dict[NodeName, set[Wish]] = defaultdict(set)

    def settle(self, member: Member, views: Views) -> None:
        """Take in a member that is bound already; its claim is in its node's view."""
        view = views.get(member.node) if member.node is not None else None
        if view is None or member.node is None:
            return
        for group in view.seats.groups:
            if group.name == member.group:
                vram = member.demand.vram if member.demand else None
                self._here[member.node].append((group, vram))

    def seats(self, demand: Demand) -> int:
        """How many such pods would fit at most, were seats all that counts."""
        return sum(size for size, _ in self._seats_for(demand))

    def most(self, wish: Wish) -> int:
        """How many such members fit at most, if nothing else were placed."""
        return sum(size for size, _ in self._sizes_for(wish))

    def place(self, members: Sequence[tuple[Member, Wish]]) -> bool:
        """Find seats for all of these; leaves nothing placed if there are none."""
        if not members:
            return True
        (member, wish), rest = members[0], members[1:]
        alike = sum(1 for _, other in members if other == wish)
        for node in self._nodes(wish, alike):
            for group in self._groups(node, wish):
                before = self._views[node]
                self._put(member, node, group, wish.demand)
                if self.place(rest):
                    return True
                self._views[node] = before
                self._here[node].pop()
                self._placed[node] -= 1
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
        self._placed[node] += 1
        self.found[member.pod.uid] = (node, group.name)

    def _nodes(self, wish: Wish, count: int) -> Iterator[NodeName]:
        """Nodes in the order to try them: the gang's own, then the smallest that takes all."""
        own = [node for node, here in self._here.items() if here and node in self._views]
        own = [node for node in own if wish not in self._full[node] and self._takes(node, wish)]
        yield from sorted(own, key=lambda node: (-len(self._here[node]), node))
        sizes = self._sizes_for(wish)
        at = bisect_left(sizes, count, key=lambda one: one[0])
        for _, node in (*sizes[at:], *reversed(sizes[:at])):
            if not self._here[node]:
                yield node

    def _takes(self, node: NodeName, wish: Wish) -> bool:
        return self._limits.takes(node, wish, self._placed[node])

    def _groups(self, node: NodeName, wish: Wish) -> Iterator[Group]:
        """The node's groups that can take the pod beside what is placed there, the best first."""
        self.left -= 1
        view, here, demand = self._views[node], self._here[node], wish.demand
        fitting = [
            group
            for group in candidates(view, demand).groups
            if fits_beside(view, [*here, (group, demand.vram)], group)
        ]
        if not fitting:
            self._full[node].add(wish)
        best = choose_group(view, demand, self._policies(demand)) if fitting else None
        yield from sorted(fitting, key=lambda group: (group != best, group.name))

    def _sizes_for(self, wish: Wish) -> list[tuple[int, NodeName]]:
        """For each node that can take such a member, how many at most; the smallest first."""
        if wish not in self._sizes:
            left = (
                (min(size, self._limits.most.get(name, size)), name)
                for size, name in self._seats_for(wish.demand)
                if self._takes(name, wish)
            )
            self._sizes[wish] = sorted(left)
        return self._sizes[wish]

    def _seats_for(self, demand: Demand) -> list[tuple[int, NodeName]]:
        """For each node that has seats for such a pod, how many at most."""
        if demand not in self._seats:
            known = self._known.get(demand)
            if known is None:
                known = {name: candidates(v, demand).groups for name, v in self._views.items()}
            sizes = ((_size(self._views.get(name), groups), name) for name, groups in known.items())
            self._seats[demand] = [one for one in sizes if one[0]]
        return self._seats[demand]


def _size(view: NodeView | None, groups: Sequence[Group]) -> int:
    if view is None:
        return 0
    return sum(min(group.seats - view.taken(group.name), group.active_slots) for group in groups)


def _by_wish(members: Sequence[Member], limits: Limits) -> list[tuple[Wish, list[Member]]]:
    found: dict[Wish, list[Member]] = defaultdict(list)
    for member in sorted(members, key=lambda one: (repr(one.demand), one.pod.uid)):
        if member.demand is not None:
            found[Wish(member.demand, limits.offered.get(member.pod.uid))].append(member)
    return list(found.items())


def _shortfall(demand: Demand, wanted: int, room: int, seats: int) -> str:
    text = f"{wanted} of its pods need a {demand.resource} at the same time, and {room} can be had"
    if seats > room:
        text += f" ({seats - room} more are where the scheduler would not have them)"
    return text


def _too_many_wishes(wanted: int, *, exact: bool) -> str:
    if exact:
        return f"its {wanted} pods can't all have seats at the same time, though each alone could"
    return (
        f"no seats for its {wanted} pods were found in time; fewer different wishes among them "
        "(groups, products, sizes) make the search easier"
    )
