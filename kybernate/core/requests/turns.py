"""Which snapshots and evictions are under way, and which wait for one of them to end. Pure.

A snapshot stops its workload for a while and writes all of its memory to disks and an object store
that all namespaces share: a namespace has so many of them at a time as the controller is told. What
puts a state away so that its pod may go (plans, preemption, drains, people) does the like, and has
limits of a node and of the cluster: a drain of ten nodes must not fill the network. Of pods that a
CheckpointPolicy governs this may let fewer go at a time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

from kybernate.core.requests.checkpoint import PACE, Mode
from kybernate.core.requests.evictions import lost_pod
from kybernate.core.requests.reasons import Reason
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.core.policy.effective import Policy
    from kybernate.core.requests.checkpoint import Pace, Request, Status

STUCK = frozenset(
    {Reason.POD_NOT_BOUND, Reason.SEAT_NOT_READY, Reason.SEAT_BUSY, Reason.DISRUPTION_BUDGET}
)
"""Before it has begun, such a request takes nobody's turn: it may be long until it can begin."""
WAITS_S = 150.0
"""Seconds for which one takes a turn whose agent has it and can't begin: its seat may be one that
can't be parked, for as long as its owner likes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many states may be put away at a time, of a node and in the cluster. KubeVirt's. `pace`:
    how slowly one may be and still count."""

    of_node: int = 2
    at_once: int = 5
    pace: Pace = PACE

    def hindrance(self, node: str, under_way: Counter[str]) -> str:
        """Why no state of the node may be put away now, given how many are by their nodes, in a
        sentence; empty if one may."""
        if under_way[node] >= self.of_node:
            return f"{self.of_node} states of node {node} are put away, as many as may at a time"
        if under_way.total() >= self.at_once:
            return f"{self.at_once} states are put away, as many as may at a time in the cluster"
        return ""


def takes_turn(one: Request, now: float, pace: Pace = PACE) -> bool:
    """Whether an eviction is under way, or is as soon as there is room, at `now` in seconds since
    1970."""
    if one.ended or lost_pod(one):
        return False
    if one.status.began_at:
        return _moves(one.status, now, pace)
    return one.status.reason not in STUCK


def _moves(status: Status, now: float, pace: Pace) -> bool:
    """Whether there is evidence that what has begun is still put away: its agent answers, and it
    has not taken longer than the pod's own memory can."""
    copied = status.copied
    ago = now - status.began_at
    if status.reason is Reason.WAITING:
        return ago <= WAITS_S
    if status.reason is Reason.AGENT_UNREACHABLE:
        return now - max(status.began_at, copied.since if copied else 0.0) <= pace.idle
    size = status.limit or (copied.total if copied else 0)
    return ago <= pace.seconds(size)


def no_policy(_: Request) -> Policy | None:
    """Nothing governs the pod of any request."""


def eviction_waits(
    request: Request,
    every: Iterable[Request],
    limits: Limits,
    now: float,
    governing: Callable[[Request], Policy | None] = no_policy,
) -> str:
    """Why a request of mode Evict has to wait for others of `every` one, in a sentence; empty if it
    may begin. What it waits for is chosen as for snapshots. A pod that is lost waits for nobody:
    nothing of it is put away any more. `governing`: by which policy a request's pod is."""
    if lost_pod(request):
        return ""
    turns = (one for one in every if takes_turn(one, now, limits.pace))
    counted = (one for one in turns if _counts(one, request))
    under_way, of_policy = Counter[str](), Counter[str]()
    for one in sorted(counted, key=_order):
        if one.uid == request.uid or _order(one) > _order(request):
            break
        # One that waits for its own node, or its own policy, holds up no other.
        node, policy = one.status.node, governing(one)
        waits = _beyond(policy, of_policy) or limits.hindrance(node, under_way)
        if one.status.began_at or not waits:
            under_way[node] += 1
            of_policy[policy.uid if policy else ""] += 1
    why = _beyond(governing(request), of_policy)
    return why or limits.hindrance(request.status.node, under_way)


def _beyond(policy: Policy | None, under_way: Counter[str]) -> str:
    most = policy.limits.parallel if policy else None
    if policy is None or most is None or under_way[policy.uid] < most:
        return ""
    return f"{most} states are put away, as many as CheckpointPolicy {policy.name} lets at a time"


def has_turn(request: Request, every: Iterable[Request], most: int) -> bool:
    """Whether the request may begin, of `every` one of its namespace, of which `most` snapshots may
    be under way. Those that have begun come first, then the oldest: whoever asks at the same time
    about another one counts alike, so that there are never more."""
    if request.mode is not Mode.SNAPSHOT:
        return True
    before = (one for one in every if one.uid != request.uid and _counts(one, request))
    return sum(_order(one) < _order(request) for one in before) < most


def may_begin(every: Iterable[Request], most: int) -> list[Request]:
    """The snapshots, of `every` one of a namespace, whose turn it is now: the oldest of those that
    wait, as many as there is room for. Of those whose agent is away it has none."""
    open_ = [one for one in every if one.mode is Mode.SNAPSHOT and not one.ended]
    begun = sum(bool(one.status.began_at) for one in open_)
    wait = (one for one in open_ if not one.status.began_at and _may_wait(one.status))
    return heapq.nsmallest(most - begun, wait, key=_order) if begun < most else []


def _may_wait(status: Status) -> bool:
    return bool(status.operation) and status.reason not in _ELSEWHERE


_ELSEWHERE = STUCK | {Reason.AGENT_UNREACHABLE}
"""What such a request waits for is no turn."""


def _counts(one: Request, request: Request) -> bool:
    status = one.status
    if one.mode is not request.mode or one.ended or not status.operation:
        return False
    if status.began_at:
        return True
    if status.reason is Reason.AGENT_UNREACHABLE:
        # Once that agent is back, all that waited for it can begin.
        return status.node == request.status.node
    return status.reason not in STUCK


def _order(one: Request) -> tuple[bool, float, str]:
    return not one.status.began_at, one.created_at, one.uid
