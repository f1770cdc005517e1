"""When a Deployment is scaled to zero, and back: the last step of a policy's idle times. Pure.

    all pods rest in the object store     a request for each (`ASK`): it stays there, and parked
    all requests are done                 the Deployment has no replicas any more (`DOWN`)
    somebody waits for its model          as many as before (`UP`); each continues from a state
    its pods came, and it isn't written   that it was scaled up is written down (`NOTE`)
    a pod rests no longer                 the others are woken, as if nothing had been (`BACK`)

All of it is read from pods, GPUNodes and the requests themselves, so whoever continues after a
crash repeats at most what changes nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.requests.reasons import Reason
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kybernate.core.requests.checkpoint import Request

ZERO = "zero-"
"""Before a pod's UID: the name of its request."""
KEPT_S = 3600.0
"""Seconds for which a request is kept that nothing waits for any more."""


class Replica(NamedTuple):
    """A pod with a seat, of a ReplicaSet. `since`: when it came to rest in the object store, in
    seconds since 1970, infinite if it doesn't; `idle`: seconds of rest after which its policy has
    the Deployment scaled to zero, infinite for never; `leaving`: it is being deleted."""

    uid: str
    name: str
    owner: str
    owner_name: str
    model: str
    since: float = math.inf
    idle: float = math.inf
    leaving: bool = False

    @property
    def due_at(self) -> float:
        """When it has rested long enough."""
        return self.since + self.idle


class Rest(NamedTuple):
    """A request to make for a pod of a Deployment."""

    name: str
    uid: str
    model: str
    deployment: str
    deployment_uid: str

    @property
    def request(self) -> str:
        """Its name."""
        return f"{ZERO}{self.uid}"


class Act(StrEnum):
    """What to do."""

    ASK = "ask"
    DOWN = "down"
    UP = "up"
    NOTE = "note"
    BACK = "back"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Step:
    """One act. `replicas`: whose requests are to be made; `requests`: those that it is about."""

    act: Act
    replicas: tuple[Replica, ...] = ()
    requests: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and in how many seconds to look again at the latest."""

    steps: tuple[Step, ...] = ()
    again: float = math.inf


def back(request: Request) -> str:
    """The name of the request that takes this one back. It bears this one's UID: the pod may be
    asked again, and taken back, while the first such request is kept."""
    return f"{ZERO}back-{request.uid}"


def is_last_step(request: Request) -> bool:
    """Whether it is one of a Deployment's that is scaled to zero."""
    return bool(request.deployment) and request.name == f"{ZERO}{request.name.removeprefix(ZERO)}"


def plan(replicas: Iterable[Replica], requests: Iterable[Request], now: float) -> Plan:
    """What to do in a namespace with these pods and requests, `now` in seconds since 1970."""
    by_owner: dict[str, list[Replica]] = defaultdict(list)
    for one in replicas:
        by_owner[one.owner].append(one)
    asked: dict[str, list[Request]] = defaultdict(list)
    of_pod = {one.uid: one.owner for those in by_owner.values() for one in those}
    for request in requests:
        if is_last_step(request):
            uid = request.name.removeprefix(ZERO)
            asked[of_pod.get(uid, request.status.owner)].append(request)
    steps: list[Step] = []
    again = math.inf
    for owner in sorted({*by_owner, *asked}):
        found = _plan(by_owner[owner], asked[owner], now)
        steps += found.steps
        again = min(again, found.again)
    return Plan(tuple(steps), again)


def _plan(those: Sequence[Replica], asked: Sequence[Request], now: float) -> Plan:
    """Of one ReplicaSet."""
    there = [one for one in those if not one.leaving]
    names = {f"{ZERO}{one.uid}" for one in there}
    mine = [one for one in asked if one.name in names]
    came = _came([one for one in asked if one not in mine]) if len(mine) < len(there) else ()
    old, again = _over([one for one in asked if one not in mine and one not in came], now)
    steps = [Step(Act.REMOVE, requests=old)] if old else []
    if not there:
        waits = _wanted_last(filter(sleeps, asked))
        if any(one.wanted for one in waits):
            steps.append(Step(Act.UP, requests=waits))
        return Plan(tuple(steps), again)
    if came:
        steps.append(Step(Act.NOTE, requests=came))
    due = max(one.due_at for one in there)
    failed = [one for one in mine if _failed(one)]
    if due > now or failed:
        # One that failed stays for a while: else it would be made again at once.
        if undone := tuple(one for one in mine if one not in failed):
            steps.append(Step(Act.BACK, requests=undone))
        failed_before, left = _over(failed, now)
        if failed_before:
            steps.append(Step(Act.REMOVE, requests=failed_before))
        return Plan(tuple(steps), min(again, left, due - now if due > now else math.inf))
    known = {one.name for one in mine}
    new = tuple(one for one in there if f"{ZERO}{one.uid}" not in known)
    if new:
        steps.append(Step(Act.ASK, new))
    elif all(is_put(one) for one in mine):
        steps.append(Step(Act.DOWN, tuple(there), tuple(mine)))
    return Plan(tuple(steps), again)


def _wanted_last(requests: Iterable[Request]) -> tuple[Request, ...]:
    """In the order in which it is written that they are scaled up: until it is of those that are
    wanted, a controller that follows one which was killed finds that the others' are to be."""
    return tuple(sorted(requests, key=lambda one: bool(one.wanted)))


def _came(gone: Iterable[Request]) -> tuple[Request, ...]:
    """Of requests whose pods have gone, where a pod is there that has none: those of a Deployment
    that was scaled up for them by a controller that was killed before it wrote so."""
    put = [one for one in gone if is_put(one) and not one.status.scaled_up_at]
    return _wanted_last(put) if any(one.wanted for one in put) else ()


def is_put(request: Request) -> bool:
    """Whether its pod's state is where it waits for another pod."""
    return request.status.reason is Reason.EVICTED


def sleeps(request: Request) -> bool:
    """Whether its pod is to come again once somebody wants it."""
    return is_put(request) and not request.successor and not request.status.scaled_up_at


def _failed(request: Request) -> bool:
    return request.ended and not is_put(request)


def _over(gone: Iterable[Request], now: float) -> tuple[tuple[Request, ...], float]:
    """Of requests whose pods have gone: those that nothing waits for, and when to look again."""
    old, again = [], math.inf
    for one in gone:
        if not one.ended or sleeps(one):
            continue
        left = max(one.status.ended_at, one.status.scaled_up_at) + KEPT_S - now
        if left <= 0:
            old.append(one)
        else:
            again = min(again, left)
    return tuple(old), again
