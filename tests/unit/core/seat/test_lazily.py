"""Which restores are lazy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.seat.lazily import Rates, pays

GIB = 1 << 30
sizes = st.integers(0, 1 << 42)
rates = st.builds(Rates, st.floats(1e6, 1e11), st.floats(1e6, 1e11))


@pytest.mark.parametrize(
    ("size", "device", "lazily"),
    [
        (GIB, 0, True),
        (64 << 20, 0, False),
        (10 * GIB, 9 * GIB, False),
        (10 * GIB, GIB, False),
        (10 * GIB, GIB // 4, True),
        (0, 0, False),
    ],
    ids=["much", "little", "the GPUs' mostly", "a tenth the GPUs'", "less the GPUs'", "unknown"],
)
def test_memory_comes_later_where_much_of_it_is_not_the_gpus(size, device, lazily):
    assert pays(size, device, Rates()) is lazily


@pytest.mark.parametrize(
    ("size", "device", "first", "lazily"),
    [
        (10 * GIB, 9 * GIB, 9 * GIB, True),
        (10 * GIB, 5 * GIB, 5 * GIB, True),
        (10 * GIB, 9 * GIB, 8 * GIB, False),
        (10 * GIB, 9 * GIB, 0, False),
        (GIB, GIB // 2, GIB // 2, True),
        (10 * GIB, 10 * GIB, 10 * GIB, False),
        (10 * GIB, 0, 12 * GIB, False),
    ],
    ids=["most", "half", "less than it had", "unknown", "small", "all", "more than there is"],
)
def test_what_the_gpus_had_is_no_hindrance_where_it_comes_first(size, device, first, lazily):
    assert pays(size, device, Rates(), first) is lazily


def test_what_contexts_take_is_not_missed_where_the_rest_is_first():
    held, first = 11 * GIB // 2, 4 * GIB
    assert not pays(10 * GIB, held, Rates(), first)
    assert pays(10 * GIB, held, Rates(), first, gpus=2)
    assert not pays(10 * GIB, GIB, Rates(), 0, gpus=2)


@given(sizes, sizes, sizes, rates)
def test_the_more_the_gpus_have_the_less_it_pays(size, device, more, known):
    if not pays(size, device, known):
        assert not pays(size, device + more, known)


@given(sizes, sizes, rates)
def test_it_is_never_chosen_where_the_whole_is_there_as_soon(size, first, known):
    if max(0, size - first) / known.eager <= 0.25:
        assert not pays(size, 0, known, first)


@given(st.lists(st.floats(1e8, 1e10), min_size=30, max_size=40), st.booleans())
def test_rates_come_to_what_was_seen(seen, lazy):
    known = Rates()
    for rate in seen:
        known = known.learned(GIB, GIB / rate, lazy=lazy)
    assert 0.9 * min(seen) <= (known.lazy if lazy else known.eager) <= 1.1 * max(seen)
    assert (known.eager if lazy else known.lazy) == (Rates().eager if lazy else Rates().lazy)


def test_little_says_nothing_of_rates():
    assert Rates().learned(1 << 20, 1.0, lazy=True) == Rates()
    assert Rates().learned(GIB, 0.0, lazy=True) == Rates()
