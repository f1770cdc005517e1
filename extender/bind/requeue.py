"""Having waiting pods tried again as soon as a seat frees.

The kube-scheduler tries a pod that an extender rejected again when something in the cluster
changes that it watches itself. It doesn't watch GPUNodes, and it hears of a deleted pod as soon as
we do: it may ask before our ledger has taken that in, and then not again for minutes. So once a
node can take a pod that was rejected there, something that the scheduler watches is changed: an
object of ours that means nothing to anybody (see docs/design/0020-requeue.md).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from extender import metrics
from kybernate import keys
from kybernate.dataclass import dataclass
from kybernate.lib.rounds import rounds_blocking

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from extender.state.objects import SeatPod
    from kybernate.adapters.k8s import Api
    from kybernate.core.placement import Demand
    from kybernate.types import NodeName, PodUid

    Fitting = Callable[[Demand, set[NodeName]], set[NodeName]]
    Known = Callable[[PodUid], SeatPod | None]

log = logging.getLogger(__name__)

LOOK_EVERY = 0.05
"""Seconds between two looks at what has become free, while pods wait."""

SWEEP_EVERY = 1.0
"""Seconds between two looks at who waits no longer, and at what has ended by time alone."""

NUDGE_EVERY = 0.25
"""Seconds between two nudges at least: each has the scheduler try all waiting pods."""

ANSWERED_WITHIN = 15.0
"""Seconds after which nobody waits for the answer of a call any more; on a busy machine the thread
that answers may be told of long after it has looked at the nodes."""

UNSEEN_FOR = 10.0
"""Seconds after which a pod that the watch doesn't show counts as deleted."""

FORGET_AFTER = 600.0
"""Seconds after which a pod that wasn't tried again is forgotten; the scheduler does within 300."""

NUDGE = "kyb-extender"
CAPACITIES = f"/apis/storage.k8s.io/v1/namespaces/{keys.NAMESPACE}/csistoragecapacities"
FREED_AT = "kyb.ai/freed-at"


@dataclass(slots=True)
class _Waiting:
    demand: Demand
    since: float


class Waiting:
    """The pods that found no node, and whether they would find one by now. One thread looks."""

    def __init__(self, changed: set[NodeName], fitting: Fitting, pod: Known) -> None:
        """`changed` is filled with the names of nodes that changed, and is emptied here.

        `fitting` gives those of some nodes that can take a demand; `pod` what the watch shows.
        """
        self._changed = changed
        self._fitting = fitting
        self._pod = pod
        self._lately: dict[NodeName, float] = {}
        self._next_sweep = float("-inf")
        self._pods: dict[PodUid, _Waiting] = {}
        self._known: dict[Demand, set[NodeName]] = {}
        self._news: deque[tuple[SeatPod, Sequence[NodeName]]] = deque()

    def rejected(self, pod: SeatPod, nodes: Sequence[NodeName]) -> None:
        """None of the nodes could take the pod. From any thread."""
        self._news.append((pod, nodes))

    def look(self, now: float) -> bool:
        """Whether a node can take a waiting pod that couldn't when it was last looked at."""
        news = self._take_in(now)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_EVERY
            self._sweep(now)
        changed = self._changed.copy()
        self._changed -= changed
        self._lately.update(dict.fromkeys(changed, now))
        # What changed in an earlier look may have changed after a call that is told of only now.
        nodes = changed | self._lately.keys() if news else changed
        gained = False
        for demand, known in self._known.items() if nodes else ():
            fitting = self._fitting(demand, nodes)
            gained = gained or not fitting <= known
            known.difference_update(nodes)
            known.update(fitting)
        return gained

    def _take_in(self, now: float) -> bool:
        """Whether there were news."""
        found = bool(self._news)
        while self._news:
            pod, nodes = self._news.popleft()
            if pod.demand is not None:
                self._pods[pod.ref.uid] = _Waiting(pod.demand, now)
                self._known.setdefault(pod.demand, set()).difference_update(nodes)
        return found

    def _sweep(self, now: float) -> None:
        for node in [node for node, at in self._lately.items() if now - at >= ANSWERED_WITHIN]:
            del self._lately[node]
        for uid in [uid for uid, one in self._pods.items() if self._is_done(uid, now - one.since)]:
            del self._pods[uid]
        wanted = {one.demand for one in self._pods.values()}
        for demand in self._known.keys() - wanted:
            del self._known[demand]
        # Whatever ends by time alone, such as a reservation, is noticed when something is asked.
        for demand in list(self._known)[:1]:
            self._fitting(demand, set())

    def _is_done(self, uid: PodUid, waits: float) -> bool:
        pod = self._pod(uid)
        if pod is None:
            return waits >= UNSEEN_FOR
        return pod.node is not None or waits >= FORGET_AFTER


class Requeue:
    """Looks, and nudges the scheduler."""

    def __init__(
        self, waiting: Waiting, nudge: Callable[[], None], closed: Callable[[], str | None]
    ) -> None:
        """`nudge` may raise KybernateError; nothing is done while `closed` gives a reason."""
        self._waiting = waiting
        self._nudge = nudge
        self._closed = closed

    def run(self, stopping: threading.Event) -> None:
        """Look until the event is set."""
        owed = False

        def look() -> None:
            nonlocal owed
            owed = self._waiting.look(time.monotonic()) or owed
            if owed and self._closed() is None:
                self._nudge()
                owed = False
                stopping.wait(NUDGE_EVERY)

        rounds_blocking(look, stopping, LOOK_EVERY, "telling the scheduler of free seats")


class Nudge:
    """An event that has the kube-scheduler try waiting pods again, and does nothing else.

    A CSIStorageCapacity of a storage class that doesn't exist: all schedulers watch these, volumes
    are not placed by this one, and writing it takes a right to this one object of our namespace,
    where changing a node or a pod would take a right to all of them.
    """

    def __init__(self, api: Api, timeout: float) -> None:
        """A call takes at most `timeout` seconds."""
        self._api = api
        self._timeout = timeout

    def __call__(self) -> None:
        """Raises KybernateError."""
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {"name": NUDGE, "annotations": {FREED_AT: datetime.now(UTC).isoformat()}},
            "storageClassName": "kyb-none",
        }
        self._api.patch(
            f"{CAPACITIES}/{NUDGE}", body, "apply", {"force": True}, timeout=self._timeout
        )
        metrics.NUDGES.inc()
