"""Why pods wait: asked for one by one, told as events on all of them, and counted.

The kube-scheduler counts seats itself: where none is free it never asks us, and what it says then
is "Insufficient kyb.ai/gpu-2x-seat". So every pod that waits is looked at here, asked about or not.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from extender import metrics
from extender.bind.events import NO_SEAT
from kybernate.api.pods import is_true, read_pod
from kybernate.core.views.explain import FITS, NO_NODE, document, explain, kinds, summarize
from kybernate.errors import KybernateError, RefusedError
from kybernate.lib.rounds import rounds_blocking

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence

    from extender.bind.cluster import Cluster
    from extender.bind.events import Events
    from extender.gangs.gangs import Gangs
    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.core.ledger.ledger import NodeView
    from kybernate.core.placement import Demand
    from kybernate.core.views.explain import Explanation
    from kybernate.runtime.lead import Fence
    from kybernate.types import NodeName, PodUid

    Json = dict[str, Any]

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
GRACE_S = 5.0
"""Seconds that a pod waits before anything is told: most are bound within one."""

MOST_DEMANDS = 20
"""So many different demands are explained per look, those of most pods first."""

GANG, SCHEDULER, PROBLEM, OTHER = "gang", "scheduler", "problem", "other"
"""Reasons beside those of `core.explain`: its gang isn't whole or has no seats; there is a seat,
and the scheduler's other rules or its turn stand in the way; what it asks for can't be read; and
those of the demands that were not looked at."""

REASONS = (*(kind for kind in kinds() if kind != FITS), GANG, SCHEDULER, PROBLEM, OTHER)


class Explainer:
    """Explains pods from the snapshot as it is. Only `look` keeps anything, for one thread."""

    def __init__(
        self,
        snapshot: Snapshot,
        cluster: Cluster,
        gangs: Gangs,
        events: Events,
        fence: Fence,
    ) -> None:
        """Events are told by who may pass the fence."""
        self._fence = fence
        self._snapshot = snapshot
        self._cluster = cluster
        self._gangs = gangs
        self._events = events
        self._since: dict[PodUid, float] = {}

    def page(self, namespace: str, name: str) -> Json:
        """Everything about one pod, as JSON. Raises KybernateError."""
        raw = self._cluster.pod(namespace, name)
        pod = self._snapshot.read_pod(raw)
        if pod.resource is None:
            raise RefusedError(f"pod {pod.ref} asks for no seat: it is none of ours to place")
        known = {"pod": str(pod.ref), "uid": pod.ref.uid, "node": pod.node, "group": pod.group}
        if pod.node is not None or pod.demand is None:
            text = pod.problem or f"it is bound to {pod.node}, group {pod.group}"
            return {**known, "summary": text, "scheduler": _condition(raw)}
        found = self._explain(pod, pod.demand)
        gang = self._gangs.reason(namespace, pod.gang) if pod.gang else None
        told = document(found)
        told["summary"] = "; ".join(text for text in (gang, found.summary) if text)
        return {**known, **told, "gang": gang, "scheduler": _condition(raw)}

    def run(self, closed: Callable[[], str | None], stopping: threading.Event) -> None:
        """Look at all that wait, now and then, until told to stop.

        Nothing is looked at while `closed` gives a reason.
        """

        def look() -> None:
            if closed() is None:
                self.look(time.monotonic())

        rounds_blocking(look, stopping, LOOK_EVERY_S, "looking at waiting pods")

    def look(self, now: float) -> None:
        """Count the pods that wait, and tell of each that there is no seat for, if there is none.

        `now` in seconds of a steady clock.
        """
        pods = self._snapshot.pods()
        waiting = [pod for pod in pods if _waits(pod)]
        counts: Counter[str] = Counter()
        of_demand: dict[Demand, list[SeatPod]] = defaultdict(list)
        for pod in waiting:
            if pod.gang:
                counts[GANG] += 1
            elif pod.demand is None:
                counts[PROBLEM] += 1
            else:
                of_demand[pod.demand].append(pod)
        most_first = sorted(of_demand.values(), key=len, reverse=True)
        names, leaving, told = self._snapshot.names(), _leaving(pods), []
        for alike in most_first[:MOST_DEMANDS]:
            told += self._of_alike(alike, names, leaving, counts)
        counts[OTHER] = sum(map(len, most_first[MOST_DEMANDS:]))
        self._since = {pod.ref.uid: self._since.get(pod.ref.uid, now) for pod in waiting}
        self._tell([one for one in told if now - self._since[one[0].ref.uid] >= GRACE_S])
        for reason in REASONS:
            metrics.PENDING.labels(reason).set(counts[reason])

    def _tell(self, told: list[tuple[SeatPod, str]]) -> None:
        if not told:
            return
        try:
            self._fence.check()
        except KybernateError as error:
            log.debug("somebody else tells of waiting pods: %s", error)
            return
        for pod, sentence in told:
            self._events.tell(pod.ref, NO_SEAT, sentence)

    def _explain(self, pod: SeatPod, demand: Demand) -> Explanation:
        names = self._snapshot.names()
        kinds = self._kinds(pod.ref.uid, demand, names)
        views = self._snapshot.views(names, without=pod.ref.uid)
        demand = self._snapshot.expecting(pod.ref.uid, demand)
        return explain(demand, views, kinds, _leaving(self._snapshot.pods()))

    def _of_alike(
        self,
        pods: list[SeatPod],
        names: Sequence[NodeName],
        leaving: frozenset[str],
        counts: Counter[str],
    ) -> list[tuple[SeatPod, str]]:
        """Count pods of one demand, and say what is to be told of them."""
        uid, demand = pods[0].ref.uid, pods[0].demand
        if demand is None:
            return []
        kinds = self._kinds(uid, demand, names)
        if not all(kinds.values()):
            counts[SCHEDULER] += len(pods)
            return []
        found = summarize(demand, kinds, self._view, leaving)
        counts[found.counts[0][0] if found.counts else NO_NODE] += len(pods)
        return [(pod, f"No seat for it: {found.summary}") for pod in pods]

    def _kinds(self, uid: PodUid, demand: Demand, names: Sequence[NodeName]) -> dict[NodeName, str]:
        found = self._snapshot.verdicts(uid, demand, names)
        return {name: NO_NODE if one is None else one.kind for name, one in found.items()}

    def _view(self, name: NodeName) -> NodeView | None:
        return self._snapshot.views([name])[name]


def _leaving(pods: Iterable[SeatPod]) -> frozenset[str]:
    return frozenset(pod.ref.uid for pod in pods if pod.leaving)


def _waits(pod: SeatPod) -> bool:
    return pod.node is None and pod.resource is not None and not pod.leaving


def _condition(pod: Json) -> str | None:
    """What the kube-scheduler says of the pod."""
    one = read_pod(pod).condition("PodScheduled")
    if one is None or is_true(one):
        return None
    return str(one.get("message") or one.get("reason") or "")
