"""Room by moving: the fewest pods of one node that go elsewhere, so that a pod without room fits.

Each pod is moved to a place that is free at that moment, and the pod without room comes last: every
state in between is valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bench.placement.fleet import Choice, Fleet, best, places
from kybernate.core.placement.model import Supply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.placement.policies import BarePolicy
    from kybernate.core.placement.model import Ask, Place

_TRIES = 8
"""Nodes to try, the one with the fewest pods in the way first."""

_CLOSED = Supply((), cpu=-1)


class Held(NamedTuple):
    """A pod and the place that it has."""

    ask: Ask
    place: Place


@dataclass(frozen=True, slots=True)
class Plan:
    """The pods to move, in this order, each from the node to a place; then the pod's own place."""

    moves: tuple[tuple[int, Held, Choice], ...]
    choice: Choice


def without(node: Supply, held: Held) -> Supply:
    """The node once the pod has left its place."""
    ask, free = held.ask, list(node.free)
    for at in held.place.gpus:
        free[at] += ask.share
    return node._replace(free=tuple(free), cpu=node.cpu + ask.cpu, memory=node.memory + ask.memory)


def in_the_way(node: Supply, held: Sequence[Held], ask: Ask) -> list[Held]:
    """Few pods of the node without which it would suit the pod; none if that can't be."""
    if (ask.products and node.product not in ask.products) or len(node.free) < ask.gpus:
        return []
    ways = sorted(_on_gpu(node, held, ask, at) for at in range(len(node.free)))
    leaving = {number for _, _, numbers in ways[: ask.gpus] for number in numbers}
    cpu = ask.cpu - node.cpu - sum(held[number].ask.cpu for number in leaving)
    memory = ask.memory - node.memory - sum(held[number].ask.memory for number in leaving)
    others = [number for number in range(len(held)) if number not in leaving]
    for number in sorted(others, key=lambda n: (held[n].ask.total, -held[n].ask.cpu)):
        if cpu <= 0 and memory <= 0:
            break
        leaving.add(number)
        cpu -= held[number].ask.cpu
        memory -= held[number].ask.memory
    return [held[number] for number in sorted(leaving)] if cpu <= 0 and memory <= 0 else []


def _on_gpu(
    node: Supply, held: Sequence[Held], ask: Ask, at: int
) -> tuple[int, int, tuple[int, ...]]:
    """How many pods must leave a GPU, their thousandths, and which they are."""
    need = ask.share - node.free[at]
    here = [(one.ask.total, n) for n, one in enumerate(held) if at in one.place.gpus]
    alone = [(total, n) for total, n in here if total >= need]
    leaving = [min(alone)] if alone and need > 0 else []
    for total, n in sorted(here, reverse=True):
        if not alone and need > 0:
            leaving.append((total, n))
            need -= total
    return len(leaving), sum(total for total, _ in leaving), tuple(n for _, n in leaving)


class Tenants:
    """A fleet, and the pods on it. One owner."""

    def __init__(self, nodes: Sequence[Supply], policy: BarePolicy) -> None:
        self.fleet = Fleet(nodes, policy)
        self._policy = policy
        self._held: list[list[Held]] = [[] for _ in nodes]
        self._hopeless: set[Ask] = set()

    def take(self, choice: Choice, ask: Ask) -> None:
        """Give the pod the place."""
        self.fleet.take(choice.node, ask, choice.place)
        self._held[choice.node].append(Held(ask, choice.place))

    def make_room(self, ask: Ask, most: int) -> Plan | None:
        """Move at most `most` pods so that this one fits and place it; None if it can't be.

        What could not be is not looked for again until something has moved: pods that come only
        take room away.
        """
        if ask in self._hopeless:
            return None
        ways = [
            (len(found), sum(held.ask.total for held in found), at, found)
            for at, node in enumerate(self.fleet.nodes)
            if (found := in_the_way(node, self._held[at], ask)) and len(found) <= most
        ]
        for _, _, at, found in sorted(ways, key=lambda way: way[:3])[:_TRIES]:
            plan = self._try(at, found, ask)
            if plan is not None:
                self._hopeless.clear()
                return plan
        self._hopeless.add(ask)
        return None

    def _try(self, at: int, leaving: Sequence[Held], ask: Ask) -> Plan | None:
        node, nodes = self.fleet.nodes[at], self.fleet.nodes
        self.fleet.change(at, _CLOSED)
        moves: list[tuple[int, Held, Choice]] = []
        before: list[tuple[int, Supply]] = []
        for held in leaving:
            choice = self.fleet.choose(held.ask)
            if choice is None:
                break
            before.append((choice.node, nodes[choice.node]))
            self.fleet.take(choice.node, held.ask, choice.place)
            moves.append((at, held, choice))
        if len(moves) < len(leaving):
            for other, was in reversed(before):
                self.fleet.change(other, was)
            self.fleet.change(at, node)
            return None
        return self._carry_out(at, node, moves, ask)

    def _carry_out(
        self, at: int, node: Supply, moves: list[tuple[int, Held, Choice]], ask: Ask
    ) -> Plan:
        for _, held, choice in moves:
            self._held[at].remove(held)
            self._held[choice.node].append(Held(held.ask, choice.place))
            node = without(node, held)
        self.fleet.change(at, node)
        worth, place = best(node, ask, places(node, ask), self._policy)
        mine = Choice(worth, at, place)
        self.take(mine, ask)
        return Plan(tuple(moves), mine)
