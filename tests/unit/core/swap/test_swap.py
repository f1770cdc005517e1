"""Who is in GPU memory: single decisions, and any order of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kybernate.core.seat.seats import OCCUPYING, SeatEvent, next_state
from kybernate.core.swap.swap import (
    ActionKind,
    decide,
    fits,
    obstacle,
    ram_order,
    wants,
)
from kybernate.core.swap.swapview import SeatView, SwapPolicy, SwapView
from kybernate.types import GpuUuid, GroupName, PodUid, SeatName, SeatState
from tests.unit.core.swap.invariant import next_look, violations

GIB = 1 << 30
MEMORY = {GpuUuid(f"g{i}"): 80 * GIB for i in range(4)}
GROUPS = {
    "G0": {"g0"},
    "G1": {"g1"},
    "G2": {"g2"},
    "G01": {"g0", "g1"},
    "G23": {"g2", "g3"},
    "G0123": {"g0", "g1", "g2", "g3"},
}
POLICY = SwapPolicy(min_residency=1.0, idle_after=0.5, drain_limit=10.0, max_wait=20.0)
S = SeatState


def seat(name, group="G0", state=S.PARKED, **more):
    return SeatView(
        uid=PodUid(name),
        name=SeatName(name),
        group=GroupName(group),
        gpus=frozenset(GpuUuid(g) for g in GROUPS[group]),
        vram=more.pop("vram", None),
        state=state,
        bound_at=more.pop("bound_at", 0.0),
        **more,
    )


def view(*seats, slots=None, reserve=0):
    return SwapView(seats, MEMORY, slots or {}, reserve)


def kinds(actions):
    return [(a.kind.value, a.uid) for a in actions]


def asked(name, group="G0", since=0.0, **more):
    return seat(name, group, waiting=1, waiting_since=since, **more)


def test_a_free_group_wakes_the_seat_that_is_asked():
    assert kinds(decide(view(asked("a")), POLICY, 1.0)) == [("wake", "a")]


def test_nothing_is_done_without_demand():
    idle = seat("a", state=S.ACTIVE, active_since=0.0, idle_since=0.0)
    assert decide(view(idle, seat("b")), POLICY, 100.0) == ()
    assert next_look(view(idle, seat("b")), POLICY, 100.0) is None


def limited(name, within, **more):
    return asked(name, within=within, wakes_in=2.0, **more)


def test_who_can_wait_leaves_others_their_requests():
    busy = seat("a", state=S.ACTIVE, active_since=0.0, in_flight=1, parks_in=1.0)
    now = view(busy, limited("b", 10.0))
    assert decide(now, POLICY, 6.9) == ()
    assert next_look(now, POLICY, 6.9) == 7.0
    assert kinds(decide(now, POLICY, 7.0)) == [("drain", "a")]


def test_nobody_waits_for_longer_than_all_do_whatever_is_in_time():
    busy = seat("a", state=S.ACTIVE, active_since=0.0, in_flight=1)
    now = view(busy, limited("b", 3600.0))
    assert decide(now, POLICY, 19.9) == ()
    assert kinds(decide(now, POLICY, 20.0)) == [("drain", "a")]


def test_a_limit_takes_nobody_s_residency():
    """Bytes at a seat's sockets are in no count of requests: it just woke for them."""
    woken = seat("a", state=S.ACTIVE, active_since=10.0, idle_since=10.0)
    now = view(woken, limited("b", 0.5, since=9.0))
    assert decide(now, POLICY, 10.4) == ()
    assert kinds(decide(now, POLICY, 10.5)) == [("drain", "a")]


def test_who_can_be_in_time_comes_before_who_cannot():
    late, timely = limited("a", 3.0), limited("b", 3.0, since=8.0)
    now = view(late, timely)
    assert tuple(ram_order(now, POLICY, 0.5).turns) == ("a", "b")
    assert next_look(view(late), POLICY, 0.5) == pytest.approx(1.0)
    assert tuple(ram_order(now, POLICY, 8.5).turns) == ("b", "a")


def test_a_busy_seat_keeps_its_gpu_for_its_residency():
    busy = seat("a", state=S.ACTIVE, active_since=10.0, in_flight=3)
    now = view(busy, asked("b", since=10.0))
    assert decide(now, POLICY, 10.9) == ()
    assert next_look(now, POLICY, 10.9) == 11.0
    assert kinds(decide(now, POLICY, 11.0)) == [("drain", "a")]


def test_an_idle_seat_gives_way_earlier():
    idle = seat("a", state=S.ACTIVE, active_since=10.0, idle_since=10.1)
    assert kinds(decide(view(idle, asked("b")), POLICY, 10.7)) == [("drain", "a")]


def test_a_drained_seat_is_parked_and_an_overdue_one_revoked():
    drained = seat("a", state=S.DRAINING, active_since=0.0, drain_since=1.0, drained=True)
    assert kinds(decide(view(drained, asked("b")), POLICY, 2.0)) == [("park", "a")]
    stuck = replace(drained, drained=False, in_flight=1)
    assert decide(view(stuck, asked("b")), POLICY, 10.9) == ()
    assert kinds(decide(view(stuck, asked("b")), POLICY, 11.0)) == [("revoke", "a")]


def test_a_drain_that_nobody_needs_any_more_is_taken_back():
    draining = seat("a", state=S.DRAINING, active_since=0.0, drain_since=1.0, drained=True)
    assert kinds(decide(view(draining, seat("b")), POLICY, 2.0)) == [("undrain", "a")]


def test_waiting_pods_start_in_order_of_their_bind_without_traffic():
    late = seat("late", state=S.WAITING, bound_at=5.0, connected=True)
    early = seat("early", state=S.WAITING, bound_at=4.0, connected=True)
    away = seat("away", state=S.WAITING, bound_at=3.0)
    assert kinds(decide(view(late, early, away), POLICY, 6.0)) == [("start", "early")]


def test_overlapping_groups_exclude_each_other():
    both = seat("both", "G01", S.ACTIVE, active_since=0.0, idle_since=0.0)
    now = view(both, asked("a", "G0"), asked("c", "G2"))
    assert kinds(decide(now, POLICY, 9.0)) == [("drain", "both"), ("wake", "c")]


def test_all_that_must_leave_leave_together():
    a = seat("a", "G0", S.ACTIVE, active_since=0.0, in_flight=1)
    b = seat("b", "G1", S.ACTIVE, active_since=8.5, in_flight=1)
    now = view(a, b, asked("both", "G01"))
    assert decide(now, POLICY, 9.0) == ()
    assert kinds(decide(now, POLICY, 9.5)) == [("drain", "a"), ("drain", "b")]


def test_the_oldest_demand_keeps_its_gpus_from_younger():
    a = seat("a", "G0", S.ACTIVE, active_since=8.5, in_flight=1)
    now = view(a, asked("both", "G01", since=1.0), asked("one", "G1", since=2.0))
    assert decide(now, POLICY, 9.0) == ()


def test_demand_behind_a_start_lets_requests_pass_but_no_further_start():
    a = seat("a", "G0", S.STARTING)
    both = asked("both", "G01", since=1.0)
    one = asked("one", "G1", since=2.0)
    other = seat("other", "G1", S.WAITING, bound_at=2.0, connected=True)
    assert kinds(decide(view(a, both, one), POLICY, 9.0)) == [("wake", "one")]
    assert decide(view(a, both, other), POLICY, 9.0) == ()


def test_a_failed_seat_blocks_its_own_gpu_only():
    failed = seat("f", "G0", S.FAILED)
    now = view(failed, asked("both", "G01", since=1.0), asked("one", "G1", since=2.0))
    assert kinds(decide(now, POLICY, 9.0)) == [("wake", "one")]


def test_two_slots_share_by_declared_memory():
    slots = {GroupName("G0"): 2}
    a = seat("a", state=S.ACTIVE, vram=30 * GIB, active_since=0.0, in_flight=1)
    small = asked("small", vram=40 * GIB)
    large = asked("large", vram=60 * GIB)
    assert kinds(decide(view(a, small, slots=slots), POLICY, 0.1)) == [("wake", "small")]
    assert decide(view(a, large, slots=slots), POLICY, 0.1) == ()
    assert kinds(decide(view(a, large, slots=slots), POLICY, 5.0)) == [("drain", "a")]


def test_the_fewest_seats_leave():
    slots = {GroupName("G0"): 3}
    on = {"state": S.ACTIVE, "idle_since": 0.0}
    a = seat("a", vram=20 * GIB, active_since=1.0, **on)
    b = seat("b", vram=50 * GIB, active_since=2.0, **on)
    now = view(a, b, asked("c", vram=40 * GIB), slots=slots)
    assert kinds(decide(now, POLICY, 9.0)) == [("drain", "b")]


def test_a_seat_that_can_never_fit_holds_nobody_up():
    huge = asked("huge", vram=100 * GIB, since=0.0)
    assert kinds(decide(view(huge, asked("b", since=1.0)), POLICY, 9.0)) == [("wake", "b")]


def test_a_refused_attempt_is_made_again_later():
    later = asked("a", not_before=5.0)
    assert decide(view(later), POLICY, 4.0) == ()
    assert next_look(view(later), POLICY, 4.0) == 5.0


def test_a_lost_gpu_is_given_to_nobody():
    now = SwapView((asked("a"),), {GpuUuid("g1"): GIB}, {})
    assert decide(now, POLICY, 1.0) == ()


def test_priority_goes_before_age():
    now = view(asked("old", since=1.0), asked("dear", since=2.0, priority=1))
    assert kinds(decide(now, POLICY, 3.0)) == [("wake", "dear")]


def test_who_has_waited_long_enough_goes_before_every_priority():
    now = view(asked("old", since=1.0), asked("dear", since=2.0, priority=1))
    assert kinds(decide(now, POLICY, 20.9)) == [("wake", "dear")]
    assert next_look(now, POLICY, 20.9) == 21.0
    assert kinds(decide(now, POLICY, 21.0)) == [("wake", "old")]


def test_work_of_a_higher_priority_is_not_displaced_until_the_demand_has_waited_long_enough():
    busy = seat("dear", state=S.ACTIVE, active_since=0.0, in_flight=1, priority=1)
    now = view(busy, asked("old", since=1.0))
    assert decide(now, POLICY, 20.9) == ()
    assert "dear has work of a higher priority" in obstacle(now, POLICY, PodUid("old"), 20.9)
    assert kinds(decide(now, POLICY, 21.0)) == [("drain", "dear")]
    idle = replace(busy, in_flight=0, idle_since=2.0)
    assert kinds(decide(view(idle, asked("old", since=1.0)), POLICY, 3.0)) == [("drain", "dear")]


def test_a_drain_for_lesser_demand_is_taken_back_when_work_of_a_higher_priority_comes():
    dear = seat("dear", state=S.DRAINING, drain_since=2.0, waiting=1, waiting_since=2.5, priority=1)
    now = view(dear, asked("old", since=1.0))
    assert kinds(decide(now, POLICY, 3.0)) == [("undrain", "dear")]


@pytest.mark.parametrize(
    ("seats", "sentence"),
    [
        ((), ""),
        ((seat("o", state=S.PARKING),), "seat o is parking"),
        (
            (seat("o", state=S.ACTIVE, unparkable="no memory"),),
            "seat o can't be parked: no memory",
        ),
    ],
)
def test_who_waits_can_be_told_for_what(seats, sentence):
    assert obstacle(view(asked("a"), *seats), POLICY, PodUid("a"), 1.0) == sentence


def test_what_bars_a_seat_whoever_else_is_there_is_told_first():
    one = (asked("a"),)
    drained = SwapView(one, MEMORY, {}, draining="maintenance")
    assert obstacle(drained, POLICY, PodUid("a"), 1.0) == "the node is drained: maintenance"
    assert "isn't healthy" in obstacle(SwapView(one, {}, {}), POLICY, PodUid("a"), 1.0)
    crowded = SwapView((asked("a", vram=70 * GIB),), MEMORY, {}, foreign={GpuUuid("g0"): 20 * GIB})
    assert "less memory free" in obstacle(crowded, POLICY, PodUid("a"), 1.0)
    later = view(asked("a", not_before=5.0))
    assert "refused; the next is in 4.0 s" in obstacle(later, POLICY, PodUid("a"), 1.0)
    behind = view(asked("a", since=2.0), asked("b", since=1.0), seat("c", state=S.ACTIVE))
    assert obstacle(behind, POLICY, PodUid("a"), 3.0) == "seat c is active"


def test_gpus_of_a_seat_that_stands_apart_go_to_nobody():
    stray = seat("stray", "G0", S.UNVERIFIED, unverified=True)
    now = view(stray, asked("both", "G01"), asked("other", "G2"))
    assert kinds(decide(now, POLICY, 1.0)) == [("wake", "other")]
    assert "not known yet what seat stray does" in obstacle(now, POLICY, PodUid("both"), 1.0)
    assert fits(now, PodUid("stray"))


def test_a_park_that_has_just_failed_is_not_tried_again_at_once():
    stubborn = seat("a", state=S.ACTIVE, active_since=0.0, idle_since=0.0, stays_until=6.0)
    for now in (view(stubborn, asked("b")), view(replace(stubborn, leave="an operator parks it"))):
        assert decide(now, POLICY, 5.0) == ()
        assert next_look(now, POLICY, 5.0) == 6.0
        assert kinds(decide(now, POLICY, 6.0)) == [("drain", "a")]


def test_three_slots_hold_small_seats_of_overlapping_groups_as_far_as_memory_goes():
    slots = {GroupName("G0"): 3, GroupName("G01"): 3}
    on = {"state": S.ACTIVE, "active_since": 0.0, "in_flight": 1}
    two = (seat("a", vram=20 * GIB, **on), seat("b", "G01", vram=30 * GIB, **on))
    small, large = asked("small", vram=30 * GIB), asked("large", vram=31 * GIB)
    assert kinds(decide(view(*two, small, slots=slots), POLICY, 0.1)) == [("wake", "small")]
    assert decide(view(*two, large, slots=slots), POLICY, 0.1) == ()
    whole = asked("whole")
    assert decide(view(*two, whole, slots=slots), POLICY, 0.1) == ()
    strict = slots | {GroupName("G01"): 2}
    assert decide(view(*two, small, slots=strict), POLICY, 0.1) == ()


def test_violations_say_which_gpu_and_which_seats():
    found = violations(view(seat("a", state=S.ACTIVE), seat("b", "G01", S.WAKING)))
    assert "g0" in found[0]
    assert "a, b" in found[0]
    assert violations(view(seat("a", state=S.ACTIVE), seat("b", "G01"))) == ()


# --- any order of events ------------------------------------------------------------------------

EVENTS = {
    ActionKind.START: SeatEvent.GO,
    ActionKind.DRAIN: SeatEvent.DRAIN,
    ActionKind.UNDRAIN: SeatEvent.UNDRAIN,
    ActionKind.PARK: SeatEvent.PARK,
    ActionKind.WAKE: SeatEvent.WAKE,
}
STEPS = {
    S.STARTING: SeatEvent.STARTED,
    S.PARKING: SeatEvent.PARKED,
    S.WAKING: SeatEvent.AWAKE,
    S.FAILED: SeatEvent.ENDED,
}


class Swapping(RuleBasedStateMachine):
    """Seats, requests and failures in any order; after each, the invariant, and no starvation."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.seats: dict[str, SeatView] = {}
        self.slots: dict[GroupName, int] = {}
        self.asked_at: dict[str, float] = {}

    @initialize(slots=st.fixed_dictionaries({g: st.integers(1, 2) for g in GROUPS}))
    def begin(self, slots):
        self.slots = {GroupName(g): n for g, n in slots.items()}

    # --- the world ------------------------------------------------------------------------

    @rule(
        group=st.sampled_from(sorted(GROUPS)),
        vram=st.sampled_from([None, 10 * GIB, 40 * GIB, 70 * GIB]),
        priority=st.sampled_from([0, 0, 1, 1000]),
    )
    def bind(self, group, vram, priority):
        if len(self.seats) < 8:
            name = f"s{len(self.seats)}"
            self.seats[name] = seat(
                name,
                group,
                S.WAITING,
                vram=vram,
                bound_at=self.now,
                connected=True,
                priority=priority,
            )
            self.act()

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def call_for(self, data):
        one = self.pick(data)
        if one.state is S.PARKED:
            self.put(one, asked_since=self.now)

    @precondition(lambda self: self.seats)
    @rule(data=st.data(), why=st.sampled_from(["", "an operator parks it"]))
    def send_away(self, data, why):
        one = self.pick(data)
        if one.state in OCCUPYING or not why:
            self.put(one, leave=why)

    @precondition(lambda self: self.seats)
    @rule(data=st.data(), count=st.integers(0, 3))
    def ask(self, data, count):
        one = self.pick(data)
        serves = one.state is S.ACTIVE
        since = one.waiting_since if one.waiting and count else self.now
        self.put(
            one,
            in_flight=one.in_flight + count if serves else one.in_flight,
            waiting=0 if serves else count,
            waiting_since=None if serves or not count else since,
        )

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def answer(self, data):
        one = self.pick(data)
        self.put(one, in_flight=0)

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def step(self, data):
        self.finish(self.pick(data))

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def fail(self, data):
        one = self.pick(data)
        if one.state not in (S.WAITING, S.FAILED, S.PARKED):
            self.move(one, SeatEvent.FAIL, in_flight=0)

    @rule(seconds=st.sampled_from([0.1, 0.6, 1.1, 12.0]))
    def pass_time(self, seconds):
        self.now += seconds
        self.act()

    # --- a fair world brings everyone's turn ------------------------------------------------

    @precondition(lambda self: self.seats)
    @rule()
    def everyone_gets_a_turn(self):
        for name in self.seats:
            one = self.seats[name]
            if one.state is S.PARKED and not one.waiting:
                self.put(one, waiting=1, waiting_since=self.now)
        left = {name for name, one in self.seats.items() if wants(one)}
        for name in left - {one.uid for one in self.seats.values() if fits(self.view(), one.uid)}:
            assert obstacle(self.view(), POLICY, PodUid(name), self.now)
        for _ in range(60 * len(self.seats)):
            if not left:
                break
            for name in tuple(self.seats):
                self.finish(self.seats[name])
                if self.seats[name].state is S.ACTIVE:
                    left.discard(name)
                    # It is asked again and again, so that it never becomes idle.
                    self.put(self.seats[name], in_flight=1, idle_since=None)
                elif self.seats[name].state is S.DRAINING:
                    self.put(self.seats[name], in_flight=0, drained=True)
                elif self.seats[name].state is S.PARKED and not self.seats[name].waiting:
                    self.put(self.seats[name], waiting=1, waiting_since=self.now)
            self.now += 0.3
            self.act()
        assert not left, f"{left} never got a turn: {self.seats}"

    # --- the agent --------------------------------------------------------------------------

    @invariant()
    def nobody_shares_what_cannot_be_shared(self):
        assert violations(self.view()) == ()

    @invariant()
    def decisions_are_settled(self):
        assert decide(self.view(), POLICY, self.now) == ()

    def pick(self, data):
        return self.seats[data.draw(st.sampled_from(sorted(self.seats)))]

    def view(self):
        return SwapView(tuple(self.seats.values()), MEMORY, self.slots, 0)

    def put(self, one, **changes):
        new = replace(self.seats[one.uid], **changes)
        busy = new.in_flight or new.waiting
        idle = None if busy else new.idle_since if new.idle_since is not None else self.now
        new = replace(new, idle_since=idle)
        if new.state is S.DRAINING and not new.in_flight:
            new = replace(new, drained=True)
        self.seats[one.uid] = new
        self.act()

    def move(self, one, event, **changes):
        state = next_state(one.state, event)
        if state is S.ACTIVE and one.state is not S.DRAINING:
            changes |= {
                "active_since": self.now,
                "in_flight": one.waiting,
                "waiting": 0,
                "waiting_since": None,
                "idle_since": None if one.waiting else self.now,
                "asked_since": None,
            }
        if state is S.PARKED:
            changes["leave"] = ""
        if state is S.DRAINING:
            changes |= {"drain_since": self.now, "drained": not one.in_flight}
        if state is S.WAITING:
            changes |= {"bound_at": self.now, "waiting": 0, "in_flight": 0, "leave": ""}
        self.seats[one.uid] = replace(one, state=state, **changes)
        self.act()

    def finish(self, one):
        if one.state in STEPS:
            self.move(one, STEPS[one.state])

    def act(self):
        for _ in range(50):
            actions = decide(self.view(), POLICY, self.now)
            if not actions:
                return
            for action in actions:
                self.carry_out(action)
            assert violations(self.view()) == ()
        raise AssertionError(f"the decision does not settle: {actions}")

    def carry_out(self, action):
        one = self.seats[action.uid]
        if action.kind is ActionKind.REVOKE:
            self.seats[one.uid] = replace(one, in_flight=0, drained=True)
            return
        state = next_state(one.state, EVENTS[action.kind])
        changes = {}
        if state is S.DRAINING:
            changes = {"drain_since": self.now, "drained": not one.in_flight}
        self.seats[one.uid] = replace(one, state=state, **changes)


Swapping.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestSwapping = pytest.mark.slow(Swapping.TestCase)


@pytest.mark.parametrize("kind", list(ActionKind))
def test_every_action_has_a_meaning_for_the_table(kind):
    assert kind is ActionKind.REVOKE or kind in EVENTS


def test_a_seat_stays_as_long_as_is_said_of_it_and_no_longer_than_others_have_to_wait():
    busy = seat("a", state=S.ACTIVE, active_since=100.0, in_flight=1)
    for said, stays in ((None, 1.0), (5.0, 5.0), (0.0, 0.0), (900.0, POLICY.most_residency)):
        those = view(replace(busy, min_residency=said), asked("b", since=101.0))
        early = decide(those, POLICY, 100.0 + stays - 0.1) if stays else ()
        assert kinds(early) == []
        assert kinds(decide(those, POLICY, 100.0 + stays)) == [("drain", "a")]
        since_b = 101.0 + POLICY.max_wait
        assert not stays or next_look(those, POLICY, 100.0) == min(100.0 + stays, since_b)


def test_an_administrators_longer_residency_counts_for_who_says_so():
    policy = replace(POLICY, min_residency=60.0)
    busy = seat("a", state=S.ACTIVE, active_since=100.0, in_flight=1, min_residency=50.0)
    assert kinds(decide(view(busy, asked("b")), policy, 150.0)) == [("drain", "a")]


def test_demand_waits_as_long_as_is_said_of_it_and_never_comes_first_sooner_than_others():
    busy = seat("a", state=S.ACTIVE, active_since=0.0, in_flight=1, priority=9)
    for said, waits in ((None, 20.0), (50.0, 50.0), (1.0, 20.0)):
        those = view(busy, asked("b", since=100.0, max_wait=said))
        assert kinds(decide(those, POLICY, 100.0 + waits - 0.1)) == []
        assert next_look(those, POLICY, 100.0) == 100.0 + waits
        assert kinds(decide(those, POLICY, 100.0 + waits)) == [("drain", "a")]
        assert f"for {waits:g} s at most" in obstacle(those, POLICY, PodUid("b"), 101.0)
