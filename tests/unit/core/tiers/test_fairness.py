"""Seats that are called for without end, on GPUs and in RAM that are too small for them: each gets
its turn, whatever the sizes are. The swap decision and the tiers' decision play together here, as
in the agent, and time passes by events."""

from __future__ import annotations

import heapq
import itertools
import re
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from kybernate.core.seat.seats import OCCUPYING, TIER_OF
from kybernate.core.swap.swap import (
    ActionKind,
    decide,
    decided,
    obstacle,
    ram_order,
    wants,
)
from kybernate.core.swap.swapview import Claim, SeatView, SwapPolicy, SwapView, Turn
from kybernate.core.tiers import tiering
from kybernate.core.tiers.tiering import Coming, Parked, Step, TierPolicy, TierView
from kybernate.types import GpuUuid, GroupName, PodUid, SeatName, SeatState, Tier
from tests.unit.core.swap.invariant import next_look, violations

S = SeatState
SWAP = SwapPolicy(min_residency=0.3, idle_after=0.1, drain_limit=2.0, max_wait=3.0)
TIERS = TierPolicy(min_residency=0.3)
GPUS = [GpuUuid(f"g{number}") for number in range(3)]
IN_RAM = (S.PARKED, S.DUMPING, S.RESTORING, S.PARKING)
GOES = {S.PARKING: Tier.RAM, S.DUMPING: Tier.NVME, S.RESTORING: Tier.RAM}
_STORED = frozenset({Tier.OBJECT})
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
    vram: int | None = None
    copies: frozenset[Tier] = frozenset()
    to: Tier | None = None
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
            self.vram,
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
    """`ram` bytes for parked seats; `below`: bytes of the tiers below it."""

    def __init__(self, pods, ram, below=None):
        self.pods = {pod.uid: pod for pod in pods}
        self.ram = ram
        self.below = {Tier.NVME: 1 << 60} if below is None else below
        self.parked = []
        self.now = 0.0
        self._due = []
        self._count = itertools.count()

    def run(self):
        self._look()
        while self.now < LASTS:
            checks = (
                next_look(self._swap_view(), SWAP, self.now),
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
                self._step(self.pods[step.uid], step.step)
            assert violations(self._swap_view()) == ()
            assert self._taken() <= self.ram, "more of RAM is taken than there is"
            nvme = tiering.used(self._tier_view().seats, Tier.NVME)
            assert nvme <= self.below.get(Tier.NVME, 0), "more of NVMe is taken than there is"
            if not actions and not steps:
                return
        raise AssertionError(f"it is not settled: {actions}, {steps}")

    def _judge(self):
        """As the agent's guard does it."""
        for pod in self.pods.values():
            one = self._parked(pod)
            short = pod.state in (S.STARTING, S.ACTIVE, S.DRAINING) and self._room() < pod.size
            stuck = short and not tiering.lodges(self._standing(), (one,), self.now)
            pod.unparkable = "RAM is full" if stuck else ""

    def _taken(self):
        return sum(pod.size for pod in self.pods.values() if pod.state in IN_RAM)

    def _room(self):
        return self.ram - self._taken()

    def _swap_view(self):
        return SwapView(
            tuple(pod.view() for pod in self.pods.values()),
            dict.fromkeys(GPUS, 80),
            dict.fromkeys({pod.view().group for pod in self.pods.values()}, 2),
            park_room=self._room(),
            park_bytes={p.uid: p.size for p in self.pods.values() if p.state in OCCUPYING},
            tiers=self._standing(),
        )

    def _standing(self):
        """As the agent's tiers tell the swap decision."""
        pods = self.pods.values()
        parking = [pod for pod in pods if pod.state is S.PARKING]
        awake = [pod for pod in pods if pod.state in OCCUPYING and pod not in parking]
        return TierView(
            tuple(self._parked(pod) for pod in pods if pod.state in TIER_OF),
            {Tier.RAM: self.ram - sum(pod.size for pod in parking), **self.below},
            parking=tuple(self._parked(pod) for pod in parking),
            awake=tuple(self._parked(pod) for pod in awake),
        )

    def _tier_view(self):
        ram = ram_order(self._swap_view(), SWAP, self.now)
        asking = {uid for uid, pod in self.pods.items() if wants(pod.view())}
        return ram.given_to(self._standing(), asking)

    def _parked(self, pod):
        tier = TIER_OF.get(pod.state, Tier.RAM)
        return Parked(
            pod.uid,
            pod.uid,
            pod.size,
            tier,
            GOES.get(pod.state, pod.to),
            moved_at=pod.moved_at,
            deepest=Tier.RAM if pod.pinned else Tier.OBJECT,
            copies=pod.copies,
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
                self.parked.append(pod.uid)
                self._begin(pod, S.PARKING)
            case ActionKind.START:
                self._begin(pod, S.STARTING)
            case ActionKind.WAKE:
                self._begin(pod, S.WAKING)

    def _step(self, pod, step):
        match step:
            case Step.DROP:
                pod.state, pod.copies, pod.moved_at = S.PARKED_OBJECT, _STORED, self.now
            case Step.DUMP:
                pod.copies = frozenset()
                self._begin(pod, S.DUMPING)
            case Step.RESTORE:
                self._begin(pod, S.RESTORING)
            case Step.PACK | Step.FETCH:
                pod.to = Tier.OBJECT if step is Step.PACK else Tier.NVME
                self._at(pod.step, lambda: self._copied(pod))

    def _copied(self, pod):
        if pod.to is Tier.NVME:
            pod.state, pod.moved_at = S.PARKED_NVME, self.now
        pod.copies, pod.to = pod.copies | {pod.to}, None

    def _begin(self, pod, state):
        pod.state = state
        self._at(pod.step, lambda: self._done(pod))

    def _done(self, pod):
        if pod.state in (S.DUMPING, S.RESTORING):
            pod.moved_at = self.now
        pod.state = DONE[pod.state]
        if pod.state is S.PARKED_NVME:
            pod.copies = frozenset({Tier.NVME})
        if pod.state is S.ACTIVE:
            pod.copies = frozenset()
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


@st.composite
def narrow_nodes(draw):
    """Some seats never leave RAM, and what is below RAM is too small for all of them, or isn't."""
    node = draw(nodes())
    for pod in node.pods.values():
        pod.pinned = draw(st.sampled_from([False, False, True]))
    size = sum(pod.size for pod in node.pods.values())
    node.below = draw(
        st.sampled_from([{}, {Tier.NVME: size}])
        | st.builds(lambda part: {Tier.NVME: part}, st.integers(1, size))
        | st.builds(
            lambda part: {Tier.NVME: part, Tier.OBJECT: 1 << 60},
            # Whose state is fetched, whose makes way, and a copy of one that is in RAM again.
            st.integers(sum(sorted(pod.size for pod in node.pods.values())[-3:]), size),
        )
    )
    return node


@pytest.mark.slow
@given(nodes())
@settings(max_examples=20, deadline=None)
def test_whoever_asks_gets_its_turn(node):
    note(f"RAM {node.ram}: {list(node.pods.values())}")
    node.run()
    assert node.late() == {}
    assert max(max(pod.waits, default=0.0) for pod in node.pods.values()) <= PATIENCE


@pytest.mark.slow
@given(narrow_nodes())
@settings(max_examples=25, deadline=None)
def test_whoever_gets_no_turn_is_told_why(node):
    note(f"RAM {node.ram}, {node.below}: {list(node.pods.values())}")
    node.run()
    late = node.late()
    if all_fit(node):
        assert late == {}
    assert {uid: why for uid, why in late.items() if not FINAL.search(why)} == {}


FINAL = re.compile("the host's memory can't take|the host's memory has no room|can't be parked")
"""Why a seat waits for as long as the others stay."""


def all_fit(node):
    """Whether all that may leave RAM can leave it for any other seat, at any time."""
    every = node.pods.values()
    lasting = [pod for pod in every if pod.pinned or Tier.NVME not in node.below]
    others = [pod.size for pod in every if pod not in lasting]
    return (
        node.below.get(Tier.NVME, 0) >= sum(others)
        and sum(pod.size for pod in lasting) + max(others, default=0) <= node.ram
    )


def crowd(ram, *sizes, pinned=(), below=None):
    """Seats a, b and so on that take turns on one GPU."""
    names = "abcd"[: len(sizes)]
    every = [
        Pod(PodUid(name), frozenset(GPUS[:1]), size, 1.0, 1.0, 0.1, pinned=name in pinned)
        for name, size in zip(names, sizes, strict=True)
    ]
    return Node(every, ram, below)


def test_nobody_is_parked_for_a_seat_that_could_not_come_up_after_that():
    """What a has on NVMe needs RAM that b would never leave again."""
    node = crowd(28, 14, 20, pinned="b")
    node.run()
    (why,) = node.late().values()
    assert "seat b would be parked for it, and then the host's memory has no room" in why
    assert len(node.pods[PodUid("b")].waits) > 5


def test_a_gpu_is_not_kept_for_what_cannot_come_up():
    """It stands so already: b is on NVMe and was called first, a would never leave RAM."""
    node = crowd(28, 20, 14, pinned="a")
    a, b = node.pods.values()
    a.state, b.state, b.copies, a.since = S.PARKED, S.PARKED_NVME, frozenset({Tier.NVME}), 0.5
    node.run()
    assert node.late().keys() == {"b"}
    assert len(a.waits) > 5


def test_a_turn_is_not_kept_for_what_cannot_come_up_beside_others():
    """a fits beside c, which has had its turn; but what is in RAM never leaves it for a's state."""
    node = crowd(20, 15, 1, 1, 10, pinned="bcd")
    a, b, c, d = node.pods.values()
    a.state, b.state, c.state, d.state = S.PARKED_NVME, S.PARKED, S.ACTIVE, S.PARKED
    a.copies, a.vram, c.vram, c.active_since = frozenset({Tier.NVME}), 40, 40, 0.0
    a.since = b.since = c.since = d.since = None
    d.gpus = frozenset(GPUS[1:2])
    view = node._swap_view()
    view = replace(
        view,
        seats=tuple(s if s.uid == d.uid else replace(s, turn=Turn("n")) for s in view.seats),
        claims={uid: Claim((0.0, place), until=5.0) for place, uid in enumerate(node.pods)},
    )
    found = decided(view, SWAP, 10.0)
    assert [(action.kind, action.uid) for action in found.actions] == [(ActionKind.DRAIN, c.uid)]
    assert "can't be given any" in found.why[a.uid]


def test_parks_that_fit_singly_but_not_together_are_not_begun():
    """Two must be parked for the wide one, and nothing leaves RAM."""
    node = crowd(28, 20, 14, 1, below={})
    _, b, c = node.pods.values()
    b.gpus, c.gpus = frozenset(GPUS[1:2]), frozenset(GPUS[:2])
    node.run()
    assert node.parked == []
    assert node.late() == {
        "c": "seat a, b would have to be parked for it, which the host's memory can't take; raise "
        "park_bytes or nvme_bytes, let seats leave RAM (kyb.ai/park-tier), or move one"
    }


def test_who_leaves_ram_again_is_parked_before_those_who_fill_it():
    """a and b must be parked for c: b has room only before a, which never leaves RAM again."""
    node = crowd(55, 2, 54, 1, pinned="a")
    a, b, c = node.pods.values()
    a.gpus, b.gpus, c.gpus = frozenset(GPUS[:1]), frozenset(GPUS[1:2]), frozenset(GPUS[:2])
    node.run()
    assert node.late() == {}
    assert node.parked[:2] == ["b", "a"]


def test_of_two_choices_the_one_is_parked_that_ram_takes():
    """Either of a and b makes room for c; a would never leave RAM again, and b does."""
    node = crowd(28, 20, 14, 14, pinned="a")
    for pod in node.pods.values():
        pod.vram = 40
    c = node.pods[PodUid("c")]
    c.state, c.copies = S.PARKED_NVME, frozenset({Tier.NVME})
    c.since = 1.0
    node.run()
    assert "c" not in node.late()
    assert "a" not in node.parked


def test_seats_that_are_called_make_room_on_nvme_for_one_before_them():
    """NVMe has room for two: c, which is called for, too, goes into the object store for a."""
    node = crowd(20, 14, 14, 14, 14, below={Tier.NVME: 28, Tier.OBJECT: 1 << 60})
    node.run()
    assert node.late() == {}


def beside_a_copy(nvme):
    """b is called for and lies in the object store; a is in RAM again, not called for, and its
    copy still on NVMe."""
    node = crowd(40, 15, 15, below={Tier.NVME: nvme, Tier.OBJECT: 1 << 60})
    a, b = node.pods.values()
    a.state, a.copies, a.since = S.PARKED, frozenset({Tier.NVME}), None
    b.state, b.copies = S.PARKED_OBJECT, _STORED
    return node, a, b


def test_who_can_not_be_fetched_beside_a_copy_of_one_in_ram_is_told():
    node, a, b = beside_a_copy(29)
    node.run()
    assert "raise park_bytes or nvme_bytes" in node.late()["b"]
    assert (a.state, a.copies, b.waits) == (S.PARKED, {Tier.NVME}, [])


def test_it_is_fetched_once_that_one_wakes_or_where_nvme_takes_both():
    node, a, b = beside_a_copy(29)
    node._at(5.0, lambda: node._ask(a))
    node.run()
    assert node.late() == {}
    assert b.waits[0] > 5.0
    node, _, b = beside_a_copy(30)
    node.run()
    assert b.waits[0] < 5.0


def test_what_has_room_below_leaves_ram_though_others_have_none():
    """NVMe is too small for a, which would be the first."""
    seats = tuple(Parked(PodUid(name), name, size) for name, size in (("a", 20), ("b", 15)))
    comes = Coming(PodUid("c"), "c", 15)
    view = TierView(seats, {Tier.RAM: 40, Tier.NVME: 15}, (comes,))
    (action,) = tiering.decide(view, TierPolicy(), 100.0)
    assert (action.step, action.uid) == (Step.DUMP, "b")


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
