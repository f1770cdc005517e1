"""What is known of every node for a class of demand, brought up to date only where nodes changed.

A request then costs a lookup per candidate. Two caches make it so: per class what each node was
found to be, and per class what each *shape* of node was found to be, which nodes share that differ
in names only. Pure; one owner, like the ledger's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.placement import candidates, choose_group, score

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from kybernate.core.ledger import Ledger, NodeView
    from kybernate.core.placement import Candidates, Demand, Policy
    from kybernate.types import GroupName, NodeName

    Views = Callable[[NodeName], NodeView | None]

NO_NODE = "no GPUNode tells of the node's GPUs: is the node agent running there?"
MOST_CLASSES = 64
"""Classes of demand that are kept; the one that wasn't asked about for longest goes first."""

MOST_SHAPES = 20_000
"""Shapes of nodes that are kept per class."""


class Ranking(NamedTuple):
    """The group that suits best, and how well the node does, 0 to 10."""

    group: GroupName | None
    points: int


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
        self._ledger = ledger
        self._views = views
        self._most = most
        self._classes: OrderedDict[tuple[Demand, Policy], Class] = OrderedDict()

    def of(self, demand: Demand, policy: Policy) -> Class:
        """The class of the demand under the policy, up to date."""
        key = demand, policy
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = Class(demand, policy, self._ledger, self._views)
            if len(self._classes) > self._most:
                _, oldest = self._classes.popitem(last=False)
                self._ledger.unfollow(oldest.changed)
        else:
            self._classes.move_to_end(key)
        found.refresh()
        return found

    def __len__(self) -> int:
        """How many classes are kept."""
        return len(self._classes)


class Class:
    """One class of demand: what every node is to it. Made and kept by `Verdicts`."""

    def __init__(self, demand: Demand, policy: Policy, ledger: Ledger, views: Views) -> None:
        self.changed = ledger.follow()
        self._demand = demand
        self._policy = policy
        self._ledger = ledger
        self._views = views
        self._fitting: dict[NodeName, None] = {}
        self._failed: dict[NodeName, str] = {}
        self._hopeless: dict[NodeName, str] = {}
        self._points: dict[NodeName, int] = {}
        self._found: dict[Hashable, Candidates] = {}
        self._ranked: dict[Hashable, Ranking] = {}

    def refresh(self) -> None:
        """Forget what was found of nodes that have changed."""
        for name in self.changed:
            self._fitting.pop(name, None)
            self._failed.pop(name, None)
            self._hopeless.pop(name, None)
            self._points.pop(name, None)
        self.changed.clear()

    def fits(self, names: Sequence[NodeName], own: Mapping[NodeName, NodeView]) -> Fits:
        """Which of the nodes can take a pod of the class, and why not the others.

        `own` are nodes as they are without the pod itself.
        """
        fitting = self._fitting
        passed = [name for name in names if name in fitting]
        if len(passed) == len(names) and not own:
            return Fits(passed, {}, {})
        for name in names:
            if not (name in fitting or name in self._failed or name in self._hopeless):
                self._judge(name)
        found = Fits([name for name in names if name in fitting], {}, {})
        if len(found.passed) < len(names):
            for name in names:
                if name not in fitting:
                    self._explain(name, found)
        return self._without(found, names, own) if own else found

    def points(self, names: Sequence[NodeName], own: Mapping[NodeName, NodeView]) -> list[int]:
        """How well each node suits, 0 to 10, in the order of the names. `own` as in `fits`."""
        points = self._points
        if own:
            return [
                self._rank(own[name]).points if name in own else self._points_of(name)
                for name in names
            ]
        try:
            return [points[name] for name in names]
        except KeyError:
            return [self._points_of(name) for name in names]

    def best(self, view: NodeView) -> GroupName | None:
        """The group that a pod of the class gets on the node, or None if none can take it."""
        return self._rank(view).group

    def candidates(self, view: NodeView) -> Candidates:
        """What `placement.candidates` says of the node."""
        shape = view.shape
        if shape is None:
            return candidates(view, self._demand)
        found = self._found.get(shape)
        if found is None:
            _limit(self._found)
            found = self._found[shape] = candidates(view, self._demand)
        return found

    def _judge(self, name: NodeName) -> None:
        view = self._views(name)
        if view is None:
            return
        found = self.candidates(view)
        if found.groups:
            self._fitting[name] = None
        else:
            (self._failed if found.seat_helps else self._hopeless)[name] = found.reason

    def _explain(self, name: NodeName, found: Fits) -> None:
        reason = self._hopeless.get(name)
        if reason is not None:
            found.hopeless[name] = reason
        else:
            found.failed[name] = self._failed.get(name, NO_NODE)

    def _without(
        self, found: Fits, names: Sequence[NodeName], own: Mapping[NodeName, NodeView]
    ) -> Fits:
        passed = set(found.passed)
        for name in set(names).intersection(own):
            verdict = self.candidates(own[name])
            found.failed.pop(name, None)
            found.hopeless.pop(name, None)
            passed.discard(name)
            if verdict.groups:
                passed.add(name)
            else:
                (found.failed if verdict.seat_helps else found.hopeless)[name] = verdict.reason
        return Fits([name for name in names if name in passed], found.failed, found.hopeless)

    def _points_of(self, name: NodeName) -> int:
        known = self._points.get(name)
        if known is not None:
            return known
        view = self._views(name)
        if view is None:
            return 0
        self._points[name] = points = self._rank(view).points
        return points

    def _rank(self, view: NodeView) -> Ranking:
        shape = view.shape
        found = None if shape is None else self._ranked.get(shape)
        if found is None:
            group = choose_group(view, self._demand, self._policy)
            points = score(view, self._demand, self._policy)
            found = Ranking(group.name if group else None, points)
            if shape is not None:
                _limit(self._ranked)
                self._ranked[shape] = found
        return found


def _limit(cache: dict[Hashable, Candidates] | dict[Hashable, Ranking]) -> None:
    if len(cache) >= MOST_SHAPES:
        cache.clear()
