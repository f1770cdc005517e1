"""Evictions: held back until the pod's state is where a successor finds it.

Answers come from what watches have told, without a call. What is to be done before a pod may go is
written as a CheckpointRequest behind the answer, once by name, however often and of however many
replicas it is asked.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import Counter

from kybernate import keys
from kybernate.core.requests.checkpoint import Mode
from kybernate.core.requests.evictions import OTHERS_S, UNANSWERED_S, may_go, unasked
from kybernate.errors import ConflictError, KybernateError
from kybernate.types import Tier
from webhook import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.adapters.k8s import Api
    from kybernate.adapters.k8s.requests import Known
    from kybernate.core.requests.checkpoint import Request
    from kybernate.core.requests.evictions import Answer, EvictedSeat

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_ASKED = Counter(
    "kyb_webhook_evictions_asked", "CheckpointRequests made for evictions.", ["outcome"]
)
# A rate needs two values: each is zero before it counts.
for _outcome in ("made", "known", "failed", "dropped"):
    _ASKED.labels(_outcome)
_CALL_S = 5.0
_MOST_WAITING = 1_000
_KEPT_S = 3_600
_MOST_KNOWN = 10_000
_FORGOTTEN_S = 7_200.0
_LONGEST_WHY = 500


class Wanted(NamedTuple):
    """A request that is to be made."""

    namespace: str
    pod: str
    name: str


class Asker:
    """Makes requests, one after the other, behind the answers. `within`: their deadline (s)."""

    def __init__(self, api: Api, within: float) -> None:
        self._api = api
        self._within = within
        self._waiting: queue.Queue[Wanted | None] = queue.Queue(_MOST_WAITING)
        self._lock = threading.Lock()
        self._queued: set[Wanted] = set()
        self._failed: dict[Wanted, str] = {}
        self._thread = threading.Thread(target=self._run, name="evictions", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the call it is in."""
        try:
            self._waiting.put(None, timeout=_CALL_S)
        except queue.Full:
            return
        self._thread.join(_CALL_S)

    def ask(self, wanted: Wanted) -> str:
        """Have the request made soon, and say why it could not be the last time, empty if it wasn't
        tried. With too many before it none is: who evicts asks again."""
        with self._lock:
            why = self._failed.get(wanted, "")
            if wanted in self._queued:
                return why
            try:
                self._waiting.put_nowait(wanted)
                self._queued.add(wanted)
            except queue.Full:
                _ASKED.labels("dropped").inc()
        return why

    def _run(self) -> None:
        while (wanted := self._waiting.get()) is not None:
            outcome = self._make(wanted)
            _ASKED.labels(outcome).inc()
            with self._lock:
                self._queued.discard(wanted)
                if outcome == "made":
                    self._failed.pop(wanted, None)

    def _fails(self, wanted: Wanted, why: str) -> None:
        with self._lock:
            self._failed.pop(wanted, None)
            if len(self._failed) >= _MOST_KNOWN:
                del self._failed[next(iter(self._failed))]
            self._failed[wanted] = why[:_LONGEST_WHY]

    def _make(self, wanted: Wanted) -> str:
        path = f"/apis/{keys.API_VERSION}/namespaces/{wanted.namespace}/checkpointrequests"
        try:
            self._api.post(path, self._body(wanted), timeout=_CALL_S)
        except ConflictError:
            # Another replica, or an answer of a moment ago, has made it; or somebody else.
            self._fails(wanted, "there is one of this name")
            return "known"
        except KybernateError as error:
            self._fails(wanted, str(error))
            log.warning("%s/%s is not made: %s", wanted.namespace, wanted.name, error)
            return "failed"
        log.info("%s/%s puts away the state of pod %s", *wanted[::2], wanted.pod)
        return "made"

    def _body(self, wanted: Wanted) -> Json:
        return {
            "apiVersion": keys.API_VERSION,
            "kind": keys.CHECKPOINT_REQUEST_KIND,
            "metadata": {"name": wanted.name},
            "spec": {
                "pod": wanted.pod,
                "mode": Mode.EVICT.value,
                "tier": Tier.OBJECT.value,
                "deadlineSeconds": max(1, round(self._within)),
                "ttlSecondsAfterFinished": _KEPT_S,
            },
        }


class Since:
    """For how long something is so, by what it is about; what isn't asked for a while is
    forgotten, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, ...], tuple[float, float]] = {}

    def seconds(self, about: tuple[str, ...], now: float) -> float:
        """Since the first time that it was asked."""
        with self._lock:
            first, last = self._known.pop(about, (now, now))
            if now - last > _FORGOTTEN_S:
                first = now
            if len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[about] = first, now
            return now - first

    def over(self, about: tuple[str, ...]) -> None:
        """It is so no longer."""
        with self._lock:
            self._known.pop(about, None)


class Evictions:
    """Answers. `seats` and `requests` say what is known of a pod by namespace and name, and `taken`
    whether any pod's request has a name there; `ask` has a request made, and says why it could not
    be before."""

    def __init__(
        self,
        seats: Callable[[str, str], tuple[EvictedSeat, ...]],
        requests: Callable[[str, str], Mapping[str, Known]],
        taken: Callable[[str, str], bool],
        ask: Callable[[Wanted], str],
        *,
        within: float = 300.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`within`: seconds for which a pod is held back, 0 for not at all; `wall`: seconds since
        1970."""
        self._seats = seats
        self._requests = requests
        self._taken = taken
        self._ask = ask
        self._within = within
        self._wall = wall
        self._held, self._asked = Since(), Since()

    def answer(self, asked: wire.Eviction) -> Json:
        """The answer to a question about a pod. Makes no call."""
        seats = self._seats(asked.namespace, asked.pod) if self._within else ()
        if not seats:
            return wire.allow(asked.uid)
        known = tuple(one for one, _ in self._requests(asked.namespace, asked.pod).values())
        # No node's word lets a pod go that another one tells of as well.
        answers = [self._of_seat(seat, known, asked) for seat in seats]
        found = max(answers, key=lambda one: (not one.allowed, bool(one.sentence)))
        if found.allowed or asked.dry_run:
            # Whoever tries it without effect is told, and would wait for nothing.
            return wire.allow(asked.uid, warnings=[found.sentence] if found.sentence else ())
        return wire.not_yet(asked.uid, f"{found.sentence}; try again.")

    def _of_seat(
        self, seat: EvictedSeat, known: tuple[Request, ...], asked: wire.Eviction
    ) -> Answer:
        found = self._may_go(seat, known, asked)
        return found if asked.dry_run else self._bounded(found, seat, known, asked)

    def _may_go(
        self,
        seat: EvictedSeat,
        known: tuple[Request, ...],
        asked: wire.Eviction,
        *,
        patient: bool = True,
    ) -> Answer:
        # Anybody may give a request for a pod of theirs the name that this one's would have.
        taken = partial(self._taken, asked.namespace)
        return may_go(seat, known, self._wall(), patient=patient, taken=taken)

    def _bounded(
        self, found: Answer, seat: EvictedSeat, known: tuple[Request, ...], asked: wire.Eviction
    ) -> Answer:
        """The answer, with its request asked for; another one once that would continue for ever."""
        now, about = self._wall(), (asked.namespace, asked.pod, seat.uid)
        if not found.others:
            self._held.over(about)
        elif self._held.seconds(about, now) > OTHERS_S:
            found = self._may_go(seat, known, asked, patient=False)
        if not found.ask:
            self._asked.over(about)
            return found
        why = self._ask(Wanted(asked.namespace, asked.pod, found.ask))
        if self._asked.seconds(about, now) > self._within + UNANSWERED_S:
            return unasked(found.ask, why)
        return replace(found, sentence=f"{found.sentence}: {why}") if why else found
