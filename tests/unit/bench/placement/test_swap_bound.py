"""The bound in hindsight: below the best schedule there is, and above the plainer bound."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.placement.policy.__main__ import Trial, beyond
from bench.placement.policy.baselines import BASELINES
from bench.placement.policy.bound import _weights, load, seconds
from bench.placement.policy.workload import Case
from kybernate.core.simulate.fifo import Fifo
from kybernate.core.simulate.outcome import outcome_of
from kybernate.core.simulate.trace import Trace
from kybernate.core.simulate.world import Costs, World

SIZES = (8.0, 16.0, 40.0, 70.0)
POLICIES = {"fifo": Fifo, **{name: BASELINES[name] for name in ("llama-swap", "prewarm")}}
ONE = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=7)
MANY = st.lists(
    st.tuples(st.floats(0, 60), st.integers(0, 3), st.floats(0.1, 20)), min_size=1, max_size=25
)
PRICES = st.floats(0, 30)


@given(ONE, st.integers(0, 8), st.integers(0, 6), PRICES)
@settings(max_examples=200, deadline=None)
def test_no_schedule_of_one_model_is_below_it(found, swap, within, price):
    at, work = zip(*sorted(found), strict=True)
    least = min(
        price * (len(at) - len(kept)) + sum(swap + visit(part, within) for part in parts)
        for kept in subsets(sorted(found))
        for parts in divided(kept)
    )
    assert seconds(at, work, swap, within, price) <= least + 1e-9


def subsets(requests):
    for many in range(len(requests) + 1):
        yield from itertools.combinations(requests, many)


def divided(requests):
    """All ways to serve requests in visits, each of which serves some that follow each other."""
    if not requests:
        yield []
    for many in range(1, len(requests) + 1):
        yield from ([requests[:many], *rest] for rest in divided(requests[many:]))


def visit(requests, within):
    """The least time between the wake and the park, over all times at which the wake may end."""
    first = requests[0][0]
    return min(
        max(max(came, begun) + takes for came, takes in requests) - begun
        for begun in range(first, first + within + 1)
    )


@given(ONE, st.integers(0, 8), st.integers(0, 6), PRICES)
@settings(max_examples=200, deadline=None)
def test_it_is_never_below_the_bound_by_the_last_one_s_work(found, swap, within, price):
    at, work = zip(*sorted(found), strict=True)
    done = [0.0]
    for last, takes in enumerate(work):
        waits = (done[i] + max(0, at[last] - at[i] - within) for i in range(last + 1))
        done.append(min(done[-1] + price, swap + takes + min(waits)))
    assert seconds(at, work, swap, within, price) >= done[-1] - 1e-9


@pytest.mark.parametrize(
    ("at", "work", "least"),
    [
        ([0], [5], 7),
        ([0, 3], [5, 1], 7),
        ([0, 1, 2], [1, 5, 1], 2 + 5),
        ([0, 6], [5, 1], 2 + 5),
        ([0, 9], [5, 5], 2 + 5 + 5),
        ([0, 90], [5, 1], 2 + 5 + 2 + 1),
    ],
    ids=[
        "alone",
        "begun together",
        "one between",
        "ends within the first's",
        "one visit",
        "two visits",
    ],
)
def test_of_a_visit_whoever_ends_last_counts(at, work, least):
    assert seconds(at, work, 2, 4, 1000) == least


@pytest.mark.parametrize("name", POLICIES)
@given(found=MANY, gpus=st.integers(1, 2))
@settings(max_examples=60, deadline=None)
def test_who_interrupts_nothing_needs_at_least_as_much(name, found, gpus):
    at, models, work = zip(*sorted(found), strict=True)
    world = World(Trace(at, models, work, list("abcd"), SIZES), gpus, Costs())
    world.run(POLICIES[name](world))
    assert not world.interrupted
    assert load(world.trace, gpus, Costs(), outcome_of(world).in_time) <= 1 + 1e-9


def test_more_than_there_is_time_for_is_seen():
    at = [float(n) for n in range(100)]
    trace = Trace(at, [n % 2 for n in range(100)], [1.0] * 100, ["a", "b"], [70.0, 70.0])
    assert load(trace, 1, Costs()) > 1.2
    assert load(trace, 2, Costs()) < 1


@given(st.lists(st.floats(1, 80), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_whoever_fits_on_a_gpu_has_one_of_it_at_most(sizes):
    costs = Costs()
    world = World(Trace([0.0], [0], [1.0], ["m"] * len(sizes), sizes), 1, costs)
    for weights in _weights(sizes, costs):
        for together in subsets(range(len(sizes))):
            if together and world.fits(together[0], together[1:]):
                assert sum(weights[m] for m in together) <= 1 + 1e-6


def test_the_bench_finds_the_rate_that_nobody_sustains(tmp_path):
    trial = Trial(Case(cv=1.0, models=4, skew=0.0), 1, [0, 1], [], tmp_path)
    found = beyond(trial)
    assert found is not None
    assert 0.125 < found < 2


def test_with_a_gpu_for_each_there_is_no_such_rate(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.placement.policy.__main__._STEPS", 4)
    assert beyond(Trial(Case(cv=1.0, models=4), 8, [0], [], tmp_path)) is None
