"""Where parked seats' states should be: single decisions, and any order of events."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kybernate.core.tiers import tiering
from kybernate.core.tiers.tiering import (
    Coming,
    Parked,
    Step,
    TierPolicy,
    TierView,
    decide,
    deeper,
    heat,
    next_check,
    used,
)
from kybernate.types import PodUid, Tier

GIB = 1 << 30
RAM, NVME, OBJECT = Tier.RAM, Tier.NVME, Tier.OBJECT
LIMITS = {RAM: 100 * GIB, NVME: 200 * GIB, OBJECT: 1 << 60}
POLICY = TierPolicy(min_residency=5.0)
SAVED = frozenset({NVME})


def seat(name, size=40, tier=RAM, **more):
    if tier is not RAM:
        more.setdefault("copies", frozenset({tier}))
    return Parked(PodUid(name), name, size * GIB, tier, **more)


def coming(name, size=40, turn=-1):
    return Coming(PodUid(name), name, size * GIB, turn)


def steps(*seats, limits=LIMITS, policy=POLICY, now=1000.0, **more):
    view = TierView(tuple(seats), limits, **more)
    return [(action.step.value, action.uid) for action in decide(view, policy, now)]


@pytest.mark.parametrize("tier", [NVME, OBJECT])
def test_what_a_lost_gpu_strands_stays_whoever_wants_it_and_nobody_makes_room_for_it(tier):
    for wish in ({"turn": 0}, {"asked": RAM}, {"prefetch": 0.0}):
        assert steps(seat("a", tier=tier, **wish)), "it would come up"
        assert steps(seat("a", tier=tier, stranded=True, **wish)) == []
    for stranded in (False, True):
        view = TierView((seat("a", tier=tier, stranded=stranded),), LIMITS)
        assert tiering.lodges(view, (), 1000.0, PodUid("a")) is not stranded


def test_what_is_stranded_may_sink():
    asked = seat("a", tier=NVME, asked=OBJECT, stranded=True)
    assert steps(asked) == [("pack", "a")]


def test_nothing_is_moved_while_there_is_room():
    assert steps(seat("a"), seat("b")) == []
    assert steps(seat("a"), coming=(coming("x", 60),)) == []


def test_the_coldest_gives_way_to_what_is_to_be_parked():
    seats = seat("old", used=10.0), seat("new", used=900.0)
    assert steps(*seats, coming=(coming("x"),)) == [("dump", "old")]


def test_how_often_it_is_expected_counts_more_than_a_use_of_long_ago():
    busy, quiet = seat("busy", used=10.0, calls=20.0), seat("quiet", used=900.0)
    assert steps(busy, quiet, coming=(coming("x"),)) == [("dump", "quiet")]
    assert heat(busy, POLICY, 1000.0) > heat(quiet, POLICY, 1000.0)


def test_a_large_one_leaves_before_small_ones_that_are_called_as_often():
    large, small = seat("a", 70, used=999.0, calls=20.0), seat("b", 30, used=10.0, calls=10.0)
    assert steps(large, small, coming=(coming("x", 30),)) == [("dump", "a")]
    often = replace(large, calls=24.0)
    assert steps(often, small, coming=(coming("x", 30),)) == [("dump", "b")]
    low, other = replace(large, tier=NVME, saved=1 * GIB), replace(small, tier=NVME)
    assert heat(low, POLICY, 1000.0) > heat(other, POLICY, 1000.0)


def test_no_more_leave_than_must_and_none_in_vain():
    three = seat("a", 10, used=1.0), seat("b", 50, used=2.0), seat("c", 40, used=3.0)
    assert steps(*three, coming=(coming("x", 45),)) == [("dump", "b")]
    assert steps(*three, coming=(coming("x", 200),)) == []


def test_what_is_on_its_way_down_already_is_counted_on():
    leaving, other = seat("a", used=1.0, to=NVME), seat("b")
    assert steps(leaving, other, coming=(coming("x"),)) == []


BOTH = frozenset({NVME, OBJECT})


def test_what_is_left_on_nvme_of_one_in_the_object_store_is_used_and_needs_no_more_room():
    limits = {**LIMITS, NVME: 100 * GIB}
    left = seat("a", 80, OBJECT, copies=BOTH, saved=80 * GIB)
    assert steps(replace(left, turn=0), limits=limits) == [("fetch", "a")]
    assert steps(replace(left, turn=0), limits={**LIMITS, NVME: 40 * GIB}) == [("fetch", "a")]
    assert tiering.lodges(TierView((left,), limits), (), 1000.0, PodUid("a"))


def test_what_is_left_on_nvme_of_one_in_the_object_store_goes_unless_it_is_wanted():
    left = seat("a", 80, OBJECT, copies=BOTH)
    assert steps(left) == [("drop", "a")]
    assert steps(replace(left, not_before=1001.0)) == []
    assert not tiering.at_rest(TierView((left,), LIMITS), POLICY, 1000.0, ())


def test_without_a_tier_below_everything_stays():
    assert steps(seat("a"), seat("b"), limits={RAM: 100 * GIB}, coming=(coming("x"),)) == []


@pytest.mark.parametrize(
    "kept",
    [
        {"deepest": RAM},
        {"asked": RAM},
        {"not_before": 1001.0},
        {"moved_at": 996.0},
    ],
    ids=["pinned by its pod", "by an operator", "refused lately", "just moved"],
)
def test_who_must_stay_stays_and_another_goes(kept):
    held, other = seat("held", used=1.0, **kept), seat("other", used=2.0)
    assert steps(held, other, coming=(coming("x"),)) == [("dump", "other")]


def test_one_whose_turn_comes_late_gives_way_if_nobody_else_can():
    """Also the very next: until the one in GPU memory is parked, it would wait for ever."""
    first, later = seat("first", turn=0), seat("later", turn=1)
    assert steps(first, later, coming=(coming("x"),)) == [("dump", "later")]
    assert steps(seat("only", 70, turn=0), coming=(coming("x"),)) == [("dump", "only")]


def test_nobody_leaves_for_one_whose_turn_comes_later():
    before, after = seat("before", 60, turn=0), seat("after", 60, NVME, turn=1)
    assert steps(before, after) == []
    assert steps(replace(before, turn=2), after) == [("dump", "before")]


def test_less_free_memory_than_the_budget_counts():
    assert steps(seat("a"), coming=(coming("x"),), free_ram=39 * GIB) == [("dump", "a")]


def test_what_is_called_for_comes_up_at_once_whose_turn_it_is_first():
    below = [seat(n, 60, NVME, turn=turn) for n, turn in (("b", 0), ("a", 1))]
    assert steps(*below) == [("restore", "b")]


def test_the_coldest_in_ram_leaves_for_what_is_called_for_and_then_it_comes():
    below, cold = seat("a", 60, NVME, turn=0), seat("cold", 60)
    assert steps(below, cold) == [("dump", "cold")]
    assert steps(below, replace(cold, to=NVME)) == []
    assert steps(below, replace(cold, tier=NVME, copies=SAVED)) == [("restore", "a")]


def test_nobody_takes_the_room_that_others_leave_for_an_earlier_turn():
    first, later = seat("first", 80, NVME, turn=0), seat("later", 30, NVME, turn=1)
    leaving = seat("leaving", 30, to=NVME, turn=2)
    assert steps(first, later, leaving, seat("stays", 10, turn=3)) == []
    assert steps(first, later, seat("stays", 10, turn=3)) == [("restore", "first")]
    there, last = seat("there", 150, NVME, to=OBJECT), seat("last", 20, OBJECT, turn=1)
    assert steps(seat("big", 90, OBJECT, turn=0), there, last) == []


def test_it_leaves_the_room_that_those_on_its_gpus_need_to_be_parked():
    """Else it would fill RAM, and whoever must leave the GPU for it could not be parked."""
    below = seat("a", 60, NVME, turn=0, behind=60 * GIB)
    assert steps(below) == []
    assert steps(replace(below, behind=0)) == [("restore", "a")]


def test_a_full_nvme_sends_its_coldest_on_to_the_object_store_first():
    full = {**LIMITS, NVME: 60 * GIB}
    seats = seat("ram", used=1.0), seat("low", 50, NVME, used=2.0), seat("other", 60, used=900.0)
    assert steps(*seats, limits=full, coming=(coming("x"),)) == [("pack", "low")]
    packed = replace(seats[1], copies=frozenset({NVME, OBJECT}))
    got = steps(seats[0], packed, seats[2], limits=full, coming=(coming("x"),))
    assert got == [("drop", "low"), ("dump", "ram")]


def test_what_may_not_go_into_the_object_store_stays_on_nvme():
    full = {**LIMITS, NVME: 60 * GIB}
    low = seat("low", 50, NVME, deepest=NVME)
    assert steps(low, seat("a"), seat("b"), limits=full, coming=(coming("x"),)) == []


def test_from_the_object_store_it_comes_by_way_of_nvme():
    assert steps(seat("a", 40, OBJECT, turn=0)) == [("fetch", "a")]


def test_an_operator_moves_it_but_a_call_comes_first():
    assert steps(seat("a", asked=NVME)) == [("dump", "a")]
    assert steps(seat("a", tier=NVME, asked=RAM)) == [("restore", "a")]
    assert steps(seat("a", tier=NVME, asked=OBJECT)) == [("pack", "a")]
    assert steps(seat("a", asked=NVME, turn=0)) == []
    assert steps(seat("a", asked=NVME, deepest=RAM)) == []


def test_what_nobody_uses_sinks_after_its_time():
    policy = TierPolicy(idle={RAM: 60.0, NVME: 600.0})
    assert steps(seat("a", used=950.0), policy=policy) == []
    assert steps(seat("a", used=940.0), policy=policy) == [("dump", "a")]
    assert steps(seat("a", tier=NVME, used=100.0, moved_at=500.0), policy=policy) == []
    assert steps(seat("a", tier=NVME, used=100.0, moved_at=400.0), policy=policy) == [("pack", "a")]


def test_a_seats_own_times_come_before_the_policys():
    policy = TierPolicy(idle={RAM: 60.0, NVME: 600.0})
    own = {"idle": {RAM: 10.0}, "used": 985.0}
    assert steps(seat("a", **own), policy=policy) == [("dump", "a")]
    assert steps(seat("a", **own)) == [("dump", "a")]
    assert steps(seat("a", **own, tier=NVME, moved_at=500.0), policy=policy) == []
    assert steps(seat("a", idle={RAM: 100.0}, used=930.0), policy=policy) == []


def test_nothing_sinks_for_want_of_use_alone_to_where_it_would_wake_late():
    policy = TierPolicy(idle={RAM: 60.0, NVME: 60.0})
    late = {"idle": {RAM: 10.0}, "used": 100.0}
    assert steps(seat("a", **late, timely=RAM), policy=policy) == []
    assert steps(seat("a", **late, tier=NVME, timely=NVME), policy=policy) == []
    assert steps(seat("a", **late, timely=NVME), policy=policy) == [("dump", "a")]
    assert steps(seat("a", **late, deepest=RAM), policy=policy) == []
    asked = seat("a", **late, timely=RAM, asked=NVME)
    assert steps(asked, policy=policy) == [("dump", "a")]


def test_what_is_likely_to_be_called_for_comes_up_where_there_is_room_to_spare():
    policy = TierPolicy(prefetch_calls=2.0)
    below = seat("a", 40, NVME, calls=3.0)
    assert steps(below, policy=policy) == [("restore", "a")]
    assert steps(below, seat("b", 30), policy=policy) == []
    assert steps(replace(below, calls=1.0), policy=policy) == []
    assert steps(replace(below, moved_at=999.0), policy=policy) == []
    assert steps(below) == []


# --- any order of events ------------------------------------------------------------------------

_TIERS = st.sampled_from(Tier)
_TIME = st.integers(0, 2000).map(float)


@st.composite
def parked(draw, number):
    tier = draw(_TIERS)
    deepest = draw(st.sampled_from([t for t in Tier if not deeper(tier, t)]))
    copies = {tier} if tier is not RAM else set()
    if tier is not RAM and draw(st.booleans()):
        copies = {NVME, OBJECT}  # in the object store: what could not be dropped
    size = draw(st.integers(1, 60))
    return Parked(
        PodUid(f"u{number}"),
        f"s{number}",
        size * GIB,
        tier,
        saved=draw(st.sampled_from([0, size * GIB, size * GIB // 2])),
        used=draw(_TIME),
        calls=draw(st.sampled_from([0.0, 1.0, 5.0])),
        moved_at=draw(st.none() | _TIME),
        turn=draw(st.none() | st.just(number)),
        asked=draw(st.none() | _TIERS),
        deepest=deepest,
        copies=frozenset(copies),
        not_before=draw(st.just(0.0) | _TIME),
        behind=draw(st.sampled_from([0, 0, 20 * GIB])),
        idle=draw(st.sampled_from([{}, {RAM: 30.0}, {NVME: 30.0}])),
        timely=draw(_TIERS),
    )


@st.composite
def nodes(draw):
    seats = tuple(draw(parked(number)) for number in range(draw(st.integers(0, 7))))
    limits = {RAM: draw(st.integers(0, 150)) * GIB, NVME: draw(st.integers(0, 150)) * GIB}
    if draw(st.booleans()):
        limits[OBJECT] = draw(st.integers(0, 300)) * GIB
    pending = tuple(
        coming(f"x{n}", draw(st.integers(1, 60))) for n in range(draw(st.integers(0, 2)))
    )
    policy = TierPolicy(
        idle=draw(st.sampled_from([{}, {RAM: 100.0}, {RAM: 50.0, NVME: 200.0}])),
        prefetch_calls=draw(st.sampled_from([0.0, 2.0])),
    )
    return TierView(seats, limits, pending, draw(st.none() | st.integers(0, 150 * GIB))), policy


@pytest.mark.slow
@dataclass
class World:
    """A node on which what was decided is done, a step at a time, in any order."""

    view: TierView
    policy: TierPolicy
    now: float

    def begin(self):
        actions = decide(self.view, self.policy, self.now)
        assert actions == decide(self.view, self.policy, self.now)
        assert len({action.uid for action in actions}) == len(actions)
        for action in actions:
            self._check(action, next(s for s in self.view.seats if s.uid == action.uid))
        to = {Step.DUMP: NVME, Step.RESTORE: RAM, Step.PACK: OBJECT, Step.FETCH: NVME}
        begun = {action.uid: action.step for action in actions}
        seats = []
        for one in self.view.seats:
            step = begun.get(one.uid)
            if step is Step.DROP:
                seats.append(replace(one, tier=OBJECT, copies=one.copies - {NVME}))
            else:
                seats.append(replace(one, to=to[step]) if step else one)
        self._replace(seats)
        return actions

    def _check(self, action, one):
        target = {Step.DUMP: NVME, Step.PACK: OBJECT, Step.DROP: OBJECT}.get(action.step)
        if target is not None:
            assert not deeper(target, one.deepest), "deeper than its pod allows"
            assert self._freely_moved(one), "moved back within the minimum residency"
        if action.step is Step.DROP:
            assert one.copies - {NVME}, "the last verified copy is dropped"
        if action.step is Step.RESTORE:
            assert one.tier is NVME
        assert self.now >= one.not_before
        assert one.to is None

    def _freely_moved(self, one):
        return (
            one.asked is not None
            or one.tier is OBJECT
            or one.moved_at is None
            or self.now >= one.moved_at + self.policy.min_residency
        )

    def _replace(self, seats):
        self.view = replace(self.view, seats=tuple(seats))

    def finish(self, uid):
        self._replace(
            self._there(one) if one.uid == uid and one.to is not None else one
            for one in self.view.seats
        )

    def _there(self, one):
        if one.to is OBJECT:
            return replace(one, to=None, copies=one.copies | {OBJECT})
        copies = frozenset() if one.to is RAM else one.copies | {one.to}
        return replace(one, tier=one.to, to=None, copies=copies, moved_at=self.now)


@pytest.mark.slow
@given(nodes(), st.data())
@settings(max_examples=400, deadline=None)
def test_the_promises_hold_in_any_order(node, data):
    world = World(*node, now=data.draw(st.integers(500, 2500)).__float__())
    for _ in range(data.draw(st.integers(1, 12))):
        over = {tier: used(world.view.seats, tier) for tier in world.view.limits}
        world.begin()
        for tier, limit in world.view.limits.items():
            taken = used(world.view.seats, tier)
            assert taken <= max(limit, over[tier]), f"more of {tier} is taken than there is"
        moving = [one.uid for one in world.view.seats if one.to is not None]
        for uid in data.draw(st.permutations(moving)):
            if data.draw(st.booleans()):
                world.finish(uid)
        world.now += data.draw(st.sampled_from([0.0, 0.5, 6.0, 100.0]))
    assert all(one.tier is RAM or one.copies for one in world.view.seats)


@pytest.mark.slow
@given(nodes(), st.integers(500, 2500).map(float))
@settings(max_examples=200, deadline=None)
def test_it_comes_to_rest(node, now):
    """With time standing still, no state is moved for ever."""
    world = World(*node, now=now)
    for _ in range(40):
        if not world.begin() and not any(one.to for one in world.view.seats):
            return
        for one in world.view.seats:
            world.finish(one.uid)
    raise AssertionError("something is moved for ever")


@pytest.mark.slow
@given(nodes(), st.integers(500, 2500).map(float))
@settings(max_examples=200, deadline=None)
def test_nothing_changes_before_the_time_that_is_told(node, now):
    view, policy = node
    if decide(view, policy, now):
        return
    when = next_check(view, policy, now)
    until = now + 5000.0 if when is None else when
    for part in (0.25, 0.5, 0.999):
        assert decide(view, policy, now + (until - now) * part) == ()


@pytest.mark.slow
@given(nodes(), st.sets(st.integers(0, 6)), st.booleans(), st.integers(500, 2500).map(float))
@settings(max_examples=400, deadline=None)
def test_where_all_are_at_rest_nothing_is_begun(node, wishing, tight, now):
    """Of a drawn node, which mostly isn't, fewer wish for something, and there may be room."""
    view, policy = node
    if not tight:
        view = replace(view, limits=dict.fromkeys(view.limits, 1 << 60), free_ram=None)
    seats = [
        one if n in wishing else replace(one, asked=None, idle={RAM: 1e6, NVME: 1e6}, prefetch=9.0)
        for n, one in enumerate(view.seats)
    ]
    seats = [replace(one, turn=None) if n not in wishing else one for n, one in enumerate(seats)]
    awake = tuple(Parked(one.uid, one.name, one.size) for one in view.coming)
    view = replace(view, seats=tuple(seats), awake=awake)
    asking = {one.uid for one in seats if one.turn is not None}
    calm = tiering.at_rest(view, policy, now, asking)
    event(f"at rest: {calm}, of {len(seats)} seats")
    assert not calm or decide(view, policy, now) == ()


@pytest.mark.parametrize(
    ("one", "more", "calm"),
    [
        (seat("a"), {}, True),
        (seat("a", tier=NVME), {}, True),
        (seat("a", used=999.0, idle={RAM: 2.0}), {}, True),
        (seat("a", asked=RAM), {"awake": (seat("b", 60),)}, True),
        (seat("called", tier=NVME), {}, False),
        (seat("a", tier=NVME, calls=1.0, prefetch=1.0), {}, False),
        (seat("a", used=990.0, idle={RAM: 2.0}), {}, False),
        (seat("a", asked=NVME), {}, False),
        (seat("a"), {"awake": (seat("b", 61),)}, False),
        (seat("a"), {"awake": (seat("b", 30),), "free_ram": 20 * GIB}, False),
        (seat("a", namespace="x"), {"quotas": {"x": 1}}, False),
    ],
)
def test_a_node_is_at_rest_while_nobody_asks_and_all_that_are_awake_have_room(one, more, calm):
    view = TierView((one,), LIMITS, **more)
    assert tiering.at_rest(view, POLICY, 1000.0, {PodUid("called")}) is calm


def test_what_a_namespace_takes_beyond_its_quota_leaves_ram_the_coldest_first():
    mine = [seat(name, 10, used=at, namespace="x") for name, at in (("a", 3.0), ("b", 1.0))]
    other = seat("o", 10, used=0.0, namespace="y")
    assert steps(*mine, other) == []
    assert steps(*mine, other, quotas={"x": 15 * GIB}) == [("dump", "b")]
    assert steps(*mine, other, quotas={"x": 0}) == [("dump", "b"), ("dump", "a")]
    # What leaves already is counted on, and what is being parked takes its part.
    leaving = replace(mine[0], to=NVME), mine[1]
    assert steps(*leaving, quotas={"x": 10 * GIB}) == []
    assert steps(mine[0], quotas={"x": 10 * GIB}, parking=(mine[1],)) == [("dump", "a")]


def test_quotas_of_namespaces_without_seats_here_cost_nothing(monkeypatch):
    sorts = []
    coldest = tiering._Decision._coldest
    monkeypatch.setattr(
        tiering._Decision, "_coldest", lambda self, seats: sorts.append(1) or coldest(self, seats)
    )
    quotas = {f"n{number}": 0 for number in range(1000)} | {"x": 0}
    assert steps(seat("a", 10, namespace="x"), quotas=quotas) == [("dump", "a")]
    assert len(sorts) < 10


@pytest.mark.parametrize(
    "kept",
    [{"turn": 0}, {"deepest": RAM}, {"asked": RAM}, {"not_before": 2e3}, {"moved_at": 999.0}],
    ids=str,
)
def test_a_quota_moves_nobody_who_is_called_or_must_stay(kept):
    one = seat("a", 10, namespace="x", **kept)
    assert steps(one, quotas={"x": 0}) == []
    assert steps(one, seat("b", 10, namespace="x"), quotas={"x": 0}) == [("dump", "b")]


def test_ready_within_keeps_nobody_beyond_a_quota():
    one = seat("a", 10, namespace="x", timely=RAM)
    assert steps(one, quotas={"x": 0}) == [("dump", "a")]


def test_nothing_is_prefetched_beyond_a_quota():
    policy = TierPolicy(min_residency=5.0, prefetch_calls=1.0)
    one = seat("a", 10, NVME, calls=9.0, namespace="x")
    assert steps(one, policy=policy, quotas={"x": 10 * GIB}) == [("restore", "a")]
    assert steps(one, policy=policy, quotas={"x": 9 * GIB}) == []


def test_what_is_said_of_one_seat_counts_for_its_prefetch():
    busy = TierPolicy(prefetch_calls=2.0)
    below = seat("a", 40, NVME, calls=1.0)
    assert steps(replace(below, prefetch=1.0)) == [("restore", "a")]
    assert steps(replace(below, calls=0.0, prefetch=0.0)) == [("restore", "a")], "always"
    assert steps(replace(below, calls=9.0, prefetch=1e12), policy=busy) == [], "never"
    crowded = replace(below, prefetch=0.0), seat("b", 30)
    assert steps(*crowded) == [], "only while there is room to spare"


def test_what_is_prefetched_does_not_sink_for_want_of_use_only_to_come_up_again():
    policy = TierPolicy(idle={RAM: 60.0, NVME: 60.0})
    idle = seat("a", used=100.0, prefetch=0.0)
    assert steps(idle, policy=policy) == []
    assert steps(replace(idle, prefetch=None), policy=policy) == [("dump", "a")]
    assert steps(replace(idle, namespace="x"), policy=policy, quotas={"x": 0}) == [("dump", "a")]
