"""What the agent reads from pods of its node, and a cache of them fed by a watch."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kybernate.api import podnotes, pods
from kybernate.api.restores import read_wish
from kybernate.api.turns import max_wait, min_residency, prefetch, priority, read_idle, read_turn
from kybernate.core.policy.effective import Effective
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError
from kybernate.lib.rounds import rounds
from kybernate.types import GroupName, PodRef, PodUid, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.core.artifacts.restores import RestoreWish

T = TypeVar("T")
Judge = Callable[[pods.Pod], Effective]
"""What counts for a pod: its annotations, and the policies of its namespace."""

log = logging.getLogger(__name__)

_MOST_GONE = 1024
_REVIEW_S, _CLOCK_S = 1.0, 60.0


def by_itself(_: pods.Pod) -> Effective:
    """What counts where no policies are."""
    return Effective({})


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A managed pod, as far as the agent cares. `assigned_at` in wall-clock seconds.

    `group` is None if the pod never passed the extender. `over` says that it has ended for
    good: its phase is Succeeded or Failed. `grace`: seconds between SIGTERM and SIGKILL.
    `keep_connections`: idle ones aren't reset when the seat is parked. `park_tier`: how deep its
    state may go. `ready_within` (s): what is a timely wake, None if the pod doesn't say.
    `ready_active`: only while its seat is active its pod is ready.
    `spec_hash` is of what the seat's container is, alike for all replicas of one template.
    `restore`: the artifact that it wants to continue from. `weight`: of a seat that always wants
    its GPUs, None if it waits for requests. `idle` (s): unused for so long it leaves GPU memory
    ("vram") or the tier of that name. `min_residency`, `max_wait` (s), `prefetch` (calls per hour):
    instead of the agent's settings. `priority`: what its requests rank. `namespace_uid`: its
    namespace's, where that was asked for.
    """

    ref: PodRef
    resource: str
    container: str
    group: GroupName | None
    assigned_at: float
    seat: str | None
    model: str
    vram: int | None
    image: str
    port: int | None
    has_args: bool
    ip: str
    deleting: bool
    over: bool
    grace: float = 30.0
    keep_connections: bool = False
    park_tier: Tier = Tier.OBJECT
    ready_within: float | None = None
    ready_active: bool = False
    spec_hash: str = ""
    restore: RestoreWish | None = None
    weight: float | None = None
    idle: Mapping[str, float] = field(default_factory=dict)
    min_residency: float | None = None
    max_wait: float | None = None
    prefetch: float | None = None
    priority: int = 0
    namespace_uid: str = ""


def read_pod(raw: Mapping[str, Any], judge: Judge = by_itself) -> PodFacts | None:
    """The facts, or None if no container of the pod asks for a seat.

    Raises ConfigError, see `facts_of`.
    """
    return facts_of(pods.read_pod(raw), judge)


def facts_of(pod: pods.Pod, judge: Judge = by_itself) -> PodFacts | None:
    """The facts, or None if no container of the pod asks for a seat.

    Raises ConfigError if what it asks for can't be had, such as a restore from no state. What only
    makes a difference to its comfort is left out if it can't be read.
    """
    pod.check()
    ask = pod.ask
    if ask is None:
        return None
    notes = judge(pod).over(pod.notes)
    turn = partial(read_turn, of_job=pod.of_job, callable_=bool(pod.model or ask.port))
    return PodFacts(
        ref=pod.ref,
        resource=ask.resource,
        container=ask.name,
        group=pod.group,
        assigned_at=_or(pod, pod.assigned_at, pod.created_at()),
        seat=pod.seat,
        model=pod.model,
        vram=podnotes.vram(notes),
        image=ask.image,
        port=ask.port,
        has_args=ask.has_args,
        ip=pod.ip,
        deleting=pod.leaving,
        over=pod.over,
        grace=pod.grace,
        keep_connections=_or(pod, lambda: podnotes.keeps_connections(notes), otherwise=False),
        park_tier=_or(pod, lambda: podnotes.park_tier(notes), Tier.RAM),
        ready_within=_or(pod, lambda: podnotes.ready_within(notes), None),
        ready_active=_or(pod, lambda: podnotes.ready_active(notes), otherwise=False),
        spec_hash=ask.template_hash(),
        restore=read_wish(notes),
        weight=_or(pod, lambda: turn(notes), turn({})),
        idle=_or(pod, lambda: read_idle(notes), {}),
        min_residency=_or(pod, lambda: min_residency(notes), None),
        max_wait=_or(pod, lambda: max_wait(notes), None),
        prefetch=_or(pod, lambda: prefetch(notes), None),
        priority=_or(pod, lambda: priority(notes, pod.priority), pod.priority),
    )


def _or(pod: pods.Pod, read: Callable[[], T], otherwise: T) -> T:
    """What is read or, if it can't be read, something else: a seat is not lost for that."""
    try:
        return read()
    except ConfigError as error:
        log.warning("pod %s: %s; it is left out", pod.ref.uid, error)
        return otherwise


class PodCache:
    """The node's managed pods by UID. Fed on the loop; `on_change` hears of each one. `judge` says
    what counts for a pod, `wall` gives seconds since 1970."""

    def __init__(
        self,
        on_change: Callable[[PodFacts], None],
        on_gone: Callable[[PodUid], None],
        judge: Judge = by_itself,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pods: dict[PodUid, PodFacts] = {}
        self._read: dict[PodUid, pods.Pod] = {}
        self._gone: deque[PodUid] = deque(maxlen=_MOST_GONE)
        self._on_change = on_change
        self._on_gone = on_gone
        self._judge = judge
        self._wall = wall
        self._until = math.inf

    def event(self, kind: str, pod: Mapping[str, Any]) -> None:
        """An event of the watch: ADDED, MODIFIED or DELETED."""
        uid = PodUid(pod["metadata"]["uid"])
        if kind == "DELETED":
            self._pods.pop(uid, None)
            self._read.pop(uid, None)
            self._gone.append(uid)
            self._on_gone(uid)
            return
        self._take_in(pods.read_pod(pod))

    def outdated(self) -> None:
        """Policies have changed: what counts for each pod is looked at again."""
        self._until = -math.inf

    def review(self) -> None:
        """If what counts may have changed with policies or with the time, look at all pods."""
        if self._wall() < self._until:
            return
        self._until = math.inf
        for pod in tuple(self._read.values()):
            self._take_in(pod)

    async def reviews(self) -> None:
        """Review, for as long as this runs; whatever tenants write, no more often than that."""
        await rounds(self.review, _REVIEW_S, "policies are held against pods")

    def _take_in(self, pod: pods.Pod) -> None:
        uid = pod.ref.uid
        try:
            facts = facts_of(pod, self._judged)
        except ConfigError as error:
            # Its container will be refused with this sentence; here it only isn't awaited.
            log.info("pod %s: %s", uid, error)
            return
        if facts is not None:
            self._read[uid], self._pods[uid] = pod, facts
            self._on_change(facts)

    def _judged(self, pod: pods.Pod) -> Effective:
        found = self._judge(pod)
        if found.until < math.inf:
            # Sooner than that if somebody sets the node's clock.
            self._until = min(self._until, found.until, self._wall() + _CLOCK_S)
        return found

    def named(self, namespace: str, name: str) -> PodFacts | None:
        """The pod of this name that isn't being deleted, as the watch last showed it."""
        for facts in self._pods.values():
            named = facts.ref.namespace == namespace and facts.ref.name == name
            if named and not facts.deleting:
                return facts
        return None

    def bound(self, resource: str) -> list[PodFacts]:
        """Live pods with a group and this resource, oldest bind first."""
        live = (p for p in self._pods.values() if not (p.deleting or p.over))
        wanted = (p for p in live if p.resource == resource and p.group is not None)
        return sorted(wanted, key=lambda p: (p.assigned_at, p.ref.uid))

    def is_gone(self, uid: PodUid) -> bool:
        """Whether the pod was deleted of late: whoever read of it before is to forget it."""
        return uid in self._gone

    def uids(self) -> frozenset[PodUid]:
        """UIDs of all pods in the cache."""
        return frozenset(self._pods)
