"""What nodes are to a class of demand, found once per *shape* of node.

Nodes of one shape differ in names and UIDs only, so that what is decided about one holds for all.
A node's shape is found again only when the node has changed. A request then costs a lookup per
candidate. Pure; one owner, like the ledger's.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import nsmallest
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kybernate.core.placement import candidates, choose
from kybernate.core.placement.colocation import guess
from kybernate.core.placement.lattice import by_name
from kybernate.core.placement.shapes import MOST_SHAPES, Asked, Order, Shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kybernate.core.ledger.ledger import Ledger, NodeView
    from kybernate.core.placement import Candidates, Demand, Policy
    from kybernate.core.placement.shapes import Views
    from kybernate.types import GroupName, NodeName

    Own = Mapping[NodeName, NodeView]

S = TypeVar("S", int, int | None)

NO_NODE = "no GPUNode tells of the node's GPUs: is the node agent running there?"
MOST_CLASSES = 256
"""Classes of demand that are kept; the one that wasn't asked about for longest goes first."""

MOST_FRESH = 4
"""Where a policy foresees waits, so many shapes are ranked again per call, the least strained; each
costs half a millisecond and more. The others follow with the next calls."""


class Ranking(NamedTuple):
    """The group that suits best, and how well the node does: see `placement.seats.Chosen`."""

    group: GroupName | None
    points: int
    rank: tuple[bool, float, int]


_UNKNOWN = Ranking(None, 0, (False, -inf, 0))
_LATER = Ranking(None, 0, (False, -inf, 0))
"""Of a shape that is not ranked yet."""


class Fits(NamedTuple):
    """The nodes that can take a pod; the others with a sentence each.

    `hopeless` are those where deleting pods wouldn't help either.
    """

    passed: list[NodeName]
    failed: dict[NodeName, str]
    hopeless: dict[NodeName, str]


class Verdicts:
    """The classes of demand that were asked about lately.

    `views` gives a node as it is now; whatever changes in one must reach the ledger's followers.
    """

    def __init__(self, ledger: Ledger, views: Views, most: int = MOST_CLASSES) -> None:
        self._views = views
        self._most = most
        self._shapes = Shapes(ledger, views, MOST_SHAPES)
        self._classes: OrderedDict[tuple[Demand, Policy], Class] = OrderedDict()

    def refresh(self) -> None:
        """Take in what has changed. Asking does the same."""
        self._shapes.refresh()

    def of(self, demand: Demand, policy: Policy) -> Class:
        """The class of the demand under the policy, up to date."""
        self._shapes.refresh()
        key = demand, policy
        found = self._classes.get(key)
        if found is not None:
            self._classes.move_to_end(key)
            return found
        if len(self._classes) >= self._most:
            self._classes.popitem(last=False)
        found = self._classes[key] = Class(demand, policy, self._shapes, self._views)
        return found

    def adopt(self, changed: Mapping[Policy, Policy]) -> None:
        """These policies have become others. What a node can take is none of their business."""
        before, self._classes = self._classes, OrderedDict()
        for (demand, policy), known in before.items():
            now = changed.get(policy, policy)
            known.adopt(now)
            self._classes[demand, now] = known

    def __len__(self) -> int:
        """How many classes are kept."""
        return len(self._classes)


class Class:
    """One class of demand: what every shape is to it. Made and kept by `Verdicts`."""

    def __init__(self, demand: Demand, policy: Policy, shapes: Shapes, views: Views) -> None:
        self._demand = demand
        self._policy = policy
        self._shapes = shapes
        self._views = views
        self._found: dict[int | None, Candidates] = {}
        self._fitting: set[int | None] = set()
        self._ranked: dict[int | None, Ranking] = {None: _UNKNOWN}
        self._order = Order(shapes)

    def adopt(self, policy: Policy) -> None:
        """Rank by this policy from now on."""
        if policy is not self._policy:
            self._policy = policy
            self._ranked = {None: _UNKNOWN}
            self._order.begin_again()

    def fits(self, names: Sequence[NodeName], own: Own) -> Fits:
        """Which of the nodes can take a pod of the class, and why not the others.

        `own` are nodes as they are to this pod: without itself, and with the states that it wants.
        """
        asked = self._asked(names, own)
        if self._judged(names, asked, own) <= self._fitting:
            return Fits(names if isinstance(names, list) else list(names), {}, {})
        return self._sorted(names, self._of_judged(asked.shapes))

    def verdicts(self, names: Sequence[NodeName]) -> list[Candidates | None]:
        """What `placement.candidates` says of each node; None for one without a GPUNode.

        The groups are those of some node of the same shape: only what such nodes share may be read.
        """
        asked = self._asked(names, {})
        self._judged(names, asked, {})
        return list(map(self._found.get, self._of_judged(asked.shapes)))

    def points(self, names: Sequence[NodeName], own: Own) -> list[int]:
        """How well each node suits, 0 to 10, in the order of the names. `own` as in `fits`.

        If ranking takes long, those that have to wait for a later call are guessed. By a policy
        that needn't guess, the best node gets a point beside its worth: no other has as many.
        """
        asked = self._asked(names, own)
        ranked = self._rankings(names, asked, own)
        if not self._policy.foresees:
            return self._with_best(names, asked.shapes, ranked)
        strains = self._shapes.strain
        points = {
            shape: guess(strains.get(shape, inf)) if one is _LATER else one.points
            for shape, one in ranked.items()
        }
        return [points[shape] for shape in asked.shapes]

    def _with_best(
        self,
        names: Sequence[NodeName],
        shapes: Sequence[int | None],
        ranked: Mapping[int | None, Ranking],
    ) -> list[int]:
        """The points, with the one that the best node gets: of equal ones each, unless the policy
        goes by names."""
        top = max([one.rank for one in ranked.values()], default=_UNKNOWN.rank)
        best = {at for at, shape in enumerate(shapes) if ranked[shape].rank == top}
        if top == _UNKNOWN.rank:
            best = set()
        elif self._policy.by_name:
            best = {min(best, key=names.__getitem__)}
        return [ranked[shape].points + (at in best) for at, shape in enumerate(shapes)]

    def best_nodes(self, names: Sequence[NodeName], own: Own, most: int) -> list[NodeName]:
        """The `most` nodes that suit best, in the order of the names; of equal ones the first, by
        name if the policy says so.

        If ranking takes long, nodes that were not ranked yet may have to wait for a later call.
        """
        asked = self._asked(names, own)
        rankings, shapes = self._rankings(names, asked, own), asked.shapes
        if most == 1:
            top = max([one.rank for one in rankings.values()])
            best = [shape for shape, one in rankings.items() if one.rank == top]
            if self._policy.by_name:
                return [min(n for n, shape in zip(names, shapes, strict=True) if shape in best)]
            return [names[min(map(shapes.index, best))]]
        order: Iterable[int] = range(len(shapes))
        if self._policy.by_name:
            order = sorted(order, key=names.__getitem__)
        order = sorted(order, key=lambda at: rankings[shapes[at]].rank, reverse=True)
        return [names[at] for at in sorted(order[:most])]

    def best_node(self, names: Sequence[NodeName]) -> NodeName | None:
        """The node that suits best, as `best_nodes` says, without a look at each.

        None if that isn't known: `fits` tells whether any can take a pod of the class.
        """
        order = self._order
        order.hear()
        if not order.is_short(names):
            return None
        wanted = frozenset(names)
        fresh = order.fresh(names, wanted)
        if self._slow:
            fresh = self._least_strained(fresh)
        self._make_room(0)
        for shape in fresh:
            view = self._view(next(iter(self._shapes.nodes[shape])), {})
            fitting = self.candidates(view).groups
            order.enter(shape, self._rank(shape, view).rank if fitting else None)
        return order.first(sorted(names) if self._policy.by_name else names, wanted)

    def best(self, view: NodeView) -> GroupName | None:
        """The group that a pod of the class gets on the node, or None if none can take it."""
        return self._rank(self._shapes.number(view), view).group

    def candidates(self, view: NodeView) -> Candidates:
        """What `placement.candidates` says of the node."""
        (number,) = self._of_judged((self._shapes.number(view),))
        return self._judge(number, view)

    def _of_judged(self, shapes: Iterable[int | None]) -> list[int | None]:
        """Of each the shape that decides on whether a pod fits: only some pods mind others'
        traffic."""
        return list(shapes if self._demand.apart else map(self._shapes.still.get, shapes))

    def _asked(self, names: Sequence[NodeName], own: Own) -> Asked:
        """The shapes of the nodes."""
        asked = self._shapes.numbers(names)
        mine = own.keys() & set(names) if own else ()
        if not mine:
            return asked
        shapes = list(asked.shapes)
        for name in mine:
            shapes[names.index(name)] = self._shapes.number(own[name])
        return Asked(tuple(shapes), frozenset(shapes))

    def _judged(self, names: Sequence[NodeName], asked: Asked, own: Own) -> set[int | None]:
        """The shapes that decide, each of which was judged."""
        distinct = tuple(asked.distinct)
        judged = self._of_judged(distinct)
        self._make_room(len(distinct))
        deciding = set(judged)
        for number in deciding - self._found.keys() - {None}:
            shape = distinct[judged.index(number)]
            self._judge(number, self._view(names[asked.shapes.index(shape)], own))
        return deciding

    def _rankings(
        self, names: Sequence[NodeName], asked: Asked, own: Own
    ) -> dict[int | None, Ranking]:
        """What each distinct shape is ranked; if that takes long, only so many more per call."""
        distinct = asked.distinct
        self._make_room(len(distinct))
        fresh: Iterable[int | None] = distinct - self._ranked.keys()
        if self._slow:
            mine = {self._shapes.number(view) for view in own.values() if view.holds}
            fresh = {*self._least_strained(fresh), *(mine & distinct)}
        for shape in fresh:
            self._rank(shape, self._view(names[asked.shapes.index(shape)], own))
        return {shape: self._ranked.get(shape, _LATER) for shape in distinct}

    @property
    def _slow(self) -> bool:
        """Whether ranking a shape takes long."""
        return self._policy.foresees and self._demand.prefer_group is None

    def _least_strained(self, shapes: Iterable[S]) -> list[S]:
        """As many as are ranked in one call."""
        strains = self._shapes.strain
        return nsmallest(MOST_FRESH, shapes, key=lambda one: (strains.get(one, inf), one))

    def _make_room(self, more: int) -> None:
        """Forget all if it would be too much with so many more."""
        if len(self._found) + more > MOST_SHAPES:
            self._found.clear()
            self._fitting.clear()
        if len(self._ranked) + more > MOST_SHAPES:
            self._ranked = {None: _UNKNOWN}

    def _sorted(self, names: Sequence[NodeName], shapes: Iterable[int | None]) -> Fits:
        found = Fits([], {}, {})
        for name, shape in zip(names, shapes, strict=True):
            if shape in self._fitting:
                found.passed.append(name)
            elif shape is None:
                found.failed[name] = NO_NODE
            else:
                verdict = self._found[shape]
                (found.failed if verdict.seat_helps else found.hopeless)[name] = verdict.reason
        return found

    def _view(self, name: NodeName, own: Own) -> NodeView:
        view = own.get(name) or self._views(name)
        if view is None:
            raise LookupError(f"{name} has a shape and is not known")
        return view

    def _judge(self, shape: int | None, view: NodeView) -> Candidates:
        found = self._found.get(shape)
        if found is None:
            found = self._found[shape] = candidates(view, self._demand)
            if found.groups:
                self._fitting.add(shape)
        return found

    def _rank(self, shape: int | None, view: NodeView) -> Ranking:
        found = self._ranked.get(shape)
        if found is None:
            # What was found may be of another node of this shape: names hold for all of them.
            groups = by_name(view)
            fitting = tuple([groups[one.name] for one in self.candidates(view).groups])
            group, points, rank = choose(view, self._demand, self._policy, fitting)
            name = group.name if group else None
            found = self._ranked[shape] = Ranking(name, points, rank)
        return found
