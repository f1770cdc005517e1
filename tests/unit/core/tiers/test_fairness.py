"""Seats that are called for without end, on GPUs and in RAM that are too small for them: each gets
its turn, whatever the sizes are. The swap decision and the tiers' decision play together here, as
in the agent, and time passes by events."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field

from hypothesis import given, note, settings
from hypothesis import strategies as st

from kybernate.core.seat.seats import OCCUPYING, TIER_OF
from kybernate.core.swap.swap import (
    ActionKind,
    decide,
    next_check,
    obstacle,
    ram_order,
    wants,
)
from kybernate.core.swap.swapview import SeatView, SwapPolicy, SwapView
from kybernate.core.tiers import tiering
from kybernate.core.tiers.tiering import Coming, Parked, Step, TierPolicy, TierView
from kybernate.types import GpuUuid, GroupName, PodUid, SeatName, SeatState, Tier
from tests.unit.core.swap.invariant import violations

S = SeatState
SWAP = SwapPolicy(min_residency=0.3, idle_after=0.1, drain_limit=2.0, max_wait=3.0)
TIERS = TierPolicy(min_residency=0.3)
GPUS = [GpuUuid(f"g{number}") for number in range(3)]
IN_RAM = (S.PARKED, S.DUMPING, S.RESTORING, S.PARKING)
GOES = {S.PARKING: Tier.RAM, S.DUMPING: Tier.NVME, S.RESTORING: Tier.RAM}
BEGUN = {Step.DUMP: S.DUMPING, Step.RESTORE: S.RESTORING}
DONE = {
    S.STARTING: S.ACTIVE,
    S.WAKING: S.ACTIVE,
    S.PARKING: S.PARKED,
    S.DUMPING: S.PARKED_NVME,
    S.RESTORING: S.PARKED,
}
LASTS = 20.0
PATIENCE = 15.0
_SLACK = 0.001


@dataclass
class Pod:
    """A seat: `size` bytes in RAM, `gap` seconds between an answer and its next request, which
    takes `service`; a step of its takes `step`."""

    uid: PodUid
    gpus: frozenset[GpuUuid]
    size: int
    gap: float
    service: float
    step: float
    priority: int = 0
    pinned: bool = False
    state: SeatState = S.WAITING
    since: float | None = 0.0
    active_since: float | None = None
    idle_since: float | None = None
    drain_since: float | None = None
    moved_at: float | None = None
    flying: bool = False
    unparkable: str = ""
    waits: list[float] = field(default_factory=list)

    def view(self):
        waiting = self.state is not S.WAITING and self.since is not None and not self.flying
        return SeatView(
            self.uid,
            SeatName(self.uid),
            GroupName("+".join(sorted(self.gpus))),
            self.gpus,
            None,
            self.state,
            0.0,
            self.active_since,
            self.idle_since,
            int(self.flying),
            int(waiting),
            self.since if waiting else None,
            drained=self.state is S.DRAINING and not self.flying,
            drain_since=self.drain_since,
            connected=True,
            priority=self.priority,
            unparkable=self.unparkable,
        )


class Node:
    """`ram` bytes for parked seats."""

    def __init__(self, pods, ram):
        self.pods = {pod.uid: pod for pod in pods}
        self.ram = ram
        self.now = 0.0
        self._due = []
        self._count = itertools.count()

    def run(self):
        self._look()
        while self.now < LASTS:
            checks = (
                next_check(self._swap_view(), SWAP, self.now),
                tiering.next_check(self._tier_view(), TIERS, self.now),
            )
            times = [LASTS, *(when + _SLACK for when in checks if when is not None)]
            self.now = min([*times, *(self._due[0][:1] if self._due else [])])
            while self._due and self._due[0][0] <= self.now:
                heapq.heappop(self._due)[2]()
            self._look()

    def late(self):
        """Who has been waiting for too long, and why."""
        waits = {p.uid: self.now - p.since for p in self.pods.values() if p.since is not None}
        return {
            uid: obstacle(self._swap_view(), SWAP, uid, self.now)
            for uid, waited in waits.items()
            if waited > PATIENCE and not self.pods[uid].flying
        }

    def _at(self, seconds, what):
        heapq.heappush(self._due, (self.now + seconds, next(self._count), what))

    # --- what is decided -------------------------------------------------------------------------

    def _look(self):
        for _ in range(100):
            self._judge()
            view = self._swap_view()
            actions = decide(view, SWAP, self.now)
            for action in actions:
                self._act(action)
            steps = tiering.decide(self._tier_view(), TIERS, self.now)
            for step in steps:
                self._begin(self.pods[step.uid], BEGUN[step.step])
            assert violations(self._swap_view()) == ()
            assert self._taken() <= self.ram, "more of RAM is taken than there is"
            if not actions and not steps:
                return
        raise AssertionError(f"it is not settled: {actions}, {steps}")

    def _judge(self):
        """As the agent's guard does it."""
        for pod in self.pods.values():
            one = Coming(pod.uid, pod.uid, pod.size)
            short = pod.state in (S.STARTING, S.ACTIVE, S.DRAINING) and self._room() < pod.size
            stuck = short and not tiering.clears(self._tier_view(comes=False), TIERS, one, self.now)
            pod.unparkable = "RAM is full" if stuck else ""

    def _taken(self):
        return sum(pod.size for pod in self.pods.values() if pod.state in IN_RAM)

    def _room(self):
        return self.ram - self._taken()

    def _swap_view(self):
        return SwapView(
            tuple(pod.view() for pod in self.pods.values()),
            dict.fromkeys(GPUS, 80),
            {},
            park_room=self._room(),
            park_bytes={p.uid: p.size for p in self.pods.values() if p.state in OCCUPYING},
        )

    def _tier_view(self, *, comes=True):
        parking = [pod for pod in self.pods.values() if pod.state is S.PARKING]
        ram = ram_order(self._swap_view(), SWAP, self.now)
        seats = [self._parked(pod, ram) for pod in self.pods.values() if pod.state in TIER_OF]
        coming = [Coming(u, u, self.pods[u].size, turn) for u, turn in ram.parks.items()]
        limits = {Tier.RAM: self.ram - sum(pod.size for pod in parking), Tier.NVME: 1 << 60}
        leaving = tuple(self._parked(pod, ram) for pod in parking)
        return TierView(tuple(seats), limits, tuple(coming) if comes else (), parking=leaving)

    def _parked(self, pod, ram):
        tier = TIER_OF.get(pod.state, Tier.RAM)
        wanted = wants(pod.view())
        return Parked(
            pod.uid,
            pod.uid,
            pod.size,
            tier,
            GOES.get(pod.state),
            moved_at=pod.moved_at,
            turn=ram.turns.get(pod.uid, len(ram.turns)) if wanted else None,
            deepest=Tier.RAM if pod.pinned else Tier.NVME,
            copies=frozenset() if tier is Tier.RAM else frozenset({tier}),
            behind=ram.behind.get(pod.uid, 0),
        )

    # --- what is done ----------------------------------------------------------------------------

    def _act(self, action):
        pod = self.pods[action.uid]
        match action.kind:
            case ActionKind.DRAIN:
                pod.state, pod.drain_since = S.DRAINING, self.now
            case ActionKind.UNDRAIN:
                pod.state = S.ACTIVE
                self._serve(pod)
            case ActionKind.REVOKE:
                pod.flying = False
            case ActionKind.PARK:
                pod.active_since = pod.idle_since = None
                self._begin(pod, S.PARKING)
            case ActionKind.START:
                self._begin(pod, S.STARTING)
            case ActionKind.WAKE:
                self._begin(pod, S.WAKING)

    def _begin(self, pod, state):
        pod.state = state
        self._at(pod.step, lambda: self._done(pod))

    def _done(self, pod):
        if pod.state in (S.DUMPING, S.RESTORING):
            pod.moved_at = self.now
        pod.state = DONE[pod.state]
        if pod.state is S.ACTIVE:
            pod.active_since = self.now
            self._serve(pod)

    def _ask(self, pod):
        if pod.since is None:
            pod.since = self.now
            self._serve(pod)

    def _serve(self, pod):
        if pod.state is not S.ACTIVE or pod.since is None or pod.flying:
            return
        pod.waits.append(self.now - pod.since)
        pod.flying, pod.idle_since = True, None
        self._at(pod.service, lambda: self._answered(pod))

    def _answered(self, pod):
        pod.flying, pod.since = False, None
        pod.idle_since = self.now
        self._at(pod.gap, lambda: self._ask(pod))


@st.composite
def pods(draw, number, ram):
    gpus = draw(st.sampled_from([GPUS[:1], GPUS[1:2], GPUS[2:], GPUS[:2], GPUS[1:]]))
    return Pod(
        PodUid(f"p{number}"),
        frozenset(gpus),
        draw(st.integers(1, min(ram, 80 * len(gpus)))),
        draw(st.sampled_from([0.0, 1.0])),
        draw(st.sampled_from([0.2, 1.0])),
        draw(st.sampled_from([0.1, 0.3])),
        draw(st.sampled_from([0, 0, 1])),
    )


@st.composite
def nodes(draw):
    ram = draw(st.integers(20, 200))
    return Node([draw(pods(number, ram)) for number in range(draw(st.integers(2, 6)))], ram)


@given(nodes())
@settings(max_examples=20, deadline=None)
def test_whoever_asks_gets_its_turn(node):
    note(f"RAM {node.ram}: {list(node.pods.values())}")
    node.run()
    assert node.late() == {}
    assert max(max(pod.waits, default=0.0) for pod in node.pods.values()) <= PATIENCE


def test_what_comes_up_while_another_is_parked_starves_nobody():
    """Two must be parked for p1 one after the other, since RAM has no room for both."""

    def pod(number, gpus, size, gap):
        return Pod(PodUid(f"p{number}"), frozenset(gpus), size, gap, 1.0, 0.3 if gap else 0.1)

    node = Node(
        [
            pod(0, GPUS[1:2], 77, 1.0),
            pod(1, GPUS[:2], 29, 1.0),
            pod(2, GPUS[1:2], 8, 1.0),
            pod(3, GPUS[:1], 34, 0.0),
        ],
        84,
    )
    node.run()
    assert node.late() == {}
