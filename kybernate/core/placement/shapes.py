"""The *shapes* of nodes, and which of them a pod of some kind should get first.

Nodes of one shape differ in names and UIDs only, so that what is decided about one holds for all.
A node's shape is found again only when the node has changed. Pure; one owner, like the ledger's.
"""

from __future__ import annotations

from bisect import insort
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.placement.colocation import strain

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from kybernate.core.ledger.ledger import Ledger, NodeView
    from kybernate.types import NodeName

    Views = Callable[[NodeName], NodeView | None]
    Rank = tuple[bool, float, int]

MOST_SHAPES = 20_000
"""Shapes that are kept, of all nodes and per class. Those that no node has any more go with it."""


class Asked(NamedTuple):
    """The numbers of some nodes' shapes, None for one that isn't known, and the distinct ones."""

    shapes: tuple[int | None, ...]
    distinct: frozenset[int | None]


class Shapes:
    """The number of each node's shape, with traffic and without."""

    def __init__(self, ledger: Ledger, views: Views, most: int = MOST_SHAPES) -> None:
        self.most = most
        self.of: dict[NodeName, int] = {}
        """By node; up to date after `refresh`."""
        self.nodes: dict[int, set[NodeName]] = {}
        """By shape: those that have it now, if any."""
        self.still: dict[int | None, int | None] = {None: None}
        """By shape: the number of those that are the same but for the traffic of their pods."""
        self.strain: dict[int | None, float] = {}
        """By shape: see `placement.colocation.strain`."""
        self.news: list[int] = []
        """Shapes in the order in which some node came to have them again; see `news_begin`."""
        self.news_begin = 0
        """How often `news` was begun again."""
        self._changed = ledger.follow()
        self._views = views
        self._numbers: dict[Hashable, int] = {}
        self._still_numbers: dict[Hashable, int] = {}
        self._next = count()
        self._last: tuple[Sequence[NodeName], Asked] | None = None

    def refresh(self) -> None:
        """Look at the nodes that have changed."""
        if self._changed:
            self._last = None
        if len(self._numbers) >= self.most:
            # Only here: who asks holds numbers until it is answered.
            self._numbers.clear()
            self.still = {shape: self.still[shape] for shape in (None, *self.of.values())}
            self.strain = {shape: self.strain[shape] for shape in self.of.values()}
        for name in self._changed:
            self._leave(name)
            view = self._views(name)
            if view is not None:
                self._enter(name, self.number(view))
        self._changed.clear()

    def numbers(self, names: Sequence[NodeName]) -> Asked:
        """The shapes of the named nodes.

        A call judges and ranks the same names: they are looked up once for both.
        """
        last = self._last
        if last is None or last[0] is not names:
            found = tuple(map(self.of.get, names))
            last = self._last = names, Asked(found, frozenset(found))
        return last[1]

    def number(self, view: NodeView) -> int:
        """The same for nodes of the same shape."""
        found = self._numbers.get(view.shape)
        if found is None:
            found = self._numbers[view.shape] = next(self._next)
            self.strain[found] = strain(view)
            self.still[found] = self._still_number(view)
        return found

    def _still_number(self, view: NodeView) -> int:
        if len(self._still_numbers) >= self.most:
            self._still_numbers.clear()
        return self._still_numbers.setdefault(view.still_shape, next(self._next))

    def _leave(self, name: NodeName) -> None:
        before = self.of.pop(name, None)
        if before is not None:
            self.nodes[before].discard(name)
            if not self.nodes[before]:
                del self.nodes[before]

    def _enter(self, name: NodeName, shape: int) -> None:
        self.of[name] = shape
        if shape in self.nodes:
            self.nodes[shape].add(name)
            return
        self.nodes[shape] = {name}
        if len(self.news) >= self.most:
            self.news.clear()
            self.news_begin += 1
        self.news.append(shape)


class Order:
    """The shapes that can take a pod of one kind, best first, and those not looked at yet."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self.begin_again()

    def begin_again(self) -> None:
        """Forget what was entered."""
        self._ranks: list[tuple[Rank, int]] = []
        self._entered: set[int] = set()
        # None: all others. Of a kind of which only one pod comes they are never counted up.
        self._fresh: set[int] | None = None
        self._heard = self._shapes.news_begin, len(self._shapes.news)

    def hear(self) -> None:
        """Take in which shapes there are by now."""
        begin, heard = self._heard
        if begin != self._shapes.news_begin or len(self._entered) > self._shapes.most:
            self.begin_again()
            return
        news = self._shapes.news
        if self._fresh is None:
            if self._entered:
                self._fresh = self._shapes.nodes.keys() - self._entered
        elif heard < len(news):
            self._fresh.update(news[heard:])
            self._fresh -= self._entered
        self._heard = begin, len(news)

    def is_short(self, names: Sequence[NodeName]) -> bool:
        """Whether going through it costs less than a look at each of so many nodes."""
        return len(self._ranks) <= 8 * len(names)

    def fresh(self, names: Sequence[NodeName], wanted: frozenset[NodeName]) -> Iterable[int]:
        """The shapes that were not entered yet of those that the named nodes have. `wanted` are
        the names once more."""
        nodes = self._shapes.nodes
        if self._fresh is None or 4 * len(self._fresh) > len(names):
            numbers = self._shapes.numbers(names).distinct - self._entered
            return [shape for shape in numbers if shape is not None]
        gone = [shape for shape in self._fresh if shape not in nodes]
        self._fresh.difference_update(gone)
        return [shape for shape in self._fresh if not nodes[shape].isdisjoint(wanted)]

    def enter(self, shape: int, rank: Rank | None) -> None:
        """Note what the shape is ranked; None if it can't take such a pod."""
        if self._fresh is not None:
            self._fresh.discard(shape)
        self._entered.add(shape)
        if rank is not None:
            insort(self._ranks, (rank, shape))

    def first(self, names: Sequence[NodeName], wanted: frozenset[NodeName]) -> NodeName | None:
        """The best of the named nodes, of equal ones the first; None if none has a shape that was
        entered."""
        best: list[set[NodeName]] = []
        top: Rank | None = None
        for at in range(len(self._ranks) - 1, -1, -1):
            rank, shape = self._ranks[at]
            if top is not None and rank != top:
                break
            nodes = self._shapes.nodes.get(shape)
            if nodes is None:
                # It is news again once a node has it again.
                del self._ranks[at]
                self._entered.discard(shape)
            elif not nodes.isdisjoint(wanted):
                best.append(nodes)
                top = rank
        if not best:
            return None
        among = best[0] if len(best) == 1 else set().union(*(one & wanted for one in best))
        return next(filter(among.__contains__, names))
