"""The search for the cheapest moves: best-first over who is placed where and who leaves for it.

A state has pods that have no place yet: at first those pending, then also those that had to leave.
One of them is given a place, in every way there is; what is placed stays. Every solution is
reached so: whoever moves in it leaves for one that the solution puts there. States are taken in
the order of what they cost and will cost at least, so the first complete one is the cheapest.
Nodes that nobody has touched and that are alike in all that counts are tried once.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import field, replace
from itertools import count
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.defrag.ways import alikeness, ways, without
from kybernate.core.defrag.zones import Zones, free_seats
from kybernate.core.ledger.ledger import Claim
from kybernate.core.placement import candidates
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from kybernate.core.defrag.model import Budget, Cluster, Pending, Seated
    from kybernate.core.defrag.ways import Way
    from kybernate.core.ledger.ledger import NodeView
    from kybernate.core.placement import Demand
    from kybernate.types import GroupName, NodeName, PodRef, PodUid

FIRST_EFFORT = 300
"""States looked at for a first solution, which bounds the search for the cheapest."""


class Item(NamedTuple):
    """A pod without a place. `home` is where it was, `seconds` what its move takes; a pending one
    has neither."""

    pod: PodRef
    demand: Demand
    home: tuple[NodeName, GroupName | None] | None = None
    seconds: float = 0.0
    why: str = ""


class Placed(NamedTuple):
    """A pod and its place."""

    item: Item
    node: NodeName
    group: GroupName


class State(NamedTuple):
    """Part of a solution. `views` are the nodes that have changed, `gone` all who left a place."""

    cost: float
    moves: int
    left: tuple[Item, ...]
    views: Mapping[NodeName, NodeView]
    placed: tuple[Placed, ...]
    settled: frozenset[PodUid]


@dataclass(slots=True)
class Found:
    """What a search came to. `bound`: no solution costs less. `exact`: all was looked at that
    could be cheaper. `looked_at`: states."""

    solution: State | None
    bound: float
    exact: bool
    looked_at: int


class _Entry(NamedTuple):
    """A state, or (with `options`) the next one of those that follow another one."""

    key: tuple[float, ...]
    number: int
    bound: float
    state: State
    options: Iterator[tuple[float, State]] | None


@dataclass(slots=True)
class Search:
    """One search. What was computed of nodes as they are is kept; `pruned` says that the budget
    ruled something out, `cut` that something was not looked at."""

    cluster: Cluster
    budget: Budget
    pruned: bool = False
    cut: bool = False
    _bounds: dict[Demand, list[tuple[float, NodeName]]] = field(default_factory=dict)
    _alike: dict[NodeName, Hashable] = field(default_factory=dict)
    _free: dict[Demand, NodeName] = field(default_factory=dict)
    _zones: Zones = field(init=False)

    def __post_init__(self) -> None:
        self._zones = Zones(self.cluster)

    def run(self, pending: Sequence[Pending]) -> Found:
        """The cheapest solution within the budget, if there is one."""
        start = self._start(pending)
        if start.moves > self.budget.moves or start.cost > self.budget.seconds:
            self.pruned = True
            return Found(None, start.cost, True, 0)
        first = self._best_first(start, self.budget.seconds, FIRST_EFFORT, greedy=True)
        limit = first.solution.cost if first.solution else self.budget.seconds
        best = self._best_first(start, limit, self.budget.effort, greedy=False)
        best.looked_at += first.looked_at
        best.exact = best.exact and not self.cut
        if best.solution is None:
            best.solution = first.solution
        return best

    def _start(self, pending: Sequence[Pending]) -> State:
        """Nobody has a place; those that have a home have left it."""
        items = [Item(one.pod, one.demand, one.home, one.seconds, one.why) for one in pending]
        movers = [one for one in items if one.home is not None]
        gone = frozenset(one.pod.uid for one in movers)
        views = {
            one.home[0]: without(self.cluster.views[one.home[0]], gone)
            for one in movers
            if one.home is not None
        }
        cost = sum(one.seconds for one in movers)
        return State(cost, len(movers), _hardest_first(items), views, (), gone)

    def at_least(self, demand: Demand) -> float:
        """Seconds of moves without which no pod of this demand fits anywhere."""
        bounds = self._bounds_of(demand)
        return bounds[0][0] if bounds else inf

    def _best_first(self, start: State, limit: float, effort: int, *, greedy: bool) -> Found:
        """`greedy`: the fewest pods without a place come first, whatever that costs."""
        numbers, known = count(), set[object]()
        looked_at, least = 0, self._least(start)
        heap = [_Entry(_key(start, least, greedy=greedy), next(numbers), least, start, None)]
        while heap:
            entry = heapq.heappop(heap)
            if entry.bound == inf:
                continue
            if entry.bound > limit:
                self.pruned = True
                if greedy:
                    continue
                return Found(None, entry.bound, True, looked_at)
            state, options = entry.state, entry.options
            if not state.left and options is None:
                return Found(state, entry.bound, True, looked_at)
            if looked_at >= effort:
                return Found(None, entry.bound, False, looked_at)
            looked_at += 1
            if options is None:
                if (sign := self._sign(state)) in known:
                    continue
                known.add(sign)
                options = self._following(state, limit)
            else:
                bound = max(entry.bound, state.cost + self._least(state))
                key = _key(state, bound, greedy=greedy)
                heapq.heappush(heap, _Entry(key, next(numbers), bound, state, None))
            following = next(options, None)
            if following is not None:
                nearest, child = following
                bound = max(entry.bound, nearest)
                key = _key(child, bound, greedy=greedy)
                heapq.heappush(heap, _Entry(key, next(numbers), bound, child, options))
        return Found(None, inf, True, looked_at)

    def _following(self, state: State, limit: float) -> Iterator[tuple[float, State]]:
        """What comes of placing the first pod that has no place, the most promising first; each
        with what it and all that come after it cost at least."""
        item, rest = state.left[0], state.left[1:]
        for least, node, way in self._options(state, item, limit):
            if item.home == (node, way.group):
                continue
            if state.moves + len(way.leave) > self.budget.moves:
                self.pruned = True
                continue
            child = self._next(state, rest, Placed(item, node, way.group), way)
            yield state.cost + least, child

    def _next(self, state: State, rest: tuple[Item, ...], placed: Placed, way: Way) -> State:
        item, node, group = placed
        seated = self.cluster.seated
        leaving = [
            Item(
                seated[uid].claim.pod,
                seated[uid].demand,
                (node, seated[uid].claim.group),
                seated[uid].seconds or 0.0,
            )
            for uid in way.leave
        ]
        view = without(self._view(state, node), frozenset(way.leave))
        view = replace(view, claims=(*view.claims, claim_of(item, node, group)))
        return State(
            state.cost + way.seconds,
            state.moves + len(way.leave),
            _hardest_first([*rest, *leaving]),
            {**state.views, node: view},
            (*state.placed, placed),
            state.settled | {item.pod.uid, *way.leave},
        )

    def _options(
        self, state: State, item: Item, limit: float
    ) -> Iterator[tuple[float, NodeName, Way]]:
        """All nodes' ways for the pod, each with the seconds that it and those after it take at
        least. Ways come in the order of what they take with new places for who leaves."""
        changed = sorted(
            (self._bound(self._view(state, node), item.demand, state.settled), node)
            for node in state.views
        )
        untouched = (one for one in self._bounds_of(item.demand) if one[1] not in state.views)
        ready: list[tuple[float, Way, NodeName]] = []
        tried: set[Hashable] = set()
        for bound, node in heapq.merge(changed, untouched):
            if state.cost + bound > limit:
                self.pruned = self.pruned or bound < inf
                break
            while ready and ready[0][0] <= bound:
                yield self._nearest(ready, bound)
            if node not in state.views:
                alike = self._alike_of(node)
                if alike in tried:
                    continue
                tried.add(alike)
            for way in self._ways(state, node, item.demand, limit - state.cost):
                heapq.heappush(ready, (way.seconds + self._onward(state, way), way, node))
        while ready:
            yield self._nearest(ready, inf)

    @staticmethod
    def _nearest(
        ready: list[tuple[float, Way, NodeName]], bound: float
    ) -> tuple[float, NodeName, Way]:
        least = min(way.seconds for _, way, _ in ready)
        _, way, node = heapq.heappop(ready)
        return min(least, bound), node, way

    def _onward(self, state: State, way: Way) -> float:
        """What new places for those who leave seem to cost; they may know better ones."""
        demands = {self.cluster.seated[uid].demand for uid in way.leave}
        return max((self._least_of(state, demand) for demand in demands), default=0.0)

    def _ways(self, state: State, node: NodeName, demand: Demand, limit: float) -> list[Way]:
        view = self._view(state, node)
        found, complete = ways(view, demand, self._movable(view, state.settled), limit)
        self.cut = self.cut or not complete
        return found

    def _view(self, state: State, node: NodeName) -> NodeView:
        return state.views.get(node) or self.cluster.views[node]

    def _movable(self, view: NodeView, settled: frozenset[PodUid]) -> dict[PodUid, Seated]:
        seated = self.cluster.seated
        return {
            claim.pod.uid: seated[claim.pod.uid]
            for claim in view.claims
            if claim.pod.uid in seated
            and seated[claim.pod.uid].seconds is not None
            and claim.pod.uid not in settled
        }

    def _least(self, state: State) -> float:
        """No way to place all that are left costs less: what the hardest one takes by itself, or
        what it takes to have seats enough."""
        single = max((self._least_of(state, item.demand) for item in state.left), default=0.0)
        demands = [item.demand for item in state.left]
        return max(single, self._zones.least(demands, state.views, state.settled))

    def _least_of(self, state: State, demand: Demand) -> float:
        least = self._least_untouched(state, demand)
        for view in state.views.values():
            if least == 0:
                break
            least = min(least, self._bound(view, demand, state.settled))
        return least

    def _least_untouched(self, state: State, demand: Demand) -> float:
        if demand not in self._bounds:
            # Mostly there is some place that is free: no need to look at all nodes.
            near = self._free.get(demand)
            if near is None or near in state.views:
                near = self._find_free(state, demand)
            if near is not None:
                self._free[demand] = near
                return 0.0
        untouched = (bound for bound, node in self._bounds_of(demand) if node not in state.views)
        return next(untouched, inf)

    def _find_free(self, state: State, demand: Demand) -> NodeName | None:
        for node in self._zones.nodes(demand):
            view = self.cluster.views[node]
            if (
                node not in state.views
                and free_seats(view, demand.resource)
                and candidates(view, demand).groups
            ):
                return node
        return None

    def _bounds_of(self, demand: Demand) -> list[tuple[float, NodeName]]:
        """Of each node as it is, by what a place there costs at least; impossible ones left out."""
        if demand not in self._bounds:
            bounds: dict[Hashable, float] = {}
            found = []
            for node in self._zones.nodes(demand):
                alike = self._alike_of(node)
                if alike not in bounds:
                    view = self.cluster.views[node]
                    bounds[alike] = self._bound(view, demand, frozenset())
                if bounds[alike] < inf:
                    found.append((bounds[alike], node))
            self._bounds[demand] = sorted(found)
        return self._bounds[demand]

    def _bound(self, view: NodeView, demand: Demand, settled: frozenset[PodUid]) -> float:
        """Nothing if there is a place as it is, or else the cheapest pod that may leave: one with
        such a seat, if none is free."""
        free = free_seats(view, demand.resource)
        if free and candidates(view, demand).groups:
            return 0.0
        seated, least = self.cluster.seated, inf
        for claim in view.claims:
            uid = claim.pod.uid
            if (free or claim.resource == demand.resource) and uid not in settled:
                one = seated.get(uid)
                if one is not None and one.seconds is not None and one.seconds < least:
                    least = one.seconds
        return least

    def _alike_of(self, node: NodeName) -> Hashable:
        """The same for nodes between which, as they are, a plan need not choose."""
        if node not in self._alike:
            view, seated = self.cluster.views[node], self.cluster.seated
            held = Counter(
                alikeness(seated[claim.pod.uid]) if claim.pod.uid in seated else None
                for claim in view.claims
            )
            known = view.shape is not None
            self._alike[node] = (view.shape, frozenset(held.items())) if known else node
        return self._alike[node]

    def _sign(self, state: State) -> Hashable:
        """The same for states from which the same follows, at the same cost."""
        left = Counter((item.demand, item.home, item.seconds) for item in state.left)
        views = {
            (node, frozenset(Counter(_plain(c, state.settled) for c in view.claims).items()))
            for node, view in state.views.items()
        }
        return state.cost, state.moves, frozenset(left.items()), frozenset(views)


def claim_of(item: Item, node: NodeName, group: GroupName) -> Claim:
    """What the pod holds once it is there."""
    demand = item.demand
    return Claim(item.pod, node, group, demand.resource, demand.vram, demand.party, demand.traffic)


def _plain(claim: Claim, settled: frozenset[PodUid]) -> Hashable:
    """A claim in a state: of one that may still leave it matters which one it is."""
    uid = claim.pod.uid
    if uid not in settled:
        return uid
    return claim.group, claim.resource, claim.vram, claim.party, claim.traffic


def _key(state: State, bound: float, *, greedy: bool) -> tuple[float, ...]:
    """Of equals the one comes first that has placed most; rounded, since the order in which costs
    are added must make no difference."""
    cost, placed = round(bound, 6), -float(len(state.placed))
    return (float(len(state.left)), cost, placed) if greedy else (cost, placed)


def _hardest_first(items: Iterator[Item] | list[Item]) -> tuple[Item, ...]:
    def ease(item: Item) -> tuple[float, str, str]:
        size = inf if item.demand.vram is None else item.demand.vram
        return -size, item.demand.resource, item.pod.uid

    return tuple(sorted(items, key=ease))
