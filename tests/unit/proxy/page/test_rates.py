"""Requests a second, and the waits of the last minute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.page.rates import ALL, KEPT_S, RATE_S, Rates


def test_each_model_has_its_own_and_all_have_theirs():
    rates = Rates()
    for number in range(20):
        rates.count("a", 200, 0.0, 100.0)
        rates.count("b", 503 if number % 2 else 200, 2.0, 100.0)
    found = rates.now(100.5, {"a", "b"})
    assert (found["a"].rate, found["a"].failed, found["a"].p50) == (20 / RATE_S, 0, 0.0)
    assert (found["b"].failed, found["b"].p50) == (10, pytest.approx(2.0, rel=0.05))
    assert (found[ALL].rate, found[ALL].p50) == (40 / RATE_S, 0.0)
    assert found[ALL].p99 == pytest.approx(2.0, rel=0.05)


def test_others_models_count_nowhere():
    rates = Rates()
    rates.count("mine", 200, 0.0, 1.0)
    rates.count("theirs", 500, 60.0, 1.0)
    found = rates.now(1.0, {"mine"})
    assert set(found) == {"mine", ALL}
    assert (found[ALL].rate, found[ALL].failed, found[ALL].p99) == (1 / RATE_S, 0, 0.0)


def test_what_no_seat_serves_is_no_model():
    rates = Rates()
    rates.count("", 404, 0.0, 1.0)
    assert rates.now(1.0, {""}) == {}


def test_a_minute_is_remembered_and_ten_seconds_make_the_rate():
    rates = Rates()
    rates.count("a", 200, 1.0, 100.0)
    assert rates.now(100.0 + RATE_S, {"a"})["a"].rate == 0.0
    assert rates.now(100.0 + KEPT_S - 1, {"a"})["a"].p50 is not None
    assert rates.now(100.0 + KEPT_S, {"a"}) == {}


@given(st.lists(st.floats(0.002, 500.0), min_size=1, max_size=200))
def test_a_percentile_is_off_by_a_twentieth_at_most(waits):
    rates = Rates()
    for wait in waits:
        rates.count("a", 200, wait, 5.0)
    one, ordered = rates.now(5.0, {"a"})["a"], sorted(waits)
    assert one.p50 == pytest.approx(ordered[(len(waits) - 1) // 2], rel=0.051, abs=1e-4)
    assert one.p99 == pytest.approx(ordered[-(-99 * len(waits) // 100) - 1], rel=0.051, abs=1e-4)
