"""A node whose seats take their time to park and wake, run on by the decision and the book."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import replace

from kybernate.core.seat.seats import OCCUPYING, SeatEvent, next_state
from kybernate.core.swap.swap import ActionKind, decide, takes_turns
from kybernate.core.swap.swapview import SeatView, SwapPolicy, SwapView, Turn
from kybernate.core.swap.turns import Book, TurnPolicy
from kybernate.types import GpuUuid, GroupName, PodUid, SeatName, SeatState
from tests.unit.core.swap.invariant import next_look, violations

S = SeatState
POLICY = SwapPolicy(min_residency=1.0, idle_after=0.5, drain_limit=10.0, max_wait=20.0)
GROUPS = {"G0": {"g0"}, "G1": {"g1"}, "G01": {"g0", "g1"}}
EVENTS = {
    ActionKind.START: SeatEvent.GO,
    ActionKind.DRAIN: SeatEvent.DRAIN,
    ActionKind.UNDRAIN: SeatEvent.UNDRAIN,
    ActionKind.PARK: SeatEvent.PARK,
    ActionKind.WAKE: SeatEvent.WAKE,
}
ENDS = {
    S.STARTING: SeatEvent.STARTED,
    S.PARKING: SeatEvent.PARKED,
    S.WAKING: SeatEvent.AWAKE,
}


def trainer(name, group="G0", weight=1.0, namespace="ns", state=S.PARKED):
    return _seat(name, group, state, turn=Turn(namespace, weight))


def server(name, group="G0", **more):
    return _seat(name, group, S.PARKED, **more)


def _seat(name, group, state, **more):
    gpus = frozenset(map(GpuUuid, GROUPS[group]))
    return SeatView(
        PodUid(name),
        SeatName(name),
        GroupName(group),
        gpus,
        None,
        state,
        0.0,
        connected=True,
        **more,
    )


def share_of(world):
    """Which part of the time each had that all of them had."""
    total = sum(world.held.values())
    return {name: held / total for name, held in world.held.items()}


class World:
    """`costs`: seconds of one step by seat, or one number for all."""

    def __init__(self, seats, costs=0.1, policy=POLICY, turns=None, gpus=("g0", "g1")):
        self.now = 0.0
        self.seats = {one.uid: one for one in seats}
        self.costs = costs
        self.policy = policy
        self.turns = turns or TurnPolicy(min_residency=policy.min_residency)
        self.book = Book(self.turns, 0.0)
        self.memory = {GpuUuid(gpu): 80 for gpu in gpus}
        self.held = dict.fromkeys(self.seats, 0.0)
        self.empty = dict.fromkeys(self.memory, 0.0)
        """Seconds that a GPU stood empty, nothing on its way, though one took turns for it."""
        self.swaps = 0
        self.draining = ""
        self.last = frozenset()
        self._due = []
        self._count = itertools.count()
        self._act()

    def run(self, until):
        """Go on until then, event by event."""
        self._act()
        while True:
            when = next_look(self.view(), self.policy, self.now)
            times = [self._due[0][0]] if self._due else []
            times += [max(when, self.now)] if when is not None else []
            then = min(times, default=math.inf)
            if then > until:
                break
            self.pass_to(then)
            while self._due and self._due[0][0] <= self.now:
                heapq.heappop(self._due)[2]()
            self._act()
        self.pass_to(until)

    def at(self, when, what):
        """Have something happen then."""
        heapq.heappush(self._due, (when, next(self._count), what))

    def put(self, name, **changes):
        """Change a seat, as an event would."""
        self.seats[name] = replace(self.seats[name], **changes)

    def pass_to(self, then):
        passed, self.now = then - self.now, then
        for uid, one in self.seats.items():
            if one.state in (S.STARTING, S.ACTIVE, S.DRAINING):
                self.held[uid] += passed
        if any(one.state in ENDS for one in self.seats.values()):
            return  # a wide seat may wait for what is on its way elsewhere
        view = SwapView(tuple(self.seats.values()), dict(self.memory), {}, draining=self.draining)
        for gpu in self.memory:
            there = [one for one in self.seats.values() if gpu in one.gpus]
            if not any(one.state in OCCUPYING for one in there):
                alone = [one for one in there if takes_turns(one, view) and len(one.gpus) == 1]
                self.empty[gpu] += passed if alone else 0.0

    def view(self):
        seats = tuple(self.seats.values())
        view = SwapView(seats, dict(self.memory), {}, draining=self.draining, last=self.last)
        return self.book.look(view, self.now)

    def ask(self, name, seconds):
        """A request that takes so long to answer; it wakes the seat if need be."""
        one = self.seats[name]
        if one.state is S.ACTIVE:
            self.put(name, in_flight=one.in_flight + 1, idle_since=None)
            self.at(self.now + seconds, lambda: self._answer(name))
        else:
            since = one.waiting_since if one.waiting else self.now
            self.put(name, waiting=one.waiting + 1, waiting_since=since)
            self.takes = seconds

    def _answer(self, name):
        one = self.seats[name]
        left = max(0, one.in_flight - 1)
        idle = None if left or one.waiting else self.now
        self.put(name, in_flight=left, idle_since=idle, drained=not left)

    def _act(self):
        for _ in range(50):
            actions = decide(self.view(), self.policy, self.now)
            if not actions:
                return
            for action in actions:
                self._carry_out(action)
            assert violations(self.view()) == ()
        raise AssertionError(f"the decision does not settle: {actions}")

    def _carry_out(self, action):
        one = self.seats[action.uid]
        if action.kind is ActionKind.REVOKE:
            self.put(one.uid, in_flight=0, drained=True)
            return
        state = next_state(one.state, EVENTS[action.kind])
        changes = {}
        if state is S.DRAINING:
            changes = {"drain_since": self.now, "drained": not one.in_flight}
        if state in (S.PARKING, S.WAKING, S.STARTING):
            changes["active_since"] = None
            self.at(self.now + self._cost(one.uid), lambda: self._ends(one.uid))
        self.swaps += state is S.WAKING
        self.put(one.uid, state=state, **changes)

    def _cost(self, uid):
        return self.costs(uid) if callable(self.costs) else self.costs

    def _ends(self, uid):
        one = self.seats[uid]
        if one.state not in ENDS:
            return
        state = next_state(one.state, ENDS[one.state])
        changes = {}
        if state is S.ACTIVE:
            waiting = one.waiting
            changes = {
                "active_since": self.now,
                "asked_since": None,
                "in_flight": waiting,
                "waiting": 0,
                "idle_since": None if waiting else self.now,
            }
            for _ in range(waiting):
                self.at(self.now + self.takes, lambda: self._answer(uid))
        elif one.turn is not None:
            changes = {"turn": replace(one.turn, yields=False), "leave": ""}
        else:
            changes = {"leave": ""}
        self.put(uid, state=state, **changes)
