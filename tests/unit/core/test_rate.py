"""Buckets: never more than the burst at once, never more than the rate for long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.rate import Bucket


@given(st.lists(st.floats(0, 10), min_size=1, max_size=200))
def test_no_window_has_more_than_burst_and_rate_allow(steps):
    bucket, now, taken = Bucket(2.0, 5), 100.0, []
    for step in steps:
        now += step
        if bucket.take(now) == 0.0:
            taken.append(now)
    for first, begin in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= 5 + 2.0 * (taken[last] - begin) + 1e-6


def test_who_waits_as_told_gets_one():
    bucket = Bucket(4.0, 1)
    assert bucket.take(0.0) == 0.0
    wait = bucket.take(0.0)
    assert wait == pytest.approx(0.25)
    assert bucket.take(wait) == pytest.approx(0.0, abs=1e-9)


def test_a_clock_that_goes_back_gives_nothing():
    bucket = Bucket(1.0, 1)
    assert bucket.take(50.0) == 0.0
    assert bucket.take(10.0) > 0
