"""Gangs as the pods tell of them: what is planned is held, and filter and bind keep to it.

Every replica does this; `extender.gangs.planner` changes the pods, in the one that may bind.
Nothing
but the pods is needed to continue after a crash.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from extender.gangs.members import is_member, read_member
from extender.gangs.offers import Offers
from kybernate import keys
from kybernate.core.ledger.ledger import Claim
from kybernate.core.placement import candidates
from kybernate.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from extender.gangs.rendezvous import Rendezvous
    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.core.gangs.gang import Member, PlannedSeat
    from kybernate.core.placement.verdicts import Fits
    from kybernate.types import GroupName, NodeName, PodUid

    Json = dict[str, Any]
    Key = tuple[str, str]

log = logging.getLogger(__name__)

MARGIN_S = 2.0
"""Seconds that a planned seat must still be held for a bind to begin: the plan of the others must
not end while the first are bound."""

BINDING_S = 120.0
"""Seconds after a bind began in which what its pod holds is the binder's to give back."""


class Gangs:
    """All pods of gangs, from the watch on pods. Methods may be called from any thread."""

    def __init__(self, snapshot: Snapshot, meeting: Rendezvous, wall: Callable[[], float]) -> None:
        """`wall` gives seconds since 1970."""
        self._snapshot = snapshot
        self._meeting = meeting
        self._wall = wall
        self._lock = threading.Lock()
        self._members: dict[PodUid, Member] = {}
        self._versions: dict[PodUid, int] = {}
        self._reasons: dict[Key, str] = {}
        self._writing: frozenset[PodUid] = frozenset()
        self._binding: dict[PodUid, float] = {}
        self._restored = False
        self.offers = Offers()
        self.changed = threading.Event()
        """Something was heard of a gang; whoever waits for it clears it."""

    def pod_event(self, kind: str, item: Json, *, ours: bool = False) -> None:
        """Take in an event of the watch on pods. `ours`: a pod as it was when we had patched it; if
        it is gone by now, nobody will tell that again."""
        uid = item["metadata"]["uid"]
        if uid not in self._members and not is_member(item):
            return
        version = str(item["metadata"].get("resourceVersion", ""))
        number = int(version) if version.isdecimal() else 0
        member = None if kind == "DELETED" else read_member(item, self._snapshot.rules)
        with self._lock:
            if ours and uid not in self._members:
                return
            if member is not None and number < self._versions.get(uid, 0):
                # We know of our own write before the watch does: this event is from before it.
                return
            self._take_in(uid, member, number)
        self.changed.set()

    def _take_in(self, uid: PodUid, member: Member | None, number: int) -> None:
        if member is None:
            self._members.pop(uid, None)
            self._versions.pop(uid, None)
            self._binding.pop(uid, None)
            self._snapshot.release(uid)
            self._meeting.forget(uid)
            self.offers.forget([uid])
            return
        self._members[uid], self._versions[uid] = member, number
        if member.node is None and member.seat is not None:
            self._hold(member, member.seat)
        elif member.node is None and not self._is_under_way(uid):
            self._snapshot.release(uid)

    def _is_under_way(self, uid: PodUid) -> bool:
        """Whether what the pod holds is about to be written, or to be bound."""
        return uid in self._writing or self._binding.get(uid, 0.0) > self._wall()

    def not_ready(self) -> str | None:
        """Why calls can't be answered; to be asked once the watches have listed all.

        The first time, it holds what is planned: a pod may be listed before its node is.
        """
        if not self._restored:
            self.hold_all()
            self._restored = True
        return None

    def all(self) -> dict[Key, list[Member]]:
        """The gangs by namespace and name."""
        found: dict[Key, list[Member]] = defaultdict(list)
        with self._lock:
            for member in self._members.values():
                found[key_of(member)].append(member)
        return found

    def reserve(self, members: Iterable[Member], seats: dict[PodUid, PlannedSeat]) -> None:
        """Hold all seats or, if one was taken meanwhile, none. Raises KybernateError.

        Until `written` is called they are held although the pods don't say so yet.
        """
        with self._lock:
            self._writing = frozenset(seats)
        held: list[Member] = []
        try:
            for member in members:
                seat = seats[member.pod.uid]
                self._snapshot.reserve(_claim(member, seat), seat.until - self._wall())
                held.append(member)
        except (ConflictError, NotFoundError):
            for member in held:
                self._snapshot.release(member.pod.uid)
            raise

    def written(self) -> None:
        """What is held is what the pods say, from now on."""
        with self._lock:
            self._writing = frozenset()

    def stands(self, member: Member) -> bool:
        """Whether the member's planned seat is held, and its group still takes the pod."""
        seat, demand = member.seat, member.demand
        if seat is None or demand is None or not self._holds(member, seat):
            return False
        view = self._snapshot.views([seat.node], without=member.pod.uid)[seat.node]
        if view is None:
            return False
        # What is only under way passes by itself.
        wanted = replace(demand, require_group=seat.group)
        return bool(candidates(replace(view, under_way=frozenset()), wanted).groups)

    def hold_all(self) -> None:
        """Reserve again what is planned and isn't held."""
        with self._lock:
            waiting = [one for one in self._members.values() if one.node is None]
        for member in waiting:
            if member.seat is not None:
                self._hold(member, member.seat)

    def _hold(self, member: Member, seat: PlannedSeat) -> None:
        left = seat.until - self._wall()
        if left <= 0 or member.demand is None or self._holds(member, seat):
            return
        try:
            self._snapshot.reserve(_claim(member, seat), left)
        except (ConflictError, NotFoundError) as error:
            log.debug("the seat planned for pod %s is not held: %s", member.pod, error)

    def _holds(self, member: Member, seat: PlannedSeat) -> bool:
        claim = self._snapshot.claim(member.pod.uid)
        return claim is not None and (claim.node, claim.group) == (seat.node, seat.group)

    def narrow(self, pod: Json, found: Fits) -> Fits:
        """What filter answers for a pod of a gang: its planned node, if it is among those found."""
        if not is_member(pod):
            return found
        meta = pod["metadata"]
        with self._lock:
            member = self._members.get(meta["uid"])
            fellows = [] if member is None else self._fellows(member)
        seat = member.seat if member else None
        planned = seat.node if seat is not None and seat.until > self._wall() else None
        names = (*found.passed, *found.failed, *found.hopeless)
        if self.offers.note(meta["uid"], names, planned, [one.pod.uid for one in fellows]):
            self.changed.set()
        if planned is None:
            sentence = self.reason(str(meta.get("namespace")), str(meta["annotations"][keys.GANG]))
            failed = {**found.failed, **dict.fromkeys(found.passed, sentence)}
            return found._replace(passed=[], failed=failed)
        sentence = f"the pod's gang has a plan, and its seat in it is on {planned}"
        others = [name for name in found.passed if name != planned]
        passed = [name for name in found.passed if name == planned]
        failed = {**found.failed, **dict.fromkeys(others, sentence)}
        return found._replace(passed=passed, failed=failed)

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
        if seat is not None and seat.node != node:
            raise ConflictError(f"its gang has a plan, and its seat in it is on {seat.node}")
        if all(fellow.node is None for fellow in fellows):
            self._meeting.meet(pod.ref.uid, [fellow.pod.uid for fellow in fellows])
        if seat is None or seat.until <= self._wall() + MARGIN_S:
            raise ConflictError(self.reason(pod.ref.namespace, pod.gang))
        with self._lock:
            self._binding[pod.ref.uid] = self._wall() + BINDING_S
        return seat.group

    def _fellows(self, member: Member) -> list[Member]:
        """The gang's other members."""
        return [
            other
            for other in self._members.values()
            if key_of(other) == key_of(member) and other.pod.uid != member.pod.uid
        ]

    def reason(self, namespace: str, gang: str) -> str:
        """Why a gang has no seats, in a sentence."""
        with self._lock:
            why = self._reasons.get((namespace, gang))
        return f"gang {gang} starts as a whole: {why or 'it has not been looked at yet'}"

    def explain(self, key: Key, reason: str | None) -> bool:
        """Note why a gang has no seats, None to forget it; whether this is news."""
        with self._lock:
            known = self._reasons.pop(key, None)
            if reason is not None:
                self._reasons[key] = reason
        return known != reason

    def explained(self) -> set[Key]:
        """The gangs of which it is noted why they have no seats."""
        with self._lock:
            return set(self._reasons)


def key_of(member: Member) -> Key:
    """The gang's namespace and name."""
    return member.pod.namespace, member.gang


def _claim(member: Member, seat: PlannedSeat) -> Claim:
    demand = member.demand
    if demand is None:
        raise NotFoundError(f"pod {member.pod} asks for no seat")
    sharing = demand.party, demand.traffic
    return Claim(member.pod, seat.node, seat.group, demand.resource, demand.vram, *sharing)
