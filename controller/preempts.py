"""Pods that find no seat get those of less important ones, whose states are saved before.

What is to be done is decided in `kybernate.core.requests.preempt`; all that is remembered are the
CheckpointRequests that it makes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from kybernate.adapters import extender
from kybernate.api import pods
from kybernate.api.lenient import text
from kybernate.api.rebalances.reading import read_plan
from kybernate.api.requests import to_evict, to_wake
from kybernate.core.plans.steps import Kind
from kybernate.core.requests.checkpoint import Mode
from kybernate.core.requests.evictions import is_preemption
from kybernate.core.requests.preempt import (
    KEPT_S,
    SPARED_S,
    Act,
    Observed,
    Waiter,
    decide,
    made_name,
    orphans,
    save_seconds,
    wake_name,
)
from kybernate.core.requests.rebalance import NoPlan, Plan
from kybernate.core.requests.turns import takes_turn
from kybernate.errors import ConfigError, KybernateError, NotFoundError, RefusedError
from kybernate.lib.rounds import rounds_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from controller.base.cluster import Cluster
    from controller.base.known import PodsSeen, Requests
    from controller.base.queue import Key, Queue
    from kybernate.core.requests import checkpoint
    from kybernate.core.requests.preempt import Decision, Deed
    from kybernate.core.requests.rebalance import Step
    from kybernate.core.requests.turns import Limits
    from kybernate.runtime.lead import Fence

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_PLAN_S = 30.0
"""Seconds that the extender gets for a plan."""
_TIDY_S = 10.0


class Waiters:
    """Pods with seats that have no node yet, by namespace and name. Fed by the watch's thread; any
    thread may ask. `due` is told of each that changes."""

    def __init__(self, due: Callable[[Key], None]) -> None:
        self._due = due
        self._lock = threading.Lock()
        self._seen: dict[Key, Waiter] = {}

    def on_event(self, kind: str, item: Json) -> None:
        """Take in an event of the watch."""
        pod = pods.read_pod(item)
        key = pod.namespace, pod.ref.name
        waits = kind != "DELETED" and pod.asks and not (pod.node or pod.leaving or pod.over)
        now = _read(pod) if waits and pod.preempts else None
        with self._lock:
            before = self._seen.pop(key, None)
            if now is not None:
                self._seen[key] = now
        if before != now:
            self._due(key)

    def get(self, key: Key) -> Waiter | None:
        """The pod of this name, if it waits."""
        with self._lock:
            return self._seen.get(key)

    def uids(self) -> frozenset[str]:
        """All that wait."""
        with self._lock:
            return frozenset(one.uid for one in self._seen.values())


def _read(pod: pods.Pod) -> Waiter:
    since = pod.unschedulable_since()
    return Waiter(pod.ref.uid, pod.namespace, pod.ref.name, pod.priority, since)


class Victims:
    """Asks the extender at `url` who is to make room, with the certificate in the folder `tls`."""

    def __init__(self, url: str, tls: Path) -> None:
        self._url = url
        self._tls = tls

    def plan(self, waiter: Waiter, spared: Collection[str]) -> Plan | NoPlan:
        """The plan as things are now, in which those `spared`, by UID, stay."""
        query = f"?{urlencode({'spare': ','.join(sorted(spared))})}" if spared else ""
        path = f"/preemption/{quote(waiter.namespace)}/{quote(waiter.name)}{query}"
        try:
            found = extender.ask(self._url, self._tls, path, _PLAN_S)
            if found.get("uid") != waiter.uid:
                return NoPlan("another pod has its name")
            if not found.get("checked"):
                return NoPlan("the scheduler has not named a node where it could run")
            return read_plan(found, text(found.get("sentence")))
        except (RefusedError, NotFoundError) as error:
            return NoPlan(str(error))
        except (ConfigError, KybernateError, ValueError) as error:
            return NoPlan(str(error), for_now=True)


class PreemptWorker:
    """Looks at pods that wait. `requests` are all CheckpointRequests, `seen` all pods with seats;
    `patience`: seconds for which one waits before, 0: nobody makes room; `limits`: how many states
    are put away at a time; `wall` gives seconds since 1970."""

    kind = "pod"

    def __init__(  # noqa: PLR0913, PLR0917 - what a look needs, each of one owner
        self,
        queue: Queue,
        waiters: Waiters,
        requests: Requests[checkpoint.Request],
        seen: PodsSeen,
        victims: Victims,
        cluster: Cluster,
        fence: Fence,
        wall: Callable[[], float] = time.time,
        *,
        patience: float,
        limits: Limits,
    ) -> None:
        self._queue = queue
        self._fence = fence
        self._waiters = waiters
        self._requests = requests
        self._seen = seen
        self._victims = victims
        self._cluster = cluster
        self._wall = wall
        self._patience = patience
        self._limits = limits
        self._turn = threading.Lock()
        self._refused: dict[str, float] = {}

    def look(self, key: Key) -> None:
        """Do what the pod of this name needs now. Raises KybernateError."""
        waiter = self._waiters.get(key)
        made, others = self._evictions()
        if waiter is None or not self._patience:
            if made:
                self.tidy()
            return
        if not made and not self._seen.outranks_one(waiter.priority):
            # Somebody less important may get a seat yet, of which nobody tells this pod.
            self._queue.add(key, _TIDY_S)
            return
        # Two that look at once would choose the same pods.
        with self._turn:
            again = self._looked(Observed(waiter, made, self._seen.all(), others=others))
        if again is not None:
            self._queue.add(key, again)

    def keep_tidy(self, stopping: threading.Event) -> None:
        """See to what was begun for pods that wait no more, until told to stop."""

        def round_() -> None:
            if self._fence.closed() is None:
                self.tidy()

        rounds_blocking(round_, stopping, _TIDY_S, "pods that made room")

    def tidy(self) -> None:
        """Take back what was begun for pods that wait no more. Raises KybernateError."""
        made = [one for one in self._requests.all() if is_preemption(one)]
        waiting = self._waiters.uids() if self._patience else ()
        self._do_all(orphans(made, waiting, self._seen.all()), "nobody waits for its seat any more")

    def _looked(self, seen: Observed) -> float | None:
        decided = partial(decide, patience=self._patience, limits=self._limits)
        decision, why = decided(seen, self._wall()), ""
        if decision.plan:
            found = self._victims.plan(seen.waiter, decision.spared | self._unasked())
            if isinstance(found, NoPlan):
                log.info("pod %s waits: %s", seen.waiter.told, found.why)
            else:
                why, known = found.told, self._seen.all()
                # Whom nobody here sees makes no room: the next plan is another one.
                asked = (one.uid for one in found.steps if one.kind is Kind.SUSPEND)
                unseen = (uid for uid in asked if uid not in known)
                self._refused |= dict.fromkeys(unseen, self._wall())
            # What others began meanwhile is not known to the plan.
            made, others = self._evictions()
            seen = replace(seen, made=made, others=others, found=found)
            decision = decided(seen, self._wall())
        if decision.in_vain:
            self._say_in_vain(seen.waiter, decision)
        begun = (one for one in decision.deeds if one.step is None)
        self._do_all(begun, f"pod {seen.waiter.told} waits for its seat")
        for step in (one.step for one in decision.deeds if one.step is not None):
            try:
                self._save(seen.waiter, step, why)
            except RefusedError as error:
                log.warning("pod %s/%s makes no room: %s", step.namespace, step.pod, error)
                self._refused[step.uid] = self._wall()
        return decision.again

    def _evictions(self) -> tuple[tuple[checkpoint.Request, ...], tuple[checkpoint.Request, ...]]:
        """All requests of this kind, and other evictions that take turns."""
        every = [one for one in self._requests.all() if one.mode is Mode.EVICT]
        now, pace = self._wall(), self._limits.pace
        others = (one for one in every if takes_turn(one, now, pace) and not is_preemption(one))
        return tuple(one for one in every if is_preemption(one)), tuple(others)

    def _say_in_vain(self, waiter: Waiter, decision: Decision) -> None:
        minutes = math.ceil((decision.again or 0.0) / 60)
        why = (
            f"less important pods made room {decision.in_vain} times, and the pod has not been "
            f"bound; they do so again in {minutes} min at the earliest: see its PodScheduled "
            "condition for what it lacks"
        )
        log.warning("pod %s waits: %s", waiter.told, why)
        about = waiter.namespace, waiter.name, waiter.uid
        self._tell(*about, "PreemptedInVain", why)

    def _unasked(self) -> set[str]:
        """Pods, by UID, whose states can't be asked for, such as by their namespace's quota."""
        least = self._wall() - SPARED_S
        self._refused = {uid: at for uid, at in self._refused.items() if at > least}
        return {*self._refused}

    def _do_all(self, deeds: Iterable[Deed], why: str) -> None:
        """What one namespace refuses holds up no other; its request stays, and is looked at again.
        Raises KybernateError for anything else."""
        refused = set[str]()
        for deed in deeds:
            assert deed.request is not None  # noqa: S101 - only SAVE has none
            if deed.request.uid in refused:
                continue
            try:
                self._do(deed, why)
            except RefusedError as error:
                refused.add(deed.request.uid)
                log.warning("request %s, %s: %s", deed.request.name, deed.act, error)

    def _save(self, waiter: Waiter, step: Step, why: str) -> None:
        name = made_name(waiter.uid, step.uid)
        body = to_evict(name, step.pod, save_seconds(step.size), keep_s=KEPT_S)
        self._fence.check()
        if not self._cluster.ask(step.namespace, body):
            known = self._requests.get((step.namespace, name))
            if known is not None and not is_preemption(known.request):
                raise RefusedError(f"somebody else has made CheckpointRequest {name}; delete it")
            return
        log.info("pod %s: %s", waiter.told, why)
        self._tell(waiter.namespace, waiter.name, waiter.uid, "Preempting", why)
        told = (
            f"pod {waiter.told} of priority {waiter.priority} gets its seat; its state is saved, "
            "and the pod that is made in its place continues from there"
        )
        self._tell(step.namespace, step.pod, step.uid, "Preempted", told)

    def _do(self, deed: Deed, why: str) -> None:
        request = deed.request
        assert request is not None  # noqa: S101 - only SAVE has none
        self._fence.check()
        where = f"{request.namespace}/{request.pod}"
        log.info("pod %s: %s (%s)", where, deed.act, why)
        match deed.act:
            case Act.EVICT:
                uid = request.status.pod_uid
                if held := self._cluster.evict(request.namespace, request.pod, uid):
                    log.warning("pod %s is not evicted: %s", where, held)
            case Act.WAKE:
                body = to_wake(wake_name(request), request.pod)
                self._cluster.ask(request.namespace, body)
            case _:
                self._cluster.remove(request)

    def _tell(self, namespace: str, name: str, uid: str, reason: str, why: str) -> None:
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name}
        self._cluster.say({**about, "uid": uid}, reason, why, warning=False)
