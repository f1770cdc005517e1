"""Those who deal with the agent: proxies, and the machine with its bad days."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.seat.leases import Demand
from tests.kit.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.types import PodUid
    from nodeagent.app.loop import Loop
    from tests.kit.machine import Elsewhere
    from tests.simulation.plan import Plan


class StormyMachine(Machine):
    """Fails by the rates of a plan until it is calm; sees who holds a GPU beside whom."""

    def __init__(self, plan: Plan, elsewhere: Elsewhere | None = None) -> None:
        super().__init__(plan.inventory.memory(), plan.node, elsewhere)
        self.rng = plan.rng
        # Of its own, so that what seeds were found to show, they still do.
        self._abandoning = random.Random(f"abandon-{plan.node}-{plan.seed}")
        self._joining = random.Random(f"join-{plan.node}-{plan.seed}")
        self.besides = plan.besides
        self.rates = dict(plan.faults)
        self.slots: Callable[[PodUid], int] = lambda _: 1
        self.excused = False
        self.said: Callable[[str], None] | None = None

    def fault(self, name: str) -> bool:
        """By chance."""
        rate = self.rates.get(name)
        rng = self._abandoning if name in ("abandon-fails", "remap-refused") else self.rng
        rng = self._joining if name == "worker-joins" else rng
        if not rate or rng.random() >= rate:
            return False
        if self.said:
            self.said(f"fault {name}")
        return True

    def step(self) -> float:
        """Some driver calls take long."""
        return self.rng.choice((0.0, 0.002, 0.002, 0.05))

    def check(self) -> None:
        """Also: no more pods in a GPU's memory than it has slots."""
        super().check()
        if self.excused:
            return
        for gpu in self.memory:
            pods = self.held(gpu)
            if len(pods) > 1 and len(pods) > min(map(self.slots, pods)):
                self.breach(f"GPU {gpu} is held by {sorted(pods)}: too many at once")

    def breach(self, what: str) -> None:
        """Also into the trace."""
        super().breach(what)
        if self.said:
            self.said(f"BREACH {what}")


class StormProxy:
    """A proxy that outlives agents. Implements `leases.Outbox`. `gives_back`: idle leases go back
    with a demand, as from proxies since 0.3."""

    def __init__(self, name: str, machine: StormyMachine, *, gives_back: bool) -> None:
        self.name = name
        self.machine = machine
        self.gives_back = gives_back
        self.loop: Loop | None = None
        self.leases: dict[PodUid, int] = {}
        self.draining: dict[PodUid, int] = {}
        self.waiting: dict[PodUid, list[float]] = {}
        self.since: dict[PodUid, float] = {}
        self.in_flight: dict[PodUid, set[int]] = {}
        self.answered: dict[PodUid, int] = {}
        self._numbers = itertools.count()

    # --- clients --------------------------------------------------------------------------------

    def request(self, uid: PodUid, service: float, now: float) -> None:
        """A request that takes `service` seconds once it is let through."""
        if not self.waiting.get(uid):
            self.since[uid] = now
        self.waiting.setdefault(uid, []).append(service)
        self._pump(uid)

    def cancel(self, uid: PodUid) -> None:
        """All clients that wait for the seat go away."""
        self.waiting.pop(uid, None)
        self._report(uid)

    def broken(self, uid: PodUid) -> None:
        """The workload died under its requests."""
        if self.in_flight.pop(uid, None):
            self._report(uid)
            self._maybe_drained(uid)

    # --- the stream -----------------------------------------------------------------------------

    def connect(self, loop: Loop) -> None:
        """A stream to this agent begins."""
        self.loop = loop
        self.leases, self.draining = {}, {}
        loop.proxies.proxy_joined(self.name, self)
        for uid in {*self.waiting, *self.in_flight}:
            self._report(uid)

    def disconnect(self) -> None:
        """The stream breaks; what is in flight goes on."""
        loop, self.loop = self.loop, None
        self.leases, self.draining = {}, {}
        if loop is not None:
            loop.proxies.proxy_left(self.name, self)

    def agent_died(self) -> None:
        """Nobody is at the other end any more."""
        self.loop = None
        self.leases, self.draining = {}, {}

    def grant(self, uid: PodUid, generation: int) -> None:
        """Requests may go."""
        self.leases[uid] = generation
        self.draining.pop(uid, None)
        self.machine.later(0.0, lambda: self._pump(uid))

    def drain(self, uid: PodUid, generation: int) -> None:
        """Let go when nothing is in flight."""
        self.draining[uid] = generation
        self.machine.later(0.0, lambda: self._maybe_drained(uid))

    def revoke(self, uid: PodUid, generation: int) -> None:
        """Cut off what is in flight."""
        self.leases.pop(uid, None)
        self.draining.pop(uid, None)
        self.in_flight.pop(uid, None)

    # --- inside ---------------------------------------------------------------------------------

    def _pump(self, uid: PodUid) -> None:
        if uid in self.leases and uid not in self.draining:
            flying = self.in_flight.setdefault(uid, set())
            for service in self.waiting.pop(uid, ()):
                number = next(self._numbers)
                flying.add(number)
                self.machine.later(service, partial(self._finish, uid, number))
        self._report(uid)

    def _finish(self, uid: PodUid, number: int) -> None:
        flying = self.in_flight.get(uid, set())
        if number not in flying:
            return
        flying.discard(number)
        self.answered[uid] = self.answered.get(uid, 0) + 1
        self._report(uid)
        self._maybe_drained(uid)

    def _maybe_drained(self, uid: PodUid) -> None:
        if self.loop is not None and uid in self.draining and not self.in_flight.get(uid):
            self.leases.pop(uid, None)
            self.loop.proxies.proxy_drained(self.name, uid, self.draining.pop(uid))

    def _report(self, uid: PodUid) -> None:
        if self.loop is None:
            return
        self.loop.proxies.proxy_demand(
            self.name,
            uid,
            Demand(
                len(self.in_flight.get(uid, ())),
                len(self.waiting.get(uid, ())),
                self.since.get(uid),
                self.answered.get(uid, 0),
            ),
            self._given_back(uid) if self.gives_back and self.waiting.get(uid) else (),
        )

    def _given_back(self, uid: PodUid) -> list[tuple[PodUid, int]]:
        """All leases of seats without requests, but that of the one that is asked for."""
        return [
            (idle, self.leases.pop(idle))
            for idle in tuple(self.leases)
            if idle != uid
            and idle not in self.draining
            and not self.in_flight.get(idle)
            and not self.waiting.get(idle)
        ]
