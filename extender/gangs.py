"""Gangs, from the watch on pods to planned seats and lifted gates.

Every replica keeps what is planned reserved in its ledger, as the pods say it; only the one that
may bind plans, lifts and takes back. `kybernate.core.gang` decides what is to be done; nothing but
the pods is needed to go on after a crash.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from extender.events import GANG_PLANNED, GANG_WAITING
from extender.members import hold_patch, is_member, lift_patch, read_member
from kybernate import keys
from kybernate.core.gang import Act, PlannedSeat, in_turn, judge
from kybernate.core.gangplan import plan
from kybernate.core.ledger import Claim
from kybernate.core.placement import candidates
from kybernate.errors import ConflictError, KybernateError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from extender.leader import Fence
    from extender.objects import SeatPod
    from extender.rendezvous import Rendezvous
    from extender.snapshot import Snapshot
    from kybernate.core.gang import Member, Step
    from kybernate.core.ledger import NodeView
    from kybernate.core.placement import Policy
    from kybernate.core.verdicts import Fits
    from kybernate.types import GroupName, NodeName, PodRef, PodUid

    Json = dict[str, Any]
    Key = tuple[str, str]

log = logging.getLogger(__name__)

LEAST_S = 0.05
"""Seconds between two looks at gangs at least: their pods are created one by one."""

POLL_S = 1.0
"""Seconds after which gangs are looked at although nothing was heard of them."""

SHARE = 5.0
"""Planning that took so long is rested from so many times as long: the verbs need the processor."""

REST_S, LONGEST_REST_S = 1.0, 300.0
"""Seconds until a gang whose plan fell through is planned anew; doubled each time, up to 5 min."""

AVOID_S = 300.0
"""Seconds for which a node is left out where the scheduler bound no pod of a gang."""


class Pods(Protocol):
    """How pods are changed. Errors are those of `kybernate.adapters.k8s.Api`."""

    def patch(self, pod: PodRef, body: Json, kind: str) -> Json:
        """Patch a pod, and return it as it is then."""
        ...


@dataclass(frozen=True, slots=True)
class Means:
    """What gangs are handled with.

    `clock` gives seconds of any steady clock, `wall` those since 1970. `tell` writes an event about
    a pod: reason and sentence. A planned seat is held for `hold_s` seconds.
    """

    snapshot: Snapshot
    pods: Pods
    fence: Fence
    meeting: Rendezvous
    policy: Policy
    clock: Callable[[], float]
    wall: Callable[[], float]
    tell: Callable[[PodRef, str, str], None]
    hold_s: float


class Gangs:
    """All pods of gangs. Methods may be called from any thread; `tick` from one only."""

    def __init__(self, means: Means) -> None:
        self._with = means
        self._lock = threading.Lock()
        self._members: dict[PodUid, Member] = {}
        self._versions: dict[PodUid, int] = {}
        self._reasons: dict[Key, str] = {}
        self._avoid: dict[Key, dict[NodeName, float]] = {}
        self._rests: dict[Key, tuple[int, float]] = {}
        self._plan_after = -math.inf
        self._restored = False
        self.changed = threading.Event()
        """Something was heard of a gang since the last tick."""

    def pod_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch on pods, or a pod that was patched."""
        uid = item["metadata"]["uid"]
        if uid not in self._members and not is_member(item):
            return
        version = str(item["metadata"].get("resourceVersion", ""))
        number = int(version) if version.isdecimal() else 0
        member = None if kind == "DELETED" else read_member(item)
        with self._lock:
            if number < self._versions.get(uid, 0):
                # We know of our own write before the watch does: this event is from before it.
                return
            self._take_in(uid, member, number)
        self.changed.set()

    def _take_in(self, uid: PodUid, member: Member | None, number: int) -> None:
        if member is None:
            self._members.pop(uid, None)
            self._versions.pop(uid, None)
            self._with.snapshot.release(uid)
            self._with.meeting.forget(uid)
            return
        self._members[uid], self._versions[uid] = member, number
        if member.node is None and member.seat is None:
            self._with.snapshot.release(uid)
        elif member.node is None and member.seat is not None:
            self._hold(member, member.seat)

    def not_ready(self) -> str | None:
        """Why calls can't be answered; to be asked once the watches have listed all.

        The first time, it holds what is planned: a pod may be listed before its node is.
        """
        if not self._restored:
            self._hold_all()
            self._restored = True
        return None

    def narrow(self, pod: Json, found: Fits) -> Fits:
        """What filter answers for a pod of a gang: its planned node, if it is among those found."""
        if not is_member(pod):
            return found
        meta = pod["metadata"]
        with self._lock:
            member = self._members.get(meta["uid"])
        seat = member.seat if member else None
        if seat is None or seat.until <= self._with.wall():
            sentence = self.reason(str(meta.get("namespace")), str(meta["annotations"][keys.GANG]))
            failed = {**found.failed, **dict.fromkeys(found.passed, sentence)}
            return found._replace(passed=[], failed=failed)
        sentence = f"the pod's gang has a plan, and its seat in it is on {seat.node}"
        others = [name for name in found.passed if name != seat.node]
        passed = [name for name in found.passed if name == seat.node]
        failed = {**found.failed, **dict.fromkeys(others, sentence)}
        return found._replace(passed=passed, failed=failed)

    def reason(self, namespace: str, gang: str) -> str:
        """Why a gang has no seats, in a sentence."""
        with self._lock:
            why = self._reasons.get((namespace, gang))
        return f"gang {gang} starts as a whole: {why or 'it has not been looked at yet'}"

    def admit(self, pod: SeatPod, node: NodeName) -> GroupName | None:
        """The group that a pod of a gang is to get on the node; None if it is of no gang.

        Returns when all of the gang's pods have come to be bound. Raises ConflictError if the pod
        has no seat there, or if the others don't come.
        """
        if not pod.gang:
            return None
        with self._lock:
            member = self._members.get(pod.ref.uid)
            fellows = [] if member is None else self._fellows(member)
        seat = member.seat if member is not None else None
        if seat is None or seat.until <= self._with.wall():
            raise ConflictError(self.reason(pod.ref.namespace, pod.gang))
        if seat.node != node:
            raise ConflictError(f"its gang has a plan, and its seat in it is on {seat.node}")
        if all(fellow.node is None for fellow in fellows):
            self._with.meeting.meet(pod.ref.uid, [fellow.pod.uid for fellow in fellows])
        return seat.group

    def _fellows(self, member: Member) -> list[Member]:
        """The gang's other members."""
        return [
            other
            for other in self._members.values()
            if _key(other) == _key(member) and other.pod.uid != member.pod.uid
        ]

    def tick(self) -> None:
        """Do for each gang what is next, if this process may."""
        self.changed.clear()
        self._hold_all()
        with self._lock:
            gangs: dict[Key, list[Member]] = defaultdict(list)
            for member in self._members.values():
                gangs[_key(member)].append(member)
        for key in self._reasons.keys() - gangs.keys():
            self._forget(key)
        began = self._with.clock()
        for members in in_turn(gangs.values()):
            try:
                self._advance(_key(members[0]), members)
            except KybernateError as error:
                log.warning("gang %s/%s: %s", *_key(members[0]), error)
        ended = self._with.clock()
        if began >= self._plan_after:
            self._plan_after = ended + SHARE * (ended - began)

    def _advance(self, key: Key, members: Sequence[Member]) -> None:
        step = judge(members, self._with.wall(), self._stands)
        if step.act is Act.NOTHING:
            self._forget(key)
        elif step.act is Act.WAIT:
            self._say(key, members, step.reason)
        elif step.act is Act.PLAN:
            self._plan(key, members)
        elif step.act is Act.LIFT:
            self._lift(key, step)
        else:
            self._release(key, step)

    def _plan(self, key: Key, members: Sequence[Member]) -> None:
        now = self._with.clock()
        if now < max(self._plan_after, self._rests.get(key, (0, -math.inf))[1]):
            return
        avoid = {name for name, until in self._avoid.get(key, {}).items() if until > now}
        found = plan(members, self._nodes_for(members), self._with.policy, avoid)
        if not found.seats:
            self._say(key, members, found.reason)
            return
        self._with.fence.check()
        # Whole seconds, as the pods will say it.
        until = math.ceil(self._with.wall() + self._with.hold_s)
        seats = {uid: PlannedSeat(*place, until) for uid, place in found.seats.items()}
        self._reserve([member for member in members if member.pod.uid in seats], seats)
        for member in members:
            if member.pod.uid in seats:
                self._patch(member, hold_patch(member, seats[member.pod.uid]), "merge")
        log.info("gang %s/%s has a seat for each of %d pods", *key, len(seats))

    def _nodes_for(self, members: Sequence[Member]) -> dict[NodeName, NodeView]:
        """The nodes that a member is bound to, or could be given a seat on."""
        snapshot, policy = self._with.snapshot, self._with.policy
        wanted = {member.node for member in members if member.node is not None}
        every, seen = snapshot.names(), set()
        for member in members:
            if member.node is None and member.demand and member.demand not in seen:
                seen.add(member.demand)
                wanted |= set(snapshot.fits(member.pod.uid, member.demand, policy, every).passed)
        views = snapshot.views(sorted(wanted))
        return {name: view for name, view in views.items() if view is not None}

    def _reserve(self, members: Sequence[Member], seats: dict[PodUid, PlannedSeat]) -> None:
        """Hold all seats or, if one was taken meanwhile, none. Raises KybernateError."""
        snapshot = self._with.snapshot
        try:
            for member in members:
                seat = seats[member.pod.uid]
                snapshot.reserve(_claim(member, seat), seat.until - self._with.wall())
        except KybernateError:
            for member in members:
                snapshot.release(member.pod.uid)
            raise

    def _lift(self, key: Key, step: Step) -> None:
        for member in step.members:
            self._patch(member, lift_patch(member), "strategic")
        for member in step.members:
            self._with.tell(member.pod, GANG_PLANNED, _placed(member))
        log.info("gang %s/%s: lifted the gates of %d pods", *key, len(step.members))

    def _release(self, key: Key, step: Step) -> None:
        log.warning("gang %s/%s gives its seats back: %s", *key, step.reason)
        self._with.fence.check()
        now, wall = self._with.clock(), self._with.wall()
        times = self._rests.get(key, (0, 0.0))[0]
        rest = min(LONGEST_REST_S, REST_S * 2**times)
        late = [one for one in step.members if one.seat and one.seat.until <= wall]
        if late:
            rest = min(LONGEST_REST_S, self._with.hold_s * 2**times)
        for member in late:
            if member.seat and not self._with.meeting.came(member.pod.uid):
                self._avoid.setdefault(key, {})[member.seat.node] = now + AVOID_S
        self._rests[key] = (min(times + 1, 16), now + rest)
        self._say(key, step.members, step.reason)
        for member in step.members:
            self._with.meeting.forget(member.pod.uid)
            self._patch(member, hold_patch(member, None), "merge")

    def _patch(self, member: Member, body: Json, kind: str) -> None:
        """Change a pod, unless another process may do so by now. Raises KybernateError."""
        self._with.fence.check()
        self.pod_event("MODIFIED", self._with.pods.patch(member.pod, body, kind))

    def _say(self, key: Key, members: Sequence[Member], reason: str) -> None:
        with self._lock:
            known, self._reasons[key] = self._reasons.get(key), reason
        if known != reason and not reason.startswith("seats are held"):
            log.info("gang %s/%s: %s", *key, reason)
            for member in members:
                if member.node is None:
                    self._with.tell(member.pod, GANG_WAITING, self.reason(*key))

    def _forget(self, key: Key) -> None:
        self._rests.pop(key, None)
        self._avoid.pop(key, None)
        with self._lock:
            self._reasons.pop(key, None)

    def _stands(self, member: Member) -> bool:
        """Whether the member's planned seat is held, and its group still takes the pod."""
        seat, demand, snapshot = member.seat, member.demand, self._with.snapshot
        if seat is None or demand is None:
            return False
        claim = snapshot.claim(member.pod.uid)
        if claim is None or (claim.node, claim.group) != (seat.node, seat.group):
            return False
        view = snapshot.views([seat.node], without=member.pod.uid)[seat.node]
        if view is None:
            return False
        # What is only under way passes by itself.
        wanted = replace(demand, require_group=seat.group)
        return bool(candidates(replace(view, under_way=frozenset()), wanted).groups)

    def _hold_all(self) -> None:
        with self._lock:
            waiting = [one for one in self._members.values() if one.node is None and one.seat]
        for member in waiting:
            if member.seat:
                self._hold(member, member.seat)

    def _hold(self, member: Member, seat: PlannedSeat) -> None:
        """Reserve what the pod says is planned for it, if it is not yet or no more."""
        snapshot, left = self._with.snapshot, seat.until - self._with.wall()
        claim = snapshot.claim(member.pod.uid)
        if claim is not None and (claim.node, claim.group) == (seat.node, seat.group):
            return
        if left <= 0 or member.demand is None:
            return
        try:
            snapshot.reserve(_claim(member, seat), left)
        except (ConflictError, NotFoundError) as error:
            log.debug("the seat planned for pod %s is not held: %s", member.pod, error)


def run(gangs: Gangs, closed: Callable[[], str | None], stopping: threading.Event) -> None:
    """Tick whenever something is heard of a gang, and now and then, until told to stop.

    Nothing is done while `closed` gives a reason.
    """
    while not stopping.wait(LEAST_S):
        gangs.changed.wait(POLL_S)
        try:
            if closed() is None:
                gangs.tick()
        except Exception:
            log.exception("gangs are looked at again in %.0f s", POLL_S)


def _key(member: Member) -> Key:
    return member.pod.namespace, member.gang


def _claim(member: Member, seat: PlannedSeat) -> Claim:
    demand = member.demand
    if demand is None:
        raise NotFoundError(f"pod {member.pod} asks for no seat")
    sharing = demand.party, demand.traffic
    return Claim(member.pod, seat.node, seat.group, demand.resource, demand.vram, *sharing)


def _placed(member: Member) -> str:
    seat = member.seat
    where = f"{seat.group} on {seat.node}" if seat else "nowhere"
    return f"All pods of gang {member.gang} have a seat; this one's is of {where}"
