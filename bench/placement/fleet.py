"""The one choice that all policies share: the greatest worth, and of equals the first.

`best` looks at the places of one node. A `Fleet` keeps what it has found for every node and looks
again only where something has changed since.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.placement.model import FULL, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.placement.policies import BarePolicy
    from kybernate.core.placement.model import Ask, Supply

_NOWHERE = (Place(()),)


class Choice(NamedTuple):
    """A place on a node, by the node's position, and its worth."""

    worth: float
    node: int
    place: Place


def places(node: Supply, ask: Ask) -> Sequence[Place]:
    """The ways to give the pod bare GPUs of a node that suits it, lowest indices first.

    Whole GPUs are taken from the lowest index on. A share may be of any GPU that has it; GPUs that
    have the same left are alike, and the lowest stands for them.
    """
    if not ask.gpus:
        return _NOWHERE
    fitting = [at for at, left in enumerate(node.free) if left >= ask.share]
    if ask.share == FULL:
        return (Place(tuple(fitting[: ask.gpus])),)
    seen: dict[int, int] = {}
    for at in fitting:
        seen.setdefault(node.free[at], at)
    return [Place((at,)) for at in seen.values()]


def best(node: Supply, ask: Ask, ways: Iterable[Place], policy: BarePolicy) -> tuple[float, Place]:
    """The place of the greatest worth, the first of equals. There must be one."""
    rated = ((policy.worth(node, ask, place), place) for place in policy.order(node, ways))
    top = next(rated)
    for one in rated:
        if one[0] > top[0]:
            top = one
    return top


class _Queue:
    """The nodes that suit one kind of pod, best first; entries of changed nodes are stale."""

    def __init__(self, entries: list[tuple[float, int, int, Place]], seen: int) -> None:
        self.entries = entries
        self.seen = seen
        heapify(entries)


class Fleet:
    """Nodes in a fixed order, and the choice among them under one policy. One owner."""

    def __init__(self, nodes: Iterable[Supply], policy: BarePolicy) -> None:
        self.nodes = list(nodes)
        self._policy = policy
        self._version = [0] * len(self.nodes)
        self._changes: list[int] = []
        self._queues: dict[Ask, _Queue] = {}

    def choose(self, ask: Ask) -> Choice | None:
        """Where the pod should go, or None if no node suits it."""
        queue = self._queues.get(ask)
        if queue is None:
            queue = self._queues[ask] = _Queue([], 0)
            stale: Iterable[int] = range(len(self.nodes))
        else:
            stale = set(self._changes[queue.seen :])
        queue.seen = len(self._changes)
        self._rate(ask, stale, queue)
        entries = queue.entries
        while entries:
            worth, node, version, place = entries[0]
            if version == self._version[node]:
                return Choice(-worth, node, place)
            heappop(entries)
        return None

    def take(self, node: int, ask: Ask, place: Place) -> None:
        """Give the pod the place."""
        self.change(node, self.nodes[node].less(ask, place))

    def change(self, node: int, now: Supply) -> None:
        """Note what a node has left now."""
        self.nodes[node] = now
        self._version[node] += 1
        self._changes.append(node)

    def _rate(self, ask: Ask, stale: Iterable[int], queue: _Queue) -> None:
        """Alike nodes are rated once."""
        known: dict[Supply, tuple[float, Place]] = {}
        for at in stale:
            node = self.nodes[at]
            found = known.get(node)
            if found is None:
                if not node.suits(ask):
                    continue
                found = best(node, ask, places(node, ask), self._policy)
                known[node] = found
            heappush(queue.entries, (-found[0], at, self._version[at], found[1]))
