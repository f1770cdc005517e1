"""Does for each gang what is next: plan, write the plan into its pods, lift their gates, take back.

`kybernate.core.gangs.gang` decides what that is. One thread, and only in the process that may bind.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol

from extender.bind.events import GANG_PLANNED, GANG_WAITING
from extender.gangs.gangs import key_of
from extender.gangs.members import hold_patch, lift_patch
from kybernate import keys
from kybernate.core.gangs.gang import Act, PlannedSeat, Step, in_turn, judge, names
from kybernate.core.gangs.gangplan import Limits, plan
from kybernate.dataclass import dataclass
from kybernate.errors import KybernateError
from kybernate.lib.rounds import rounds_blocking

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from extender.gangs.gangs import Gangs, Key
    from extender.gangs.rendezvous import Rendezvous
    from extender.state.snapshot import Snapshot
    from kybernate.core.gangs.gang import Member
    from kybernate.core.ledger.ledger import NodeView
    from kybernate.core.placement import Demand
    from kybernate.runtime.lead import Fence
    from kybernate.types import Group, NodeName, PodRef

    Json = dict[str, Any]
    Groups = tuple[Group, ...]

log = logging.getLogger(__name__)

LEAST_S = 0.05
"""Seconds between two looks at gangs at least: their pods are created one by one."""

POLL_S = 1.0
"""Seconds after which gangs are looked at although nothing was heard of them."""

SHARE = 5.0
"""Planning that took so long is rested from so many times as long: the verbs need the processor."""

BUDGET_S = 0.5
"""Seconds of planning after which the other gangs have to wait for the next look."""

REST_S, LONGEST_REST_S = 1.0, 300.0
"""Seconds until a gang whose plan fell through is planned again; doubled each time, up to 5 min."""

REMIND_S, LONGEST_REMIND_S = 0.5, 60.0
"""Seconds until the scheduler is to have asked about a gang's pods; if it has not, it is told to
try them, and doubled is the time until it is told again. It drops a change of a pod's annotations
that comes while it is trying the pod, and would come back to that pod after five minutes."""

AVOID_S, LONGEST_AVOID_S = 300.0, 1200.0
"""Seconds for which a node gets no more of a gang's pods than the scheduler had there at once;
doubled with each plan that falls through, so that all nodes can be tried before the first counts
again."""


class Pods(Protocol):
    """How pods are changed. Errors are those of `kybernate.adapters.k8s.Api`."""

    def patch(self, pod: PodRef, body: Json, kind: str) -> Json:
        """Patch a pod, and return it as it is then."""
        ...


@dataclass(frozen=True, slots=True)
class Means:
    """What gangs are planned with.

    `clock` gives seconds of any steady clock, `wall` those since 1970. `tell` writes an event about
    a pod: reason and sentence. `nudge` has the scheduler try waiting pods again, and may raise
    KybernateError. A planned seat is held for `hold_s` seconds.
    """

    snapshot: Snapshot
    pods: Pods
    fence: Fence
    meeting: Rendezvous
    clock: Callable[[], float]
    wall: Callable[[], float]
    tell: Callable[[PodRef, str, str], None]
    nudge: Callable[[], None]
    hold_s: float


@dataclass(slots=True)
class _Past:
    """How a gang's plans went: `failed` in a row, no new one before `rest_until`.

    `asking` says that the next one waits for what the scheduler offers each pod. `most` is how many
    of its pods a node may get, and until when that counts. `tried` is when seats were last looked
    for. The scheduler was reminded of its pods `reminds` times, and is again at `remind_at`. Times
    are the steady clock's. All of it may be lost.
    """

    failed: int = 0
    asking: bool = False
    tried: float = -math.inf
    rest_until: float = -math.inf
    reminds: int = 0
    remind_at: float = math.inf
    most: dict[NodeName, tuple[int, float]] = field(default_factory=dict)


class GangPlanner:
    """Plans gangs, and lets go of them again."""

    def __init__(self, gangs: Gangs, means: Means) -> None:
        self._gangs = gangs
        self._with = means
        self._past: dict[Key, _Past] = {}
        self._plan_after = -math.inf
        self._plan_until = math.inf

    def run(self, closed: Callable[[], str | None], stopping: threading.Event) -> None:
        """Tick whenever something is heard of a gang, and now and then, until told to stop.

        Nothing is done while `closed` gives a reason.
        """

        def look() -> None:
            self._gangs.changed.wait(POLL_S)
            if closed() is None:
                self.tick()

        rounds_blocking(look, stopping, LEAST_S, "looking at gangs")

    def tick(self) -> None:
        """Do for each gang what is next, if this process may."""
        self._gangs.changed.clear()
        self._gangs.hold_all()
        gangs = self._gangs.all()
        for key in (self._past.keys() | self._gangs.explained()) - gangs.keys():
            self._forget(key)
        began = self._with.clock()
        self._plan_until = began + BUDGET_S
        for members in sorted(in_turn(gangs.values()), key=self._turn):
            try:
                self._advance(key_of(members[0]), members)
            except KybernateError as error:
                log.warning("gang %s/%s: %s", *key_of(members[0]), error)
        ended = self._with.clock()
        if began >= self._plan_after:
            self._plan_after = ended + SHARE * (ended - began)

    def _turn(self, members: Sequence[Member]) -> tuple[int, float]:
        """Highest priority first, and of those whoever had to wait for longest."""
        past = self._past.get(key_of(members[0]), _Past())
        return -max(member.priority for member in members), past.tried

    def _advance(self, key: Key, members: Sequence[Member]) -> None:
        step = self._refused(members) or judge(members, self._with.wall(), self._gangs.stands)
        if step.act is Act.NOTHING:
            self._forget(key)
        elif step.act is Act.WAIT:
            self._say(key, members, step.reason)
            self._remind(key, self._unheard(members))
        elif step.act is Act.PLAN:
            self._plan(key, members)
        elif not self._may():
            return
        elif step.act is Act.LIFT:
            self._lift(key, step)
        else:
            self._release(key, step)

    def _refused(self, members: Sequence[Member]) -> Step | None:
        """A plan is over once the scheduler doesn't have one of its pods where it should be."""
        planned = tuple(one for one in members if one.node is None and one.seat is not None)
        refused = [one for one in planned if self._gangs.offers.refused(one.pod.uid)]
        if not refused:
            return None
        nodes = ", ".join(sorted({one.seat.node for one in refused if one.seat}))
        reason = (
            f"the scheduler does not have {names(refused)} on {nodes}, for CPU, memory, taints, "
            "affinity or volumes; other nodes are tried"
        )
        return Step(Act.RELEASE, planned, reason)

    def _may(self) -> bool:
        """Whether it is for this process to change pods."""
        try:
            self._with.fence.check()
        except KybernateError as error:
            log.debug("gangs are somebody else's: %s", error)
            return False
        return True

    def _plan(self, key: Key, members: Sequence[Member]) -> None:
        now, past = self._with.clock(), self._past.setdefault(key, _Past())
        late = now >= self._plan_until
        if late or now < max(self._plan_after, past.rest_until) or not self._may():
            return
        past.tried = now
        unasked = self._unasked(members) if past.asking else []
        if unasked:
            self._say(key, members, f"the scheduler finds no node at all for {names(unasked)}")
            self._remind(key, unasked)
            return
        members = [self._expecting(member) for member in members]
        known = self._known(members)
        policies = self._with.snapshot.policy
        limits = self._limits(past, members)
        found = plan(members, self._nodes(members, known), policies, limits, known)
        if not found.seats:
            self._say(key, members, found.reason)
            return
        # Whole seconds, as the pods will say it.
        until = math.ceil(self._with.wall() + self._with.hold_s)
        seats = {uid: PlannedSeat(*place, until) for uid, place in found.seats.items()}
        planned = [member for member in members if member.pod.uid in seats]
        self._gangs.offers.begin(seats)
        try:
            self._gangs.reserve(planned, seats)
            for member in planned:
                self._patch(member, hold_patch(member, seats[member.pod.uid]), "merge")
        finally:
            self._gangs.written()
        self._expect_word(past)
        log.info("gang %s/%s has a seat for each of %d pods", *key, len(seats))

    def _unasked(self, members: Sequence[Member]) -> list[Member]:
        """The pods that the scheduler may place, and asks about no node for."""
        return [
            one
            for one in members
            if one.node is None
            and keys.GANG_GATE not in one.gates
            and self._gangs.offers.of(one.pod.uid) is None
        ]

    def _limits(self, past: _Past, members: Sequence[Member]) -> Limits:
        now, offers = self._with.clock(), self._gangs.offers
        offered = {one.pod.uid: offers.of(one.pod.uid) for one in members}
        return Limits(
            most={node: most for node, (most, until) in past.most.items() if until > now},
            offered={uid: nodes for uid, nodes in offered.items() if nodes is not None},
        )

    def _expecting(self, member: Member) -> Member:
        """The member, asking with what is known of its model's traffic."""
        if member.node is not None or member.demand is None:
            return member
        demand = self._with.snapshot.expecting(member.pod.uid, member.demand)
        return replace(member, demand=demand)

    def _known(self, members: Sequence[Member]) -> dict[Demand, dict[NodeName, Groups]]:
        """For each demand the nodes that can take a pod, and the groups that can."""
        snapshot, names = self._with.snapshot, self._with.snapshot.names()
        known: dict[Demand, dict[NodeName, Groups]] = {}
        for member in members:
            demand = member.demand
            if member.node is None and demand is not None and demand not in known:
                found = snapshot.verdicts(member.pod.uid, demand, names)
                known[demand] = {n: one.groups for n, one in found.items() if one and one.groups}
        return known

    def _nodes(
        self, members: Sequence[Member], known: Mapping[Demand, Mapping[NodeName, Groups]]
    ) -> dict[NodeName, NodeView]:
        """Those nodes, and the ones that a member is bound to."""
        wanted = {member.node for member in members if member.node is not None}
        views = self._with.snapshot.views(sorted(wanted.union(*known.values())))
        return {name: view for name, view in views.items() if view is not None}

    def _lift(self, key: Key, step: Step) -> None:
        for member in step.members:
            self._patch(member, lift_patch(member), "strategic")
        for member in step.members:
            self._with.tell(member.pod, GANG_PLANNED, _placed(member))
        log.info("gang %s/%s: lifted the gates of %d pods", *key, len(step.members))

    def _release(self, key: Key, step: Step) -> None:
        log.warning("gang %s/%s gives its seats back: %s", *key, step.reason)
        self._learn(key, step.members)
        self._say(key, step.members, step.reason)
        for member in step.members:
            self._with.meeting.forget(member.pod.uid)
            self._patch(member, hold_patch(member, None), "merge")

    def _learn(self, key: Key, members: Sequence[Member]) -> None:
        """Rest before the next plan, and give no node more pods than the scheduler had there.

        The rest is short if something was learned: there is an end to that.
        """
        now, wall = self._with.clock(), self._with.wall()
        past = self._past.setdefault(key, _Past())
        late = any(one.seat and one.seat.until <= wall for one in members)
        learned = self._most(members, late=late)
        lasts = min(LONGEST_AVOID_S, AVOID_S * 2 ** min(past.failed, 16))
        past.most |= {node: (most, now + lasts) for node, most in learned.items()}
        rest = (self._with.hold_s if late else REST_S) * 2 ** min(past.failed, 16)
        past.rest_until = now + (REST_S if learned else min(LONGEST_REST_S, rest))
        past.failed += 1
        if late or learned:
            # What they were offered beside each other says nothing of what each may have. Taking
            # their plans back has the scheduler ask about them again.
            past.asking = True
            self._gangs.offers.forget(member.pod.uid for member in members)
            self._expect_word(past)

    def _expect_word(self, past: _Past) -> None:
        """From now on the scheduler is to ask about the gang's pods."""
        past.reminds, past.remind_at = 0, self._with.clock() + REMIND_S

    def _unheard(self, members: Sequence[Member]) -> list[Member]:
        """The pods with a planned seat that the scheduler hasn't asked about since."""
        offers = self._gangs.offers
        return [
            one
            for one in members
            if one.node is None
            and one.seat is not None
            and not (offers.taken(one.pod.uid) or offers.refused(one.pod.uid))
        ]

    def _remind(self, key: Key, unheard: Sequence[Member]) -> None:
        """Have the scheduler try these pods, if it has let pass the time for that."""
        past, now = self._past.get(key), self._with.clock()
        if past is None or not unheard or now < past.remind_at or not self._may():
            return
        past.reminds += 1
        past.remind_at = now + min(LONGEST_REMIND_S, REMIND_S * 2 ** min(past.reminds, 16))
        log.info("gang %s/%s: the scheduler is told to try %s", *key, names(unheard))
        self._with.nudge()

    def _most(self, members: Sequence[Member], *, late: bool) -> dict[NodeName, int]:
        """How many pods the scheduler had on each of the nodes where it refused one.

        In the end also where others have taken the place of one that it would have had there.
        """
        seats = {one.pod.uid: one.seat.node for one in members if one.seat}
        offers = self._gangs.offers
        had = Counter(node for uid, node in seats.items() if offers.taken(uid))
        short = {node for uid, node in seats.items() if offers.refused(uid)}
        if late:
            left = ((uid, node) for uid, node in seats.items() if not offers.taken(uid))
            short |= {node for uid, node in left if had[node] and node in (offers.of(uid) or ())}
        return {node: had[node] for node in short}

    def _patch(self, member: Member, body: Json, kind: str) -> None:
        """Change a pod, unless another process may do so by now. Raises KybernateError."""
        self._with.fence.check()
        patched = self._with.pods.patch(member.pod, body, kind)
        self._gangs.pod_event("MODIFIED", patched, ours=True)

    def _say(self, key: Key, members: Sequence[Member], reason: str) -> None:
        if not self._gangs.explain(key, reason) or reason.startswith("seats are held"):
            return
        log.info("gang %s/%s: %s", *key, reason)
        if self._may():
            for member in members:
                if member.node is None:
                    self._with.tell(member.pod, GANG_WAITING, self._gangs.reason(*key))

    def _forget(self, key: Key) -> None:
        self._past.pop(key, None)
        self._gangs.explain(key, None)


def _placed(member: Member) -> str:
    seat = member.seat
    where = f"{seat.group} on {seat.node}" if seat else "nowhere"
    return f"All pods of gang {member.gang} have a seat; this one's is of {where}"
