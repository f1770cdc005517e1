"""Which pod of a CheckpointPolicy is to leave a busy GPU group for a free one of its node. Pure.

The load of a GPU is the part of about the last quarter of an hour in which the seats that use it
served requests. A seat serves no more when another one comes to its GPUs, and no less when one
leaves them. So under the same requests no pod returns until others have moved: it left since the
others of its group were busier than those of the other group, by a margin, and they are so all the
more without it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.reasons import DONE, OPEN, Reasoned
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_MARGIN = 0.2
"""What a move must better the load by, as a part of the load from which on pods move."""
_SETTLES_S = 1e-6


class BalanceReason(Reasoned):
    """Reasons of the condition Balanced of a CheckpointPolicy."""

    EVEN = "Even", DONE, "no GPU of its pods is busier than spec.rebalance.above"
    MOVING = "Moving", OPEN, "a RebalanceRequest moves a pod to a group that is less busy"
    SETTLING = "Settling", OPEN, "a pod has moved less than spec.rebalance.every ago"
    NO_BETTER_PLACE = (
        "NoBetterPlace",
        OPEN,
        "a GPU is busier, and no move of one of its pods betters it",
    )
    REFUSED = "Refused", OPEN, "a move can't be asked for; the message says why"


@dataclass(frozen=True, slots=True)
class Rule:
    """When pods move: from a load of `above` on, one in `every` seconds at most on a node and for a
    policy, and each for so many `seconds` at most, 0 for any."""

    above: float
    every: float
    seconds: int = 0

    def slot(self, now: float) -> int:
        """The number of this moment's interval: a policy asks for one move in each."""
        return int(now // max(self.every, _SETTLES_S))


class Group(NamedTuple):
    """A group of GPUs."""

    name: str
    resource: str
    gpus: frozenset[str]
    seats: int
    slots: int = 1


class Use(NamedTuple):
    """A seat's use of its group: the part of the time in which it served, and its bytes."""

    uid: str
    group: str
    busy: float
    size: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What a node tells of its groups and of the seats on them."""

    groups: tuple[Group, ...] = ()
    uses: tuple[Use, ...] = ()


class Tried(NamedTuple):
    """A move that a policy has asked for. `at`: its end, 0 while it is under way or may yet begin;
    `began`: it was more than asked for."""

    pod: str
    policy: str
    node: str
    at: float
    failed: bool = False
    began: bool = True


class Pod(NamedTuple):
    """A pod that may move."""

    uid: str
    name: str
    node: str


class Move(NamedTuple):
    """A pod that is to move within its node, and the loads that say why: of its group now, and of
    the busier one of both groups afterwards."""

    pod: Pod
    source: str
    target: str
    before: float
    after: float

    @property
    def told(self) -> str:
        """In a sentence."""
        return (
            f"group {self.source} of {self.pod.node} is busy {self.before:.0%} of the time; pod "
            f"{self.pod.name} moves to group {self.target}, after which {self.after:.0%} is the "
            "most"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is found, in a sentence; what is to move, None for nothing; when to look again, in
    seconds."""

    reason: BalanceReason
    message: str
    move: Move | None = None
    again: float = math.inf


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known: a policy's pods that may move, what nodes tell, and moves that were asked for
    by this and other policies and are remembered. `policy`: its UID."""

    policy: str
    pods: Sequence[Pod]
    loads: Mapping[str, Load]
    tried: Collection[Tried] = field(default=())


class _Node:
    """What a node tells, looked through once for all its pods: it may name hundreds of groups."""

    def __init__(self, load: Load) -> None:
        self.groups = {one.name: one for one in load.groups}
        self.uses = {one.uid: one for one in load.uses if one.group in self.groups}
        self.taken = Counter(one.group for one in load.uses)
        self.busy = defaultdict[str, float](float)
        """How busy each GPU is."""
        for use in load.uses:
            if (group := self.groups.get(use.group)) is not None:
                for gpu in group.gpus:
                    self.busy[gpu] += use.busy / max(group.slots, 1)

    def most(self, group: Group) -> float:
        """How busy the busiest GPU of a group is."""
        return max((self.busy[gpu] for gpu in group.gpus), default=0.0)


def balance(rule: Rule, scene: Scene, now: float) -> Verdict:
    """Which pod is to move now (in seconds since 1970)."""
    if own := next((one for one in scene.tried if _is_own(one, scene) and not one.at), None):
        return Verdict(BalanceReason.MOVING, f"pod {own.pod} moves to another group")
    last = max((one.at for one in scene.tried if _is_own(one, scene)), default=0.0)
    nodes = {name: _Node(load) for name, load in scene.loads.items()}
    busy = [one for one in _busy(scene, nodes) if one[1] >= rule.above]
    if not busy:
        return Verdict(BalanceReason.EVEN, BalanceReason.EVEN.told)
    if (left := last + rule.every - now) > 0 and last:
        return _settling(left)
    free, waits = _free_nodes(rule, scene, now)
    there = [(pod, nodes[pod.node]) for pod, _ in busy if pod.node in free]
    moves = [move for pod, node in there for move in _moves(rule, scene, pod, node)]
    if moves:
        best = min(moves, key=lambda one: (one[0].after, one[1], one[0].pod.uid, one[0].target))
        return Verdict(BalanceReason.MOVING, best[0].told, best[0])
    if waits:
        return _settling(waits)
    why = f"{BalanceReason.NO_BETTER_PLACE.told} by {rule.above * _MARGIN:.0%}"
    return Verdict(BalanceReason.NO_BETTER_PLACE, why)


def _settling(left: float) -> Verdict:
    why = BalanceReason.SETTLING.told
    return Verdict(BalanceReason.SETTLING, why, again=left)


def _is_own(one: Tried, scene: Scene) -> bool:
    return one.policy == scene.policy


def _busy(scene: Scene, nodes: Mapping[str, _Node]) -> Iterator[tuple[Pod, float]]:
    """The pods that may move, each with the load of the busiest of its GPUs."""
    for pod in scene.pods:
        node = nodes.get(pod.node)
        if node is not None and (use := node.uses.get(pod.uid)) is not None:
            yield pod, node.most(node.groups[use.group])


def _free_nodes(rule: Rule, scene: Scene, now: float) -> tuple[set[str], float]:
    """Nodes on which no move has been for `every`; seconds until the next one is free, else 0."""
    nodes = {one.node for one in scene.pods}
    waits: dict[str, float] = {}
    for one in scene.tried:
        if one.at and not one.began:
            continue  # nothing has moved
        left = one.at + rule.every - now if one.at else rule.every
        if one.node in nodes and left > 0:
            waits[one.node] = max(left, waits.get(one.node, 0.0))
    return nodes - set(waits), min(waits.values(), default=0.0)


def _stays(scene: Scene, pod: Pod) -> bool:
    """Whether its move was tried and came to nothing: begun for whomever, or asked for by this
    policy, which would ask for the same one each time."""
    return any(
        one.failed and (one.began or _is_own(one, scene))
        for one in scene.tried
        if (one.pod, one.node) == (pod.name, pod.node)
    )


def _moves(rule: Rule, scene: Scene, pod: Pod, node: _Node) -> Iterator[tuple[Move, int]]:
    """The moves of a pod that better the load by the margin, each with the bytes that it costs."""
    if _stays(scene, pod):
        return
    use = node.uses[pod.uid]
    own = node.groups[use.group]
    before, share = node.most(own), use.busy / max(own.slots, 1)
    for group in node.groups.values():
        full = node.taken[group.name] >= group.seats
        if group.resource != own.resource or group.gpus & own.gpus or full:
            continue
        there = node.most(group) + use.busy / max(group.slots, 1)
        after = max(before - share, there)
        if after + rule.above * _MARGIN <= before:
            yield Move(pod, own.name, group.name, before, after), use.size
