"""Which of several replicas acts now: by a Lease of their own.

Whoever begins to act knows all that was written before: what it acts on is listed again after each
change of leadership, since a watch may be late by any time.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from kybernate import keys
from kybernate.core.election import Election, Lease, Turn
from kybernate.dataclass import dataclass
from kybernate.errors import KybernateError, NotFoundError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.k8s import Api

    Json = dict[str, Any]

log = logging.getLogger(__name__)

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{keys.NAMESPACE}/leases"
ROUNDS = 7
"""How often a leader renews within the time that its lease lasts."""

DRIFT = 0.1
"""The part of its lease that a leader doesn't use: clocks may run that much faster elsewhere."""


def boot_clock() -> float:
    """Seconds that also count while the machine is suspended, as those of other machines do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fence(Protocol):
    """What stands between a call and its taking effect."""

    def closed(self) -> str | None:
        """Why this process answers no call now, in a sentence; None if it does."""
        ...

    def check(self) -> None:
        """Raise RetryableError unless a call to the API server may begin now."""
        ...


class Knowledge(Protocol):
    """What must be up to date before a new leader's first act."""

    def refresh(self) -> Callable[[], bool]:
        """Take in all that was written before now; the answer says whether that is done."""
        ...


class Open:
    """No fence: there is one process, and nobody takes its place while it runs."""

    def closed(self) -> None:
        """Calls are answered."""

    def check(self) -> None:
        """Any call may begin."""


class Leases:
    """Leases in our namespace. Each call takes at most `timeout` seconds."""

    def __init__(self, api: Api, timeout: float) -> None:
        self._api = api
        self._timeout = timeout

    def read(self, name: str) -> Json | None:
        """The Lease, or None if there is none. Raises KybernateError."""
        try:
            return self._api.get(f"{LEASES}/{name}", timeout=self._timeout)
        except NotFoundError:
            return None

    def write(self, lease: Json) -> Json:
        """Store it, if nobody did since it was read. Raises ConflictError, KybernateError."""
        meta = lease["metadata"]
        if "resourceVersion" in meta:
            return self._api.put(f"{LEASES}/{meta['name']}", lease, timeout=self._timeout)
        return self._api.post(LEASES, lease, timeout=self._timeout)


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a lease lasts, in whole seconds as in a Lease, and a call at most, in seconds."""

    lasts: int
    call: float


class Leader:
    """A candidate for the Lease `name`; a thread keeps it. `clock` gives seconds."""

    def __init__(  # noqa: PLR0913 - each of them is another part
        self,
        leases: Leases,
        name: str,
        identity: str,
        terms: Terms,
        knowledge: Knowledge,
        clock: Callable[[], float] = boot_clock,
        *,
        announce: Callable[[], None] | None = None,
    ) -> None:
        """`identity` must be this process's alone. `announce` is called after each renewal; it may
        raise KybernateError."""
        self._announce = announce or (lambda: None)
        self._leases = leases
        self._name = name
        self._identity = identity
        self._terms = terms
        self._lasts = terms.lasts
        self._knowledge = knowledge
        self._clock = clock
        self._election = Election(identity, margin=terms.lasts * DRIFT)
        self._raw: Json | None = None
        self._holder = ""
        self._knows: Callable[[], bool] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease {name}", daemon=True)

    def start(self) -> None:
        """Start to stand for the lease."""
        self._thread.start()

    def stop(self) -> None:
        """Let go of the lease, so that the next leader need not wait for its end.

        To be called when nothing that was begun in its name continues.
        """
        self._stopping.set()
        self._thread.join(self._lasts)
        self._election.left()
        if self._holder == self._identity and self._raw is not None:
            try:
                self._leases.write(self._spec(self._raw, holder="", lasts=1))
            except KybernateError as error:
                log.warning("lease %s was not given back: %s", self._name, error)

    def closed(self) -> str | None:
        """Why this replica answers no call now: another one leads, or what it knows is too old."""
        if self._clock() >= self._election.until:
            return f"this replica does not lead; {self._holder or 'nobody'} holds the lease"
        if self._knows is None or not self._knows():
            return "this replica has just begun to lead; it is listing what the last one did"
        return None

    def check(self) -> None:
        """Raise RetryableError unless a call that begins now ends before the lease can."""
        closed = self.closed()
        if closed:
            raise RetryableError(closed)
        if self._clock() + self._terms.call >= self._election.until:
            raise RetryableError("this replica's lease may end before the call would; try again")

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.tend()
            except KybernateError as error:
                log.warning("lease %s: %s", self._name, error)
            except Exception:
                log.exception("lease %s", self._name)
            self._stopping.wait(self._lasts / ROUNDS)

    def tend(self) -> None:
        """One round: look, and write if it is our turn. Raises KybernateError."""
        if self._raw is None or self._election.turn(self._clock()) is not Turn.KEEP:
            self._look()
        turn = self._election.turn(self._clock())
        if turn is Turn.WAIT or self._stopping.is_set():
            return
        began = self._clock()
        led = began < self._election.until
        try:
            raw = self._leases.write(self._spec(self._raw, self._identity, self._lasts))
        except KybernateError:
            # Whether it was stored, or what was, shows only by looking.
            self._raw = None
            raise
        if not led:
            self._knows = None
        self._raw, self._holder = raw, self._identity
        self._election.wrote(read_lease(raw), began)
        if not led:
            log.info("leading, by lease %s", self._name)
            self._knows = self._knowledge.refresh()
        self._announce()

    def _look(self) -> None:
        self._raw = self._leases.read(self._name)
        lease = read_lease(self._raw) if self._raw else None
        if lease and lease.holder != self._holder:
            log.info("lease %s is held by %s", self._name, lease.holder or "nobody")
        self._holder = lease.holder if lease else ""
        self._election.saw(lease, self._clock())

    def _spec(self, old: Json | None, holder: str, lasts: int) -> Json:
        spec: Json = dict((old or {}).get("spec") or {})
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != holder:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = now
        spec |= {"holderIdentity": holder, "leaseDurationSeconds": lasts, "renewTime": now}
        meta = old["metadata"] if old else {"name": self._name}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": spec,
        }


def read_lease(raw: Json) -> Lease:
    """The lease as the election sees it."""
    spec = raw.get("spec") or {}
    return Lease(
        str(spec.get("holderIdentity") or ""),
        float(spec.get("leaseDurationSeconds") or 0),
        str(raw["metadata"]["resourceVersion"]),
    )
