"""Others' swap policies, as the bench plays them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.placement.policy import search
from bench.placement.policy.__main__ import RATES
from bench.placement.policy.baselines import BASELINES, Ttl
from bench.placement.policy.kept import Kept
from bench.placement.policy.queued import Queued
from bench.placement.policy.workload import Case
from kybernate.core.simulate.fifo import Fifo
from kybernate.core.simulate.trace import Trace
from kybernate.core.simulate.world import Costs, Where, World

SIZES = (8.0, 16.0, 40.0, 70.0) * 2
REQUESTS = st.lists(
    st.tuples(st.floats(0, 200), st.integers(0, 7), st.floats(0.1, 20)), min_size=1, max_size=40
)


def world_of(found, gpus):
    at, models, work = zip(*sorted(found), strict=True)
    return World(Trace(at, models, work, [str(n) for n in range(8)], SIZES), gpus, Costs())


@given(found=REQUESTS, gpus=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_without_a_change_it_is_the_product_s_fifo(found, gpus):
    ours, theirs = world_of(found, gpus), world_of(found, gpus)
    ours.run(Fifo(ours))
    theirs.run(Queued(theirs))
    assert (ours.waits, ours.swaps) == (theirs.waits, theirs.swaps)


@pytest.mark.parametrize("name", BASELINES)
@given(found=REQUESTS, gpus=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_every_request_is_answered(name, found, gpus):
    world = world_of(found, gpus)
    world.run(BASELINES[name](world))
    assert sum(map(len, world.waits)) == len(found)


def test_who_is_unused_for_long_leaves_by_itself():
    world = world_of([(0.0, 0, 1.0), (200.0, 1, 1.0), (400.0, 1, 1.0)], 1)
    world.run(Ttl(world))
    assert (world.state[0], world.state[1]) == (Where.PARKED, Where.ACTIVE)
    least = world_of([(0.0, 0, 1.0), (200.0, 1, 1.0), (400.0, 1, 1.0)], 1)
    least.run(Queued(least))
    assert least.state[0] is Where.ACTIVE


def tried(top, near, monkeypatch, tmp_path):
    """The rates that are played until the highest that is sustained is known."""
    most = RATES[top - 1] if top else 0.0
    played = []
    monkeypatch.setattr(search, "sustains", lambda _, rate, __: played.append(rate) or rate <= most)
    trial = search.Trial(Case(), 8, [0], RATES, tmp_path)
    assert search.sustained(trial, "lru", near) == most
    return played


@pytest.mark.parametrize("top", range(len(RATES) + 1))
def test_the_highest_rate_is_found_by_five_trials_at_most(top, monkeypatch, tmp_path):
    assert len(tried(top, None, monkeypatch, tmp_path)) <= 5


@pytest.mark.parametrize("top", range(len(RATES) + 1))
@pytest.mark.parametrize("near", [0.0, *RATES])
def test_near_a_rate_it_is_found_step_by_step(top, near, monkeypatch, tmp_path):
    steps = abs(top - max(1, RATES.index(near) + 1 if near else 0))
    assert len(tried(top, near, monkeypatch, tmp_path)) <= 2 + steps


def test_what_was_found_before_is_not_sought_again(tmp_path):
    file, one, other = tmp_path / "kept", {"what": "rate", "policy": "lru"}, {"what": "gpus"}
    assert Kept(file, "old").answer(one, lambda: 1.0) == 1.0
    assert Kept(file, "new").answer(one, lambda: 2.0) == 2.0  # by other code
    with file.open("a") as torn:
        torn.write('\n{"what": "gpus", "fou')
    assert Kept(file, "new").answer(one, pytest.fail) == 2.0
    assert Kept(file, "new").answer(other, lambda: None) is None
    assert Kept(file, "new").answer(other, lambda: 3.0) is None
