"""What is done for a pod that waits for a seat which less important pods hold. Pure.

    it has waited for a while     the extender is asked whose seats it is to get
    each of these pods            its state is put into the object store (a CheckpointRequest), then
                                  the pod is evicted, and whoever made it makes another one
    it isn't bound all the same   others make room again, later each time, and an event says so
    it is bound, or gone          what is under way is taken back, and who is still there is woken

The other pod waits for a seat like any other, and continues from the state. All that is remembered
are the CheckpointRequests, by their names: whoever continues after a crash repeats what changes
nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING

from kybernate.core.plans.steps import Kind
from kybernate.core.requests.evictions import PREEMPTED, ROOM_S, continues
from kybernate.core.requests.rebalance import NoPlan, Plan
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kybernate.core.requests import checkpoint
    from kybernate.core.requests.rebalance import PodSeen, Step
    from kybernate.core.requests.turns import Limits

KEPT_S = 7 * 86_400
"""Seconds for which such a request is kept: the other pod may have to wait for long."""
SPARED_S = 600.0
"""Seconds for which a pod is spared whose state could not be put away."""
_LEAVE_S = 300.0
"""Seconds for which an eviction is tried."""
_LOOK_S, _REPLAN_S, _SELDOM_S, _REPLAN_PART = 2.0, 15.0, 300.0, 0.2
"""Between two looks; between two plans, at first and at last, and the part of the time that the pod
has waited that it is between these."""
_LONGEST_S = 86_400.0
"""Seconds after which others make room once more, however often it was in vain."""
_LEAST_S, _SECONDS_PER_GIB, _MOST_S = 120.0, 150.0, 3600.0
"""How long a state may take into the object store. KubeVirt gives a GiB as long."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A pod with no node yet. `since`: when the scheduler last began to find none for it, in
    seconds since 1970; None if it has not said so."""

    uid: str
    namespace: str
    name: str
    priority: int
    since: float | None

    @property
    def told(self) -> str:
        """The pod, for people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Observed:
    """A pod that waits, and what was seen for it. `made`: all requests of this kind, whoever waits;
    `pods` by UID; `found`: a plan of just now, None if none was asked for; `others`: evictions that
    have not ended and are not of this kind."""

    waiter: Waiter
    made: tuple[checkpoint.Request, ...] = ()
    pods: Mapping[str, PodSeen] = field(default_factory=dict)
    found: Plan | NoPlan | None = None
    others: tuple[checkpoint.Request, ...] = ()


class Act(StrEnum):
    """What to do in the world."""

    SAVE = "save"
    EVICT = "evict"
    WAKE = "wake"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Deed:
    """One act: SAVE for a step of the plan, any other one for a request."""

    act: Act
    step: Step | None = None
    request: checkpoint.Request | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and in how many seconds to look again. With `plan` the extender is asked
    first, for a plan in which the pods `spared`, by UID, stay. `in_vain`: so often have others made
    room, and nobody does so now."""

    deeds: tuple[Deed, ...] = ()
    again: float | None = None
    plan: bool = False
    spared: frozenset[str] = frozenset()
    in_vain: int = 0


def made_name(waiter: str, victim: str) -> str:
    """The request that puts the state of the pod `victim` away for the `waiter`, by UIDs."""
    return f"{PREEMPTED}{waiter}-{victim}"


def wake_name(request: checkpoint.Request) -> str:
    """The request that takes this one back. It bears this one's UID: a pod may make room for the
    same waiter once more, and is woken then even while the first such request is kept."""
    return f"{PREEMPTED}wake-{request.uid}"


def victim_of(waiter: str, name: str) -> str:
    """The UID of the pod that a request of this name is about; empty if another pod waits."""
    before = made_name(waiter, "")
    return name.removeprefix(before) if name.startswith(before) else ""


def save_seconds(size: int) -> int:
    """How long so many bytes may take into the object store."""
    return round(min(_MOST_S, _LEAST_S + _SECONDS_PER_GIB * size / (1 << 30)))


def decide(seen: Observed, now: float, patience: float, limits: Limits) -> Decision:
    """What is done for the pod now, in seconds since 1970. Nothing in its first `patience` seconds;
    so many states are put away at a time as the `limits` allow, whoever waits."""
    waiter = seen.waiter
    mine = [one for one in seen.made if victim_of(waiter.uid, one.name)]
    deeds, waits, spared = _followed(seen, mine, now)
    if waits or waiter.since is None:
        return Decision(deeds, _LOOK_S if waits else None)
    if (left := waiter.since + patience - now) > 0:
        return Decision(deeds, left)
    rounds, kept_until, next_at = _rounds(seen, mine)
    if kept_until <= now < next_at:
        return Decision(deeds, next_at - now, in_vain=rounds)
    again = min(max(_REPLAN_S, (now - waiter.since) * _REPLAN_PART), _SELDOM_S)
    if seen.found is None:
        spared |= _others(seen, now)
        return Decision(deeds, again, plan=True, spared=frozenset(spared))
    new = () if isinstance(seen.found, NoPlan) else _saved(seen, seen.found, limits)
    return Decision((*deeds, *new), _LOOK_S if new else again)


def _rounds(seen: Observed, mine: Iterable[checkpoint.Request]) -> tuple[int, float, float]:
    """How often others made room for the pod, until when it is kept (s since 1970), and when they
    may do so again: later each time, for what it lacks may be something else than a seat. Those
    who go while the room of others is kept go for the same plan."""
    rounds, kept_until = 0, 0.0
    pods = seen.pods
    gone = (one for one in mine if continues(one) and not _stays(pods.get(one.status.pod_uid)))
    for one in sorted(gone, key=lambda one: one.status.ended_at):
        rounds += one.created_at >= kept_until
        kept_until = one.status.ended_at + ROOM_S
    pause = min(ROOM_S * 2.0 ** min(rounds, 10), _LONGEST_S)
    return rounds, kept_until, kept_until - ROOM_S + pause


def orphans(
    made: Iterable[checkpoint.Request],
    waiting: Iterable[str],
    pods: Mapping[str, PodSeen],
) -> Iterator[Deed]:
    """What is taken back of requests for which nobody waits any more (`waiting`, by UID): a pod
    that is parked for one and stays is woken, and only those stay from which another pod
    continues."""
    wanted = tuple(made_name(uid, "") for uid in waiting)
    for one in made:
        if one.name.startswith(wanted):
            continue
        put = continues(one)
        if put and not _stays(pods.get(one.status.pod_uid)):
            continue
        if put:
            yield Deed(Act.WAKE, request=one)
        yield Deed(Act.REMOVE, request=one)


def _followed(
    seen: Observed, mine: Iterable[checkpoint.Request], now: float
) -> tuple[tuple[Deed, ...], bool, set[str]]:
    """What those need that were begun for it, whether they are waited for, and who is spared."""
    deeds: list[Deed] = []
    waits, spared = False, set[str]()
    for one in mine:
        since, pod = now - one.status.ended_at, seen.pods.get(one.status.pod_uid)
        if not one.ended:
            waits = True
        elif continues(one) and not _stays(pod):
            waits = waits or pod is not None
        elif continues(one) and since < _LEAVE_S:
            deeds.append(Deed(Act.EVICT, request=one))
            waits = True
        elif since < _LEAVE_S + SPARED_S:
            spared.add(victim_of(seen.waiter.uid, one.name))
            if continues(one):
                deeds.append(Deed(Act.WAKE, request=one))
        else:
            # It may be tried again, by the same name.
            deeds.append(Deed(Act.REMOVE, request=one))
            waits = True
    return tuple(deeds), waits, spared


def _others(seen: Observed, now: float) -> set[str]:
    """Pods whose seats others are to get."""
    theirs = [one for one in seen.made if not victim_of(seen.waiter.uid, one.name)]
    return {
        one.status.pod_uid
        for one in theirs
        if not one.ended or now - one.status.ended_at < _LEAVE_S
    }


def _saved(seen: Observed, plan: Plan, limits: Limits) -> tuple[Deed, ...]:
    """Whose state is put away now. Who is to be killed is deleted by the scheduler."""
    open_ = (one for one in (*seen.made, *seen.others) if not one.ended)
    under_way = Counter(one.status.node for one in open_)
    found: list[Deed] = []
    for step in plan.steps:
        if step.kind is not Kind.SUSPEND or step.source is None:
            continue
        node = step.source.node
        if not limits.hindrance(node, under_way) and _stays(seen.pods.get(step.uid)):
            found.append(Deed(Act.SAVE, step=step))
            under_way[node] += 1
    return tuple(found)


def _stays(pod: PodSeen | None) -> bool:
    return pod is not None and not pod.leaving
