"""Work of several threads in the order in which it was given."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.checkpoint.ordered import ordered, threads


@given(st.integers(0, 40), st.integers(1, 8), st.integers(1, 8))
def test_all_comes_in_order_however_many_are_waited_for_together(count, ahead, at_once):
    with threads(3, "test") as pool:
        taken = list(ordered(pool, lambda n: n * n, range(count), ahead, min(ahead, at_once)))
    assert taken == [n * n for n in range(count)]


@pytest.mark.parametrize("at_once", [1, 3, 6])
def test_no_more_is_given_out_than_may_be_under_way(at_once):
    given, taken = [], 0

    def items():
        for number in range(50):
            given.append(number)
            yield number

    with threads(2, "test") as pool:
        for _ in ordered(pool, str, items(), 6, at_once):
            taken += 1
            assert len(given) - taken < 6
    assert taken == 50


def test_the_first_error_is_raised_also_of_what_is_waited_for_together():
    later = threading.Event()

    def work(number):
        if number == 2:
            later.wait(20)
            raise ValueError(number)
        if number == 3:
            later.set()
            raise KeyError(number)
        return number

    taken = []
    with threads(2, "test") as pool, pytest.raises(ValueError, match="2"):
        taken.extend(ordered(pool, work, range(6), 4, 4))
    assert later.is_set()
