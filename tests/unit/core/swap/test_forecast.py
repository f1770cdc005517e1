"""Expected waits: against queues whose wait is known, and what they say of who fits together."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.placement.colocate import own_wait_seconds
from kybernate.core.swap import forecast
from kybernate.core.swap.activity import HOURS
from kybernate.core.swap.forecast import (
    TURN,
    UNKNOWN,
    Sharer,
    Traffic,
    clash,
    observed,
    wait_seconds,
    worth,
)

NEVER = -1


def sharer(hours, busy, calls_per_hour, switch=4.0):
    """One that is busy in the hours named, and silent in all others."""
    hours = set(hours)
    return Sharer(
        Traffic(
            tuple(busy if hour in hours else 0.0 for hour in range(HOURS)),
            tuple(calls_per_hour / 3600 if hour in hours else 0.0 for hour in range(HOURS)),
        ),
        switch,
    )


ALWAYS = range(HOURS)
OFFICE, NIGHT = range(8, 18), range(20, 24)


def test_alone_nobody_waits():
    assert wait_seconds([], sharer(ALWAYS, 0.9, 600)) == 0.0
    assert own_wait_seconds([], sharer(ALWAYS, 0.9, 600)) == 0.0


def test_few_short_calls_wait_for_whom_they_meet():
    """No switching, little load: the share of time that others are served, times what is left."""
    one = sharer(ALWAYS, 0.01, 18, switch=0.0)  # 2 s, five of them
    assert own_wait_seconds([one] * 5, one) == pytest.approx(5 * 0.01 * 2.0, rel=0.1)


def test_a_turn_of_each_other_one_is_the_most_that_it_waits():
    one = sharer(ALWAYS, 1.0, 0.1, switch=4.0)
    switch = 4 * 5 / 6  # of six turns five are another one's
    longest = 5 * (TURN + switch) + switch
    assert own_wait_seconds([one] * 5, one) == pytest.approx(longest, rel=0.01)


@pytest.mark.parametrize("slots", [2, 3])
def test_with_more_slots_they_wait_less(slots):
    present = [sharer(ALWAYS, 0.1, 60)] * 6
    newcomer = sharer(ALWAYS, 0.1, 60)
    fewer = wait_seconds(present, newcomer, slots - 1)
    assert wait_seconds(present, newcomer, slots) < fewer / 2


def test_the_switch_is_paid_when_another_one_was_served_last():
    quiet, rare = sharer(ALWAYS, 0.0001, 60, switch=10.0), sharer(ALWAYS, 0.0001, 60, switch=10.0)
    assert own_wait_seconds([quiet], rare) == pytest.approx(5.0, rel=0.2)
    rarer = sharer(ALWAYS, 0.00001, 1, switch=10.0)
    assert own_wait_seconds([rarer] * 9, rarer) == pytest.approx(9.0, rel=0.1)


def test_models_with_other_hours_go_together_and_two_hot_ones_do_not():
    hot, same, other = (
        sharer(OFFICE, 0.6, 120),
        sharer(OFFICE, 0.5, 120),
        sharer(NIGHT, 0.5, 120),
    )
    quiet = sharer(ALWAYS, 0.02, 12)
    waits = [wait_seconds([one], same) for one in (other, quiet, hot)]
    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert waits[2] > 10 * waits[1]
    assert clash([hot, quiet], same.traffic) == tuple(OFFICE)
    assert clash([other, quiet], same.traffic) == ()


def test_the_wait_of_others_counts_too():
    """A quiet newcomer hardly waits longer itself where it keeps a busy one waiting."""
    busy, quiet = sharer(ALWAYS, 0.5, 300), sharer(ALWAYS, 0.02, 12)
    assert wait_seconds([busy], quiet) > 2 * own_wait_seconds([busy], quiet)


def test_who_is_not_known_is_neither_quiet_nor_hot():
    unknown = Sharer(UNKNOWN, 4.0)
    newcomer = sharer(ALWAYS, 0.2, 60)
    quiet, hot = sharer(ALWAYS, 0.01, 2), sharer(ALWAYS, 0.6, 120)
    waits = [wait_seconds([one], newcomer) for one in (quiet, unknown, hot)]
    assert waits == sorted(waits)


def test_who_never_calls_has_a_forecast_all_the_same():
    silent = sharer([], 0, 0)
    assert 0 <= wait_seconds([silent], silent) < 4.1
    assert own_wait_seconds([sharer(ALWAYS, 0.9, 60)], silent) == pytest.approx(13, rel=0.1)


def test_a_wait_as_worth():
    assert worth(0.0, 1000) == 1000
    assert worth(5.0, 1000) == 500
    assert [worth(wait, 1000) for wait in (0.1, 1, 10, 1000)] == sorted(
        (worth(wait, 1000) for wait in (0.1, 1, 10, 1000)), reverse=True
    )


def test_hours_that_were_not_seen_are_like_the_others():
    busy, calls = [NEVER] * HOURS, [NEVER] * HOURS
    busy[3], calls[3], busy[4], calls[4] = 200, 36, 400, 72
    traffic = observed(busy, calls)
    assert traffic is not None
    assert (traffic.busy[3], traffic.busy[4], traffic.busy[12]) == pytest.approx((0.2, 0.4, 0.3))
    assert traffic.calls[12] == pytest.approx(54 / 3600, rel=0.1)


def test_a_seat_that_goes_on_as_before_looks_as_before():
    rng, seen = random.Random(4), []
    for _ in range(20):
        busy = [round(600 + rng.uniform(-20, 20))] * HOURS
        seen.append(observed(busy, [100 + rng.uniform(-3, 3)] * HOURS))
    assert len(set(seen)) == 1
    assert seen[0].busy[0] == 0.6
    assert seen[0].calls[0] == pytest.approx(100 / 3600, rel=0.1)
    quiet = observed([0] * 12 + [14] * 12, [0.001] * HOURS)
    assert (quiet.busy[0], quiet.busy[23], quiet.calls[0] > 0) == (0.0, 0.01, True)


def test_who_is_busier_now_than_ever_seen_has_changed():
    busy, calls = [NEVER] * HOURS, [NEVER] * HOURS
    busy[3], calls[3] = 10, 4
    traffic = observed(busy, calls, (900, 180))
    assert traffic is not None
    assert (traffic.busy[12], traffic.busy[3]) == pytest.approx((0.9, 0.01))


def test_nothing_seen_is_no_traffic_and_a_short_profile_is_refused():
    assert observed([NEVER] * HOURS, [NEVER] * HOURS) is None
    with pytest.raises(ValueError, match="24 hours"):
        observed([1], [1])


shares = st.floats(0, 1)
rates = st.floats(0, 2)
traffics = st.builds(
    Traffic,
    st.tuples(*[shares] * 3).map(lambda part: part * 8),
    st.tuples(*[rates] * 3).map(lambda part: part * 8),
)
sharers = st.builds(Sharer, traffics, st.floats(0, 60))


@settings(max_examples=60)
@given(st.lists(sharers, max_size=4), sharers, st.integers(1, 3))
def test_waits_are_never_negative_and_do_not_depend_on_order(present, newcomer, slots):
    wait = wait_seconds(present, newcomer, slots)
    assert wait >= 0
    longest = sum(TURN + one.switch for one in present) + newcomer.switch
    assert 0 <= own_wait_seconds(present, newcomer, slots) <= longest + 1e-6
    for order in itertools.permutations(present):
        assert wait_seconds(order, newcomer, slots) == wait


@settings(max_examples=60)
@given(st.lists(sharers, min_size=1, max_size=4), sharers, sharers)
def test_one_more_at_the_gpu_makes_nobodys_own_wait_shorter(present, newcomer, more):
    """But for rounding, and for turns that get shorter as they get more."""
    before = own_wait_seconds(present, newcomer)
    assert own_wait_seconds([*present, more], newcomer) >= 0.9 * before - 1e-9


def test_what_a_newcomer_adds_is_near_to_what_the_whole_queue_says():
    """The crowd is kept as a few sums; the queue with and without the newcomer is the yardstick."""
    rng = random.Random(2)

    def one():
        busy = min(1.0, rng.choice([0.001, 0.01, 0.05, 0.1, 0.3, 0.6, 0.9]) * rng.uniform(0.7, 1.3))
        return busy, rng.uniform(busy / 100, busy / 2), rng.choice([2.0, 5.0, 12.0, 20.0])

    def waiting(column):
        asked = forecast.turns(column, 1)
        waits = forecast.waits(asked, 1)
        return sum(rate * wait for rate, wait in zip((one[0] for one in asked), waits, strict=True))

    def of(column):
        busy, calls, switch = column
        return Sharer(Traffic((busy,) * HOURS, (calls,) * HOURS), switch)

    pairs = []
    for _ in range(500):
        present, newcomer = tuple(one() for _ in range(rng.randint(1, 5))), one()
        exact = (waiting((*present, newcomer)) - waiting(present)) / newcomer[1]
        pairs.append((exact, wait_seconds([of(p) for p in present], of(newcomer))))
    ratios = sorted(told / exact for exact, told in pairs if exact > 0.1)
    assert 0.9 < ratios[len(ratios) // 2] < 1.1
    assert 0.3 < ratios[len(ratios) // 20] < ratios[-len(ratios) // 20] < 1.6
    swaps = sum(
        (a[0] < b[0]) != (a[1] < b[1]) for a, b in itertools.pairwise(pairs) if a[0] != b[0]
    )
    assert swaps < len(pairs) / 15  # of neighbours in a random order, few are ranked otherwise


@given(
    st.lists(st.floats(0, 1000), min_size=HOURS, max_size=HOURS),
    st.lists(st.floats(0, allow_infinity=True), min_size=HOURS, max_size=HOURS),
)
def test_a_wait_is_finite_whatever_a_node_tells_of_calls(busy, calls):
    told = Sharer(observed(busy, calls), 30.0)
    for wait in (wait_seconds([told] * 3, told), wait_seconds([Sharer(UNKNOWN, 4.0)], told)):
        assert 0 <= worth(wait, 1000) <= 1000
