"""The bound in hindsight: below the best schedule there is, and above the plainer bound."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.placement.policy.baselines import BASELINES
from bench.placement.policy.bound import Demand, Prices, _weights, late
from bench.placement.policy.search import Trial, beyond
from bench.placement.policy.workload import Case
from kybernate.core.simulate.fifo import Fifo
from kybernate.core.simulate.trace import Trace
from kybernate.core.simulate.world import Costs, World

SIZES = (8.0, 16.0, 40.0, 70.0)
POLICIES = {"fifo": Fifo, **{name: BASELINES[name] for name in ("llama-swap", "prewarm")}}
ONE = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=7)
FEW = st.lists(
    st.tuples(st.integers(0, 25), st.integers(0, 1), st.integers(1, 9)), min_size=1, max_size=5
)
MANY = st.lists(
    st.tuples(st.floats(0, 60), st.integers(0, 3), st.floats(0.1, 20)), min_size=1, max_size=25
)
EACH = st.lists(st.integers(0, 9), min_size=12, max_size=12)
SWAPS = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(ONE, SWAPS, st.integers(0, 6), EACH, st.floats(0, 60))
@settings(max_examples=100, deadline=None)
def test_no_schedule_of_one_model_is_below_it(found, swaps, slack, each, fine):
    prices = Prices(each, 2.0, 4.0)
    within = swaps[0] + slack
    least = min(
        fine * (len(found) - len(kept)) + sum(visit(part, swaps, within, prices) for part in parts)
        for kept in subsets(sorted(found))
        for parts in divided(kept)
    )
    assert Demand(sorted(found), swaps, within, prices).least(prices, fine) <= least + 1e-9


def subsets(requests):
    for many in range(len(requests) + 1):
        yield from itertools.combinations(requests, many)


def divided(requests):
    """All ways to serve requests in visits, each of which serves some that follow each other."""
    if not requests:
        yield []
    for many in range(1, len(requests) + 1):
        yield from ([requests[:many], *rest] for rest in divided(requests[many:]))


def visit(requests, swaps, within, prices):
    """The least that a visit costs which serves these, over all times at which it may begin."""
    latest = min(at for at, _ in requests) + within - swaps[0]
    return min(
        prices.until(prices.spot(ended(requests, swaps, begin))) - prices.until(prices.spot(begin))
        for begin in range(latest - within, latest + 1)
    )


def ended(requests, swaps, begin):
    """When a visit ends that begins then and serves these."""
    wake, park = swaps
    return max(max(at, begin + wake) + work for at, work in requests) + park


def test_where_time_costs_the_same_it_is_the_seconds_in_memory():
    prices = Prices([10.0] * 30, -100.0)
    for at, work, least in (
        ([0], [5], 7),
        ([0, 3], [5, 1], 7),
        ([0, 1, 2], [1, 5, 1], 2 + 5),
        ([0, 6], [5, 1], 2 + 5),
        ([0, 9], [5, 5], 2 + 5 + 5),
        ([0, 90], [5, 1], 2 + 5 + 2 + 1),
    ):
        demand = Demand(list(zip(at, work, strict=True)), (1.0, 1.0), 4.0, prices)
        assert demand.least(prices, 1000.0) == pytest.approx(least)


@given(ONE, SWAPS, st.integers(0, 6), st.floats(0, 30))
@settings(max_examples=200, deadline=None)
def test_it_is_never_below_the_bound_by_the_last_one_s_work(found, swaps, slack, fine):
    prices, within = Prices([10.0] * 30, -100.0), swaps[0] + slack
    at, work = zip(*sorted(found), strict=True)
    done = [0.0]
    for last, takes in enumerate(work):
        waits = (done[i] + max(0, at[last] - at[i] - within) for i in range(last + 1))
        done.append(min(done[-1] + fine, sum(swaps) + takes + min(waits)))
    least = Demand(sorted(found), swaps, within, prices).least(prices, fine)
    assert least >= done[-1] - 1e-6


def test_where_time_is_dear_a_visit_is_moved_to_where_it_is_not():
    prices = Prices([9.0, 0.0, 9.0], 0.0, 10.0)
    assert Demand([(8.0, 2.0)], (1.0, 1.0), 9.0, prices).least(prices, 5.0) == 0.0
    assert Demand([(5.0, 2.0)], (1.0, 1.0), 2.0, prices).least(prices, 5.0) == pytest.approx(3.6)
    assert Demand([(5.0, 2.0)], (1.0, 1.0), 2.0, prices).least(prices, 3.0) == 3.0


@given(FEW)
@settings(max_examples=60, deadline=None)
def test_it_is_no_more_than_the_best_schedule_has_late(found):
    """Two models on one GPU, one at a time: in every order of visits each as early as can be."""
    costs = Costs(wake=35.0, park=35.0, slack=1.0)
    found = sorted(found)
    best = max(
        sum(map(len, visits))
        for kept in subsets(found)
        for visits in arranged(kept)
        if in_time(visits, costs)
    )
    at, models, work = zip(*found, strict=True)
    trace = Trace(at, models, work, ["a", "b"], [70.0, 70.0])
    assert late(trace, 1, costs, looks=20) <= len(found) - best + 1e-6


def arranged(requests):
    """Visits in any order, of one model each, whose requests begin in their order."""
    if not requests:
        yield []
    for model in {one[1] for one in requests}:
        own = [one for one in requests if one[1] == model]
        for many in range(1, len(own) + 1):
            rest = tuple(one for one in requests if one not in own[:many])
            if len(rest) == len(requests) - many:
                yield from ([own[:many], *others] for others in arranged(rest))


def in_time(visits, costs):
    """Whether all of these begin in time if each visit begins once the one before has ended."""
    wake, park = 70.0 / costs.wake, 70.0 / costs.park
    now = -100.0
    for requests in visits:
        if any(now + wake > at + costs.slack + costs.wakes * wake for at, _, _ in requests):
            return False
        now = ended([(at, work) for at, _, work in requests], (wake, park), now)
    return True


@pytest.mark.parametrize("name", POLICIES)
@given(found=MANY, gpus=st.integers(1, 2))
@settings(max_examples=25, deadline=None)
def test_who_interrupts_nothing_has_at_least_as_many_late(name, found, gpus):
    at, models, work = zip(*sorted(found), strict=True)
    world = World(Trace(at, models, work, list("abcd"), SIZES), gpus, Costs())
    world.run(POLICIES[name](world))
    assert not world.interrupted
    assert late(world.trace, gpus, Costs(), looks=10) <= world.late + 1e-6


def test_more_than_there_is_time_for_is_seen():
    at = [float(n) for n in range(100)]
    trace = Trace(at, [n % 2 for n in range(100)], [1.0] * 100, ["a", "b"], [70.0, 70.0])
    assert late(trace, 1, Costs(), looks=30) > 15
    assert late(trace, 2, Costs(), looks=10) == 0


def test_a_crowd_is_seen_that_would_have_time_later():
    """Five models at once, and nobody for an hour: the sum of their time is little."""
    at, models = [0.0] * 5 + [3600.0], [0, 1, 2, 3, 4, 0]
    trace = Trace(at, models, [20.0] * 6, list("abcde"), [70.0] * 5)
    assert late(trace, 2, Costs(), looks=60) > 2


@given(st.lists(st.floats(1, 80), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_whoever_fits_on_a_gpu_has_one_of_it_at_most(sizes):
    costs = Costs()
    world = World(Trace([0.0], [0], [1.0], ["m"] * len(sizes), sizes), 1, costs)
    for weights in _weights(sizes, costs):
        for together in subsets(range(len(sizes))):
            if together and world.fits(together[0], together[1:]):
                assert sum(weights[m] for m in together) <= 1 + 1e-6


@pytest.fixture
def _few_looks(monkeypatch):
    monkeypatch.setattr("bench.placement.policy.search.late", partial(late, looks=5))


@pytest.mark.usefixtures("_few_looks")
def test_the_bench_finds_the_rate_that_nobody_sustains(tmp_path):
    trial = Trial(Case(cv=1.0, models=4, skew=0.0), 1, [0, 1], [], tmp_path)
    found = beyond(trial, 0.125)
    assert found is not None
    assert 0.125 < found < 2


@pytest.mark.usefixtures("_few_looks")
def test_with_a_gpu_for_each_there_is_no_such_rate(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.placement.policy.search._STEPS", 4)
    assert beyond(Trial(Case(cv=1.0, models=4), 8, [0], [], tmp_path), 0.25) is None
