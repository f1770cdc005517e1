"""What a RebalanceRequest needs next. Pure.

    nothing begun      have it planned, and the plan's hash approved; a plan that has changed since
                       needs another approval, and a request without one ends at its deadline
    begun              its steps, one after the other: a pod's state is put into the object store,
                       the pod is evicted, and its successor is bound where the plan says

Each stage of a step is in the object's status before the next act, and each act is by name: whoever
continues after a crash repeats at most what changes nothing.
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from kybernate.core.plans.steps import Kind
from kybernate.core.reasons import DONE, OPEN, OVER, Reasoned
from kybernate.core.requests.asked import Asked, Decision, ends, rests
from kybernate.core.requests.checkpoint import Mode
from kybernate.core.requests.evictions import STEP, continues
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from kybernate.core.requests import checkpoint
    from kybernate.core.requests.checkpoint import Target

_WAKE = "-wake"
SAVE_S = 3600.0
"""Seconds that a state may take into the object store."""
_ARRIVE_S = 900.0
"""Seconds after a state is there in which its successor has to be ready."""
_LOOK_S, _TROUBLE_S, _GLANCE_S = 2.0, 5.0, 30.0
"""Between two looks: at a step, for a plan that could not be had, at a plan that stands. A step's
CheckpointRequest has it looked at sooner, whenever that changes."""
_REPLAN_S, _SELDOM_S, _REPLAN_PART = 30.0, 600.0, 0.2
"""Between two plans of a request, at first and at last, and the part of its age between these."""
STANDING = 10
"""Requests of a namespace that have plans made before one is approved."""
_LEAVE_S = 300.0
"""Seconds for which an eviction is tried."""
_HELD_S, _HELD_PART = 0.2, 0.1
"""Seconds until an eviction that was held back is tried again, and the part of the time since the
state is there that they take: what holds it at first is that its node is yet to tell so, and
requests wait meanwhile."""


class RebalanceReason(Reasoned):
    """Reasons of the condition Complete of a RebalanceRequest."""

    QUEUED = "Queued", OPEN, "others go first; the message says which limit is reached"
    PLANNING = "Planning", OPEN, "the extender can't be asked for a plan now"
    AWAITING_APPROVAL = (
        "AwaitingApproval",
        OPEN,
        "the plan stands in status.plan; nothing is done before it is approved",
    )
    PLAN_CHANGED = (
        "PlanChanged",
        OPEN,
        "the cluster has changed, and with it the plan: that one needs an approval",
    )
    MOVING = "Moving", OPEN, "the plan's steps are carried out"
    MOVED = "Moved", DONE, "all steps are done"
    NOTHING_TO_MOVE = "NothingToMove", DONE, "there is room as it is"
    NO_PLAN = "NoPlan", OVER, "no moves within the budget do it"
    RING = "Ring", OVER, "pods would have to wait for each other's places; make a seat free first"
    STEP_FAILED = "StepFailed", OVER, "a step came to nothing; no more begin"
    DISPLACED = "Displaced", OVER, "a pod continues elsewhere than planned, as its place was taken"
    WITHDRAWN = (
        "Withdrawn",
        OVER,
        "it had not begun when its policy was gone or governed the pod no more",
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        OVER,
        "not begun within spec.deadlineSeconds, or not done so long after it began",
    )


class Stage(StrEnum):
    """How far a step is."""

    WAITING = "Waiting"
    SAVING = "Saving"
    LEAVING = "Leaving"
    ARRIVING = "Arriving"
    DONE = "Done"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan: a pod leaves `source` for `target`, or (without a source) is bound there.
    `seconds` are what it is expected to take, `size` its bytes; `successor`: the UID of the pod
    that continues."""

    kind: Kind
    namespace: str
    pod: str
    uid: str
    source: Target | None
    target: Target | None
    seconds: float = 0.0
    size: int = 0
    stage: Stage = Stage.WAITING
    successor: str = ""

    @property
    def told(self) -> str:
        """The pod, for people."""
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in their order, and what they are called: the same `hash` for the same steps."""

    hash: str
    steps: tuple[Step, ...]
    moves: int
    seconds: float
    told: str = ""

    @property
    def size(self) -> int:
        """Bytes that are moved."""
        return sum(one.size for one in self.steps if one.kind is Kind.MOVE)


@dataclass(frozen=True, slots=True)
class Status:
    """How far a request is. Times in seconds since 1970, 0 for not yet; `planned_at`: of `plan`,
    or when one was given up."""

    plan: Plan | None = None
    planned_at: float = 0.0
    began_at: float = 0.0
    ended_at: float = 0.0
    ready_at: float = 0.0
    reason: RebalanceReason | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a plan may cost; 0 seconds: any."""

    moves: int = 10
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Request(Asked):
    """A RebalanceRequest: a `pod` or all pods of a `model` that are to go to a place (`target`), a
    node to be emptied, or pods that wait to be given room. `approved`: the hash of the plan that
    may be carried out; `policy`: the UID of the CheckpointPolicy that asks for it, and approves
    what is within its budget. Its deadline counts from its creation, and from its beginning once
    that has come."""

    uid: str
    namespace: str
    name: str
    pod: str
    target: Target | None
    empty: str
    budget: Budget
    approved: str
    by: str
    created_at: float
    deadline_s: float
    keep_s: float | None
    status: Status
    policy: str = ""
    model: str = ""

    def save_s(self, now: float) -> float:
        """Seconds that a state may take into the object store which begins now: no longer than a
        node is there that is emptied within a deadline."""
        ends_at = self.status.began_at + self.deadline_s if self.empty else inf
        return max(1.0, min(SAVE_S, ends_at - now))


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod with a seat: where it is bound, empty for nowhere yet; whether it is ready, or ends."""

    node: str = ""
    group: str = ""
    ready: bool = False
    leaving: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True)
class NoPlan:
    """Why there is none. `for_now`: that may change by itself within moments."""

    why: str
    for_now: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """A request and what was seen for it. `found`: a plan of just now, None if none was asked for.
    `checkpoint`: the CheckpointRequest of the step under way; `pods` by UID; `held`: why the
    act of just now could not be done; `ahead`: older requests of its namespace that have begun
    nothing yet; `withdrawn`: why who asked for it wants it no more, in a sentence."""

    request: Request
    found: Plan | NoPlan | None = None
    checkpoint: checkpoint.Request | None = None
    pods: Mapping[str, PodSeen] = field(default_factory=dict)
    held: str = ""
    ahead: int = 0
    withdrawn: str = ""


class Act(StrEnum):
    """What to do in the world."""

    PLAN = "plan"
    SAVE = "save"
    EVICT = "evict"
    WAKE = "wake"
    REMOVE = "remove"


def decide(seen: Observed, now: float, standing: int = STANDING) -> Decision[Status, Act]:
    """What becomes of the request now, in seconds since 1970. `standing`: so many of a namespace
    have plans that nobody has approved yet."""
    request = seen.request
    if request.ended:
        return rests(request, now)
    if not request.status.began_at:
        return _unbegun(seen, now, standing)
    step = current(request)
    if step is None:
        return _over(request, RebalanceReason.MOVED, _sum_up(request.status), now)
    return _STAGES[step.stage](seen, step, now)


def current(request: Request) -> Step | None:
    """The step that is under way, or the next one."""
    plan = request.status.plan
    return next((one for one in plan.steps if one.stage is not Stage.DONE), None) if plan else None


def made_name(request: Request, step: Step) -> str:
    """The CheckpointRequest that puts the state of the step's pod away."""
    return f"{STEP}{request.uid}-{step.uid}"


def wake_name(name: str) -> str:
    """The CheckpointRequest that takes that back."""
    return f"{name}{_WAKE}"


def is_made_by(made: checkpoint.Request, uid: str) -> bool:
    """Whether the name of a CheckpointRequest is that of a step of the RebalanceRequest `uid`."""
    return made.name.startswith(f"{STEP}{uid}-")


def orphans(
    made: Iterable[checkpoint.Request], wanted: Collection[str], pods: Mapping[str, PodSeen]
) -> Iterator[tuple[checkpoint.Request, Act]]:
    """What is left of requests that are not `wanted` any more (by UID): a park that has not ended
    is taken back (REMOVE), a pod that is parked and stays so is woken (WAKE)."""
    for one in made:
        if one.mode is not Mode.EVICT or any(is_made_by(one, uid) for uid in wanted):
            continue
        if not one.ended:
            yield one, Act.REMOVE
        elif continues(one) and _stays(pods.get(one.status.pod_uid)):
            yield one, Act.WAKE


def _stays(pod: PodSeen | None) -> bool:
    return pod is not None and not pod.leaving


# --- until it begins --------------------------------------------------------------------------


def _unbegun(seen: Observed, now: float, standing: int) -> Decision[Status, Act]:
    request = seen.request
    if seen.withdrawn:
        return _over(request, RebalanceReason.WITHDRAWN, seen.withdrawn, now)
    left = request.left(now)
    if left <= 0:
        why = f"not begun within {request.deadline_s:g} s of its creation; create another"
        return _over(request, RebalanceReason.DEADLINE_EXCEEDED, why, now)
    if seen.ahead >= standing:
        why = f"{seen.ahead} older requests of the namespace wait for an approval; delete some"
        found = _open(request.status, RebalanceReason.QUEUED, why, _GLANCE_S)
    elif seen.found is None:
        found = _planned_at(seen, now)
    else:
        found = _plan(request, seen.found, now)
    return replace(found, again=min(found.again, left)) if found.again is not None else found


def _planned_at(seen: Observed, now: float) -> Decision[Status, Act]:
    """Whether a plan is asked for now. One costs the extender seconds in a large cluster: it is
    asked once there is an approval, and when pods are not where the plan has them; seldom then."""
    request, status = seen.request, seen.request.status
    if status.plan is None:
        # Not at once: the extender may see a pod there, and make the very plan that was given up.
        given_up = status.planned_at
        due = given_up + _trouble_s(request, given_up) if given_up else now
        return Decision(status, Act.PLAN) if now >= due else Decision(status, again=due - now)
    if request.approved == status.plan.hash:
        return Decision(status, Act.PLAN)
    age = now - request.created_at
    due = status.planned_at + min(max(_REPLAN_S, age * _REPLAN_PART), _SELDOM_S)
    if all(_holds(seen, step) for step in status.plan.steps):
        return Decision(status, again=_GLANCE_S)
    return Decision(status, Act.PLAN) if now >= due else Decision(status, again=due - now)


def _holds(seen: Observed, step: Step) -> bool:
    """Whether the step's pod is where the plan has it."""
    pod = seen.pods.get(step.uid)
    if pod is None or pod.leaving:
        return False
    return not pod.node if step.kind is Kind.PLACE else _is_at(pod, step.source)


def _plan(request: Request, found: Plan | NoPlan, now: float) -> Decision[Status, Act]:
    if isinstance(found, NoPlan):
        if found.for_now:
            pause = _trouble_s(request, now)
            return _open(request.status, RebalanceReason.PLANNING, found.why, pause)
        return _over(request, RebalanceReason.NO_PLAN, found.why, now)
    status = replace(request.status, plan=found, planned_at=now)
    if reason := _unfit(found, request.budget):
        return _over(request, reason, found.told, now, plan=found)
    if request.empty and found.seconds > request.deadline_s:
        late = (
            f"{found.told} That takes longer than spec.deadlineSeconds ({request.deadline_s:g} s)"
        )
        return _over(request, RebalanceReason.NO_PLAN, late, now, plan=found)
    if request.policy or request.approved == found.hash:
        begun = replace(status, began_at=now, ready_at=now + found.seconds)
        return _open(begun, RebalanceReason.MOVING, f"plan {found.hash} begins", 0.0)
    reason = RebalanceReason.AWAITING_APPROVAL
    if request.approved:
        reason = RebalanceReason.PLAN_CHANGED
    told = f"{found.told} Approve it by spec.approvedPlan: {found.hash}"
    return _open(status, reason, told, _GLANCE_S)


def _trouble_s(request: Request, now: float) -> float:
    """Seconds until a plan is asked for that could not be had, or not be begun."""
    return min(max(_TROUBLE_S, (now - request.created_at) * _REPLAN_PART), _GLANCE_S)


def _unfit(plan: Plan, budget: Budget) -> RebalanceReason | None:
    """Why the plan is none to be carried out."""
    if not plan.moves:
        return RebalanceReason.NOTHING_TO_MOVE
    if any(one.kind not in _CARRIED_OUT for one in plan.steps):
        return RebalanceReason.RING
    within = plan.moves <= budget.moves and plan.seconds <= (budget.seconds or inf)
    return None if within else RebalanceReason.NO_PLAN


_CARRIED_OUT = frozenset({Kind.MOVE, Kind.PLACE})

# --- its steps --------------------------------------------------------------------------------


def _waiting(seen: Observed, step: Step, now: float) -> Decision[Status, Act]:
    request = seen.request
    if now >= request.status.began_at + request.deadline_s:
        return _over(request, RebalanceReason.DEADLINE_EXCEEDED, _sum_up(request.status), now)
    pod = seen.pods.get(step.uid)
    if step.kind is Kind.PLACE:
        if pod is None or pod.node or pod.leaving:
            return _next(request, replace(step, stage=Stage.DONE), now)
        why = f"pod {step.told} has room, and is to be bound"
        return _open(request.status, RebalanceReason.MOVING, why, _LOOK_S)
    if pod is None or pod.leaving or not _is_at(pod, step.source):
        # Whoever approved that plan approved another cluster. The deadline is that of a request
        # which has not begun, from its creation.
        status = replace(request.status, plan=None, planned_at=now, began_at=0.0, ready_at=0.0)
        why = f"pod {step.told} is not where the plan has it; planned again"
        pause = _trouble_s(request, now)
        return _open(status, RebalanceReason.PLAN_CHANGED, why, pause)
    return _next(request, replace(step, stage=Stage.SAVING), now)


def _saving(seen: Observed, step: Step, now: float) -> Decision[Status, Act]:
    request, made = seen.request, seen.checkpoint
    if made is None:
        why = seen.held or ("" if _stays(seen.pods.get(step.uid)) else "the pod has gone")
        if why:
            return _failed(request, step, why, now)
        return Decision(request.status, Act.SAVE, _LOOK_S)
    if not made.ended:
        why = f"pod {step.told}: {made.status.message or 'its state is to be put away'}"
        return _open(request.status, RebalanceReason.MOVING, why, _LOOK_S)
    if not continues(made):
        return _failed(request, step, made.status.message, now)
    if made.status.pod_uid != step.uid:
        return _failed(request, step, "another pod has its name, and was parked; wake it", now)
    return _next(request, replace(step, stage=Stage.LEAVING), now)


def _leaving(seen: Observed, step: Step, now: float) -> Decision[Status, Act]:
    request, made = seen.request, seen.checkpoint
    if not _stays(seen.pods.get(step.uid)):
        return _next(request, replace(step, stage=Stage.ARRIVING), now)
    if made is None or now >= made.status.ended_at + _LEAVE_S:
        failed = _failed(request, step, f"it could not be evicted: {seen.held}", now)
        return replace(failed, act=Act.WAKE)
    why = f"pod {step.told} is evicted: {seen.held}" if seen.held else request.status.message
    pause = min(max(_HELD_S, (now - made.status.ended_at) * _HELD_PART), _LOOK_S)
    told = _open(request.status, RebalanceReason.MOVING, why, pause if seen.held else _LOOK_S)
    return replace(told, act=None if seen.held else Act.EVICT)


def _arriving(seen: Observed, step: Step, now: float) -> Decision[Status, Act]:
    request, made = seen.request, seen.checkpoint
    if made is None:
        return _failed(request, step, "its CheckpointRequest was deleted", now)
    pod = seen.pods.get(made.successor) if made.successor else None
    late = now >= made.status.ended_at + _ARRIVE_S
    if pod is not None and pod.node and not pod.leaving:
        followed = replace(step, successor=made.successor)
        if not _is_at(pod, step.target):
            where = f"group {pod.group} of {pod.node}"
            why = f"pod {step.told} continues in {where}: its place was taken; ask again"
            plan = _with(request.status, followed).plan
            return _over(request, RebalanceReason.DISPLACED, why, now, plan=plan)
        if pod.ready:
            return _next(request, replace(followed, stage=Stage.DONE), now)
    if late:
        return _failed(request, step, f"its successor isn't ready after {_ARRIVE_S:g} s", now)
    why = f"pod {step.told}: its successor is {'bound' if pod and pod.node else 'waited for'}"
    return _open(request.status, RebalanceReason.MOVING, why, _LOOK_S)


_STAGES = MappingProxyType(
    {
        Stage.WAITING: _waiting,
        Stage.SAVING: _saving,
        Stage.LEAVING: _leaving,
        Stage.ARRIVING: _arriving,
    }
)


def _is_at(pod: PodSeen, place: Target | None) -> bool:
    return place is not None and (pod.node, pod.group) == (place.node, place.group)


# --- answers ----------------------------------------------------------------------------------


def _with(status: Status, step: Step) -> Status:
    plan = status.plan
    assert plan is not None  # noqa: S101 - a step is of a plan
    steps = tuple(
        step if (one.kind, one.uid) == (step.kind, step.uid) else one for one in plan.steps
    )
    return replace(status, plan=replace(plan, steps=steps))


def _next(request: Request, step: Step, now: float) -> Decision[Status, Act]:
    """The step has come further; looked at again at once."""
    status = _with(request.status, step)
    status = replace(status, ready_at=_ready_at(status, now))
    why = f"pod {step.told}: {step.stage.lower()}"
    return _open(status, RebalanceReason.MOVING, why, 0.0)


def _ready_at(status: Status, now: float) -> float:
    """What is left is expected to take as much longer, or less long, as what is done did."""
    plan = status.plan
    if plan is None:
        return 0.0
    done = sum(one.seconds for one in plan.steps if one.stage is Stage.DONE)
    left = plan.seconds - done
    pace = (now - status.began_at) / done if done else 1.0
    return now + max(left, 0.0) * pace


def _failed(request: Request, step: Step, why: str, now: float) -> Decision[Status, Act]:
    told = f"pod {step.told}: {why}; {_sum_up(request.status)}"
    return _over(request, RebalanceReason.STEP_FAILED, told, now)


def _sum_up(status: Status) -> str:
    steps = status.plan.steps if status.plan else ()
    moves = [one for one in steps if one.kind is Kind.MOVE]
    done = sum(one.stage is Stage.DONE for one in moves)
    return f"{done} of {len(moves)} moves are done"


def _open(
    status: Status, reason: RebalanceReason, message: str, again: float
) -> Decision[Status, Act]:
    return Decision(replace(status, reason=reason, message=message), again=again)


def _over(
    request: Request, reason: RebalanceReason, message: str, now: float, **came: object
) -> Decision[Status, Act]:
    return ends(request, reason, message, now, ready_at=0.0, **came)
