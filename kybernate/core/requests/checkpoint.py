"""What a CheckpointRequest needs next. Pure.

    nothing pinned     look the pod up; pin its UID and node, and name the operation
    pinned             have the agent begin the operation of that name, or find it begun
    begun              follow it to its end; at the deadline, or without the request, cancel it
    lost               the pod has ended without its agent: its newest artifact is what there is

Each step is in the object's status before the next one is made, and an agent begins an operation of
one name once: so whoever continues after a crash repeats at most what changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from kybernate.core.reasons import Standing
from kybernate.core.requests.asked import Asked, Copied, Decision, copied, ends, rests, waits
from kybernate.core.requests.reasons import Reason
from kybernate.core.seat.operations import ENDED, OF_REQUEST, Kind, Progress, is_of_request
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from kybernate.core.policy.effective import Policy, PutAway
    from kybernate.types import Tier

_LONGEST_WHY = 500
_IN_LINE_S = 60.0
"""Seconds between two looks at a snapshot that waits for its turn, should nobody tell of it."""
_LEAST_S = 120.0
"""Seconds that any copy gets beyond those for its bytes."""
_SIZE = 8 << 30
"""Bytes that a copy is taken to have of which nobody tells any."""


class Mode(StrEnum):
    """What is asked for."""

    PARK = "Park"
    SNAPSHOT = "Snapshot"
    EVICT = "Evict"
    WAKE = "Wake"


KINDS: Mapping[Mode, Kind] = MappingProxyType(
    {
        Mode.PARK: Kind.PARK,
        Mode.SNAPSHOT: Kind.SAVE,
        Mode.EVICT: Kind.EVICT,
        Mode.WAKE: Kind.WAKE,
    }
)
"""The agent's word for each."""

_DONE: Mapping[Mode, Reason] = MappingProxyType(
    {
        Mode.PARK: Reason.PARKED,
        Mode.SNAPSHOT: Reason.SEALED,
        Mode.EVICT: Reason.EVICTED,
        Mode.WAKE: Reason.AWAKE,
    }
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: an artifact's name (empty for what has none), its tier, its bytes."""

    artifact: str
    tier: str
    size: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How slowly a state may be copied before that is cancelled: seconds for each GiB, and without
    any byte. KubeVirt gives migrations as long."""

    per_gib: float = 150.0
    idle: float = 150.0

    def within(self, said: PutAway) -> Pace:
        """As a policy's limits have it: never more, since others wait for so long."""
        per_gib, idle = said.per_gib or self.per_gib, said.idle or self.idle
        return Pace(min(per_gib, self.per_gib), min(idle, self.idle))

    def of(self, request: Request, policy: Policy | None) -> Pace | None:
        """For a request whose pod the policy limits; None: it may take until its deadline. `self`
        is for evictions. A snapshot has the limits of the policy that it is made for, and no
        others: for it a slow store is better waited for than given up."""
        if request.mode is Mode.EVICT:
            return self.within(policy.limits) if policy else self
        if request.mode is not Mode.SNAPSHOT or policy is None or policy.uid != request.policy:
            return None
        return _UNLIMITED.within(policy.limits)

    def stalled(self, copied: Copied, began_at: float, now: float, limit: int = 0) -> str:
        """Why what began then has taken too long, in a sentence; empty if it has not. `limit`: the
        bytes that its pod may have, whatever its agent tells; 0 if nobody knows."""
        size = min(copied.total, limit or copied.total)
        most = self.seconds(size)
        if now - began_at > most:
            # All that an agent tells of may be there, and yet nothing comes of it.
            return f"its {size} bytes took {most:.0f} s"
        if copied.done < copied.total and copied.since and now - copied.since > self.idle:
            return f"no byte came for {self.idle:g} s, {copied.done} of {copied.total} are there"
        return ""

    def seconds(self, size: int) -> float:
        """For how long so many bytes may be put away; 0 if nobody knows how many there are."""
        return _LEAST_S + self.per_gib * (size or _SIZE) / (1 << 30)


@dataclass(frozen=True, slots=True)
class Status:
    """How far a request is, as its object says. Times in seconds since 1970, 0 for not yet.
    `owner`: what makes another pod in the pod's place (`pods.Pod.succession`). `limit`: the bytes
    of memory that the pod may have, 0 if it has no limit. `scaled_up_at`: of what was scaled to
    zero, when it was scaled up again."""

    pod_uid: str = ""
    node: str = ""
    operation: str = ""
    began_at: float = 0.0
    ended_at: float = 0.0
    reason: Reason | None = None
    message: str = ""
    outcome: Outcome | None = None
    copied: Copied | None = None
    owner: str = ""
    limit: int = 0
    scaled_up_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where a successor is to be bound while it fits: a node, and a group, empty for any."""

    node: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Request(Asked):
    """A CheckpointRequest. `successor`: the UID of the pod that continues from what it evicted.
    `policy`: the UID of the CheckpointPolicy or SnapshotTemplate that has it made, empty for a
    person's. `target`: where the successor of what it evicts is to go, None for wherever.
    `deployment`: the name of the one that is scaled to zero with it, empty for any other request;
    `wanted`: somebody waits for that one's model."""

    uid: str
    namespace: str
    name: str
    pod: str
    mode: Mode
    tier: Tier | None
    by: str
    created_at: float
    deadline_s: float
    keep_s: float | None
    status: Status
    successor: str = ""
    policy: str = ""
    target: Target | None = None
    deployment: str = ""
    wanted: bool = False

    def left(self, now: float) -> float:
        """See `Asked`. Of an eviction that has begun it counts from then: no state is lost because
        others came first."""
        began = self.status.began_at if self.mode is Mode.EVICT else 0.0
        return min((began or self.created_at) - now, 0.0) + self.deadline_s

    def granted(self, now: float) -> float:
        """Seconds that its operation has if it begins now."""
        return replace(self, status=_begun(self.status, now)).left(now)

    @property
    def under_way(self) -> bool:
        """Whether an agent may have an operation of it that has not ended."""
        return bool(self.status.operation) and not self.ended

    @property
    def why(self) -> str:
        """What the agent is told, and tells in its events."""
        told = f"CheckpointRequest {self.namespace}/{self.name} of {self.by or 'nobody named'}"
        return "".join(one if one.isprintable() else "?" for one in told[:_LONGEST_WHY])


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The pod of the name. `seat`: it asks for one; `ended`: nothing of it runs any more; `owner`:
    see `Status`; `leaving`: it is being deleted; `limit`: see `Status`."""

    uid: str
    node: str
    seat: bool
    ended: bool
    owner: str = ""
    leaving: bool = False
    limit: int = 0


class Trouble(StrEnum):
    """Why an agent didn't do as it was asked."""

    UNREACHABLE = "unreachable"
    NO_SEAT = "no-seat"
    BUSY = "busy"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Problem:
    """An agent's answer that is no operation."""

    trouble: Trouble
    sentence: str


def trouble_of(*, rival: bool, again: bool) -> Trouble:
    """Of an operation that its agent has refused, why. `rival`: the seat may have another one under
    way, and `again`: a try without effect of just now was refused, too. A rival that has ended
    since the refusal shows as neither."""
    return Trouble.REFUSED if again and not rival else Trouble.BUSY


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation as its agent has it."""

    state: Progress
    sentence: str
    outcome: Outcome | None = None
    copied: Copied | None = None


@dataclass(frozen=True, slots=True)
class Remnant:
    """What remains of a pod that ended without its agent: its newest artifact in the object store,
    None if there is none. `why`: how it is known that nothing of it runs, or why nothing is left.
    `continued`: that another pod continues from it already, in a sentence; then the artifact may be
    gone since.
    """

    why: str
    outcome: Outcome | None
    continued: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """A request and what was seen for it. `pod` is None if there is none of the name. `operation`
    is None if the agent knows none of the name. `cancelled`: it was just told to cancel it.
    `waits`: why it may not begin yet, as a reason and a sentence. `left`: of an eviction, what
    there is of a pod that is lost; `unsure`: why that can't be said now, in a sentence."""

    request: Request
    pod: PodFacts | None = None
    operation: Operation | Problem | None = None
    cancelled: bool = False
    waits: tuple[Reason, str] | None = None
    left: Remnant | None = None
    unsure: str = ""


class Act(StrEnum):
    """What to do in the world."""

    BEGIN = "begin"
    CANCEL = "cancel"


PACE = Pace()
_UNLIMITED = Pace(math.inf, math.inf)


def operation_name(uid: str) -> str:
    """The operation of the request with this UID."""
    return f"{OF_REQUEST}{uid}"


def strays(names: Iterable[str], wanted: Collection[str]) -> Iterator[str]:
    """Operations of requests that want nothing any more: those that are not `wanted`, by UID."""
    return (
        name
        for name in names
        if is_of_request(name) and name.removeprefix(OF_REQUEST) not in wanted
    )


def decide(seen: Observed, now: float, pace: Pace | None = None) -> Decision[Status, Act]:
    """What becomes of the request now, in seconds since 1970. `pace`: see `Pace.of`."""
    request = seen.request
    if request.ended:
        return rests(request, now)
    if not request.status.operation:
        return _pin(seen, now)
    if isinstance(seen.operation, Operation):
        return _follow(seen, seen.operation, now, pace)
    if seen.left is not None or seen.unsure:
        return _lost(seen, seen.left, now)
    if isinstance(seen.operation, Problem):
        return _hindered(seen, seen.operation, now)
    return _unknown(seen, now)


def _pin(seen: Observed, now: float) -> Decision[Status, Act]:
    request, pod = seen.request, seen.pod
    where = f"{request.namespace}/{request.pod}"
    if pod is None:
        return _over(
            seen, Reason.POD_NOT_FOUND, f"there is no pod {where}; name one that is there", now
        )
    if pod.ended:
        return _over(seen, Reason.POD_ENDED, f"pod {where} has ended", now)
    if not pod.seat:
        why = f"pod {where} asks for no seat (kyb.ai/gpu-<n>x-seat), so nothing of it can be parked"
        return _over(seen, Reason.NO_SEAT, why, now)
    if not pod.node:
        return _open(seen, Reason.POD_NOT_BOUND, f"pod {where} is on no node yet", now)
    pinned = replace(
        request.status,
        pod_uid=pod.uid,
        owner=pod.owner,
        limit=pod.limit,
        node=pod.node,
        operation=operation_name(request.uid),
        reason=Reason.PENDING,
        message=f"the agent of node {pod.node} is asked next",
    )
    return Decision(pinned, again=0.0)


def _lost(seen: Observed, left: Remnant | None, now: float) -> Decision[Status, Act]:
    if left is None:
        why = f"the artifacts of its pod that has ended: {seen.unsure}"
        return _open(seen, Reason.PENDING, why, now)
    if left.outcome is None:
        return _over(seen, Reason.POD_ENDED, left.why, now)
    found = left.continued or f"its newest artifact is {left.outcome.artifact}"
    return _over(seen, Reason.EVICTED, f"{left.why}; {found}", now, left.outcome)


def _unknown(seen: Observed, now: float) -> Decision[Status, Act]:
    """The agent knows no operation of the name."""
    request = seen.request
    if gone := _gone(seen):
        return _over(seen, gone, "the pod went before anything was done", now)
    if request.status.began_at:
        lost = (
            f"the agent of node {request.status.node} knows operation {request.status.operation} "
            "no more; see what the pod's seat does, and ask again if need be"
        )
        return _over(seen, Reason.OPERATION_LOST, lost, now)
    return _not_begun(seen, now)


def _not_begun(seen: Observed, now: float) -> Decision[Status, Act]:
    request = seen.request
    if not _late(request, now):
        return (
            _in_line(seen, *seen.waits, now) if seen.waits else Decision(request.status, Act.BEGIN)
        )
    if request.mode is Mode.EVICT and request.status.reason in _HELD_BACK:
        return _over(seen, Reason.NOT_LET_GO, request.status.message, now)
    why = ": ".join(filter(None, ("it was not begun", request.status.message)))
    return _open(seen, Reason.PENDING, why, now)


def _in_line(seen: Observed, reason: Reason, message: str, now: float) -> Decision[Status, Act]:
    """A snapshot that others come before is looked at when its turn comes: the longer the line, the
    less its looks may take."""
    found = _open(seen, reason, message, now)
    if reason is Reason.QUEUED and seen.request.mode is Mode.SNAPSHOT:
        return replace(found, again=min(_IN_LINE_S, seen.request.left(now)))
    return found


_HELD_BACK = frozenset({Reason.DISRUPTION_BUDGET, Reason.QUEUED})


def _hindered(seen: Observed, problem: Problem, now: float) -> Decision[Status, Act]:
    if problem.trouble is Trouble.REFUSED:
        return _over(seen, Reason.REFUSED, problem.sentence, now)
    if problem.trouble is Trouble.BUSY:
        return _open(seen, Reason.SEAT_BUSY, problem.sentence, now)
    if gone := _gone(seen):
        return _over(seen, gone, f"the pod went before it was done ({problem.sentence})", now)
    reason = (
        Reason.SEAT_NOT_READY if problem.trouble is Trouble.NO_SEAT else Reason.AGENT_UNREACHABLE
    )
    return _open(seen, reason, problem.sentence, now)


def _follow(
    seen: Observed, operation: Operation, now: float, pace: Pace | None
) -> Decision[Status, Act]:
    request = seen.request
    over = operation.state in ENDED
    came = copied(request.status, operation.copied, now, over=over)
    begun = replace(_begun(request.status, now), copied=came)
    seen = replace(seen, request=replace(request, status=begun))
    if operation.state is Progress.SUCCEEDED:
        return _over(seen, _DONE[request.mode], operation.sentence, now, operation.outcome)
    if operation.state is Progress.FAILED:
        return _over(seen, Reason.FAILED, operation.sentence, now)
    stalled = ""
    if begun.copied and pace is not None:
        stalled = pace.stalled(begun.copied, begun.began_at, now, begun.limit)
    if stalled or _late(seen.request, now):
        return _cut_off(seen, operation, stalled, now)
    if operation.state is Progress.CANCELLED:
        return _over(seen, Reason.CANCELLED, operation.sentence, now)
    waits = operation.state is Progress.PENDING
    return _open(seen, Reason.WAITING if waits else Reason.RUNNING, operation.sentence, now)


def _cut_off(
    seen: Observed, operation: Operation, stalled: str, now: float
) -> Decision[Status, Act]:
    """It is cancelled before it ends."""
    if operation.state not in ENDED and not seen.cancelled:
        return Decision(seen.request.status, Act.CANCEL)
    if stalled:
        return _over(seen, Reason.STALLED, stalled, now)
    return _open(seen, Reason.RUNNING, operation.sentence, now)


def _begun(status: Status, now: float) -> Status:
    return status if status.began_at else replace(status, began_at=now)


def _gone(seen: Observed) -> Reason | None:
    """Why the pod that was pinned will never do it, if so."""
    pod = seen.pod
    if pod is None or pod.uid != seen.request.status.pod_uid:
        return Reason.POD_GONE
    return Reason.POD_ENDED if pod.ended else None


def _late(request: Request, now: float) -> bool:
    return request.left(now) <= 0


def _open(seen: Observed, reason: Reason, message: str, now: float) -> Decision[Status, Act]:
    return waits(seen.request, reason, message, now, Reason.DEADLINE_EXCEEDED)


def _over(
    seen: Observed, reason: Reason, message: str, now: float, outcome: Outcome | None = None
) -> Decision[Status, Act]:
    assert reason.standing is not Standing.RETRYABLE, reason  # noqa: S101 - a bug, if ever
    return ends(seen.request, reason, message, now, outcome=outcome)
