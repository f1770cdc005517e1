"""The simulated node keeps its promises under any policy, and the decision is the product's."""

from __future__ import annotations

import math
import random
import re
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate.core.simulate import ours
from kybernate.core.simulate.fifo import Fifo
from kybernate.core.simulate.ours import Ours, fixed
from kybernate.core.simulate.outcome import POLICIES, gpus_needed, late_share, outcome_of, simulate
from kybernate.core.simulate.trace import Trace, read_models, read_trace
from kybernate.core.simulate.world import Costs, Where, World
from kybernate.core.swap.swap import decided, next_check
from kybernate.core.swap.swapview import SwapPolicy
from kybernate.errors import ConfigError

SIZES = (8.0, 16.0, 40.0, 70.0)


def trace(*requests: tuple[float, int, float], sizes: tuple[float, ...] = SIZES) -> Trace:
    at, models, work = zip(*requests, strict=True)
    return Trace(at, models, work, [f"m{n}" for n in range(len(sizes))], sizes)


class Watched:
    """Checks the node at every look of the policy that it passes on to."""

    def __init__(self, policy):
        self._policy = policy

    def act(self, world):
        again = self._policy.act(world)
        for gpu, there in enumerate(world.on):
            assert len(there) <= 1 or sum(world.need[m] for m in there) <= world.costs.gpu_gb + 1e-6
            assert all(world.gpu[m] == gpu for m in there)
        for m, state in enumerate(world.state):
            assert (world.gpu[m] < 0) == (state is Where.PARKED)
            assert world.running[m] <= world.costs.slots
        return again


requests = st.lists(
    st.tuples(st.floats(0, 200), st.integers(0, 7), st.floats(0.1, 20)), min_size=1, max_size=40
)


@pytest.mark.parametrize("name", POLICIES)
@given(found=requests, gpus=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_every_request_is_answered_and_no_gpu_is_overfull(name, found, gpus):
    played = trace(*sorted(found), sizes=SIZES * 2)
    world = World(played, gpus, Costs())
    world.run(Watched(POLICIES[name](world)))
    assert sum(map(len, world.waits)) == len(found)
    assert min(wait for those in world.waits for wait in those) >= 0


class Afresh(Ours):
    """Holds what it kept of the models against the models as they are."""

    def _view(self, world):
        view = super()._view(world)
        there = [m for m, s in enumerate(world.state) if s is not Where.PARKED]
        assert [int(seat.uid) for seat in view.seats] == sorted({*there, *world.waiting})
        for seat in view.seats:
            m = int(seat.uid)
            # To look brings a record up to date, which would change what comes after.
            seen, world.seen[m] = world.seen[m], deepcopy(world.seen[m])
            now = self._seat(world, m)
            world.seen[m] = seen
            assert seat == replace(now, calls=seat.calls)
            assert seat.calls == pytest.approx(now.calls, rel=0.02)
        return view


@given(found=requests, gpus=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_what_is_kept_of_a_model_is_as_the_model_is(found, gpus):
    played = trace(*sorted(found), sizes=SIZES * 2)
    world = World(played, gpus, Costs())
    world.run(Afresh(world))
    kept = World(played, gpus, Costs())
    kept.run(Ours(kept))
    assert world.waits == kept.waits


def drawn(rate: float, gpus: int) -> World:
    """200 requests for 32 models by Zipf's law."""
    rng, at = random.Random(f"{rate} {gpus}"), [0.0]
    while len(at) < 200:
        at.append(at[-1] + rng.expovariate(rate))
    models = rng.choices(range(32), [1 / (n + 1) for n in range(32)], k=len(at))
    work = [rng.expovariate(0.25) for _ in at]
    return World(trace(*zip(at, models, work, strict=True), sizes=SIZES * 8), gpus, Costs())


@pytest.mark.parametrize(("rate", "gpus"), [(1.0, 3), (2.25, 8), (5.0, 8)])
def test_what_is_kept_from_decision_to_decision_changes_none(rate, gpus, monkeypatch):
    world, times = drawn(rate, gpus), []

    def decide(view, policy, now, known):
        times.append(now)
        found = decided(view, policy, now, known)
        assert found == decided(view, policy, now)
        return found

    monkeypatch.setattr(ours, "decided", decide)
    world.run(Ours(world))
    assert len(times) > 100


@pytest.mark.parametrize(("rate", "gpus"), [(1.0, 3), (2.25, 8), (5.0, 8)])
def test_between_two_looks_nothing_would_be_decided(rate, gpus, monkeypatch):
    world, looks = drawn(rate, gpus), []

    def check(view, policy, now, found):
        when = next_check(view, policy, now, found)
        until = now + 20.0 if when is None else when
        for part in (0.001, 0.25, 0.5, 0.75, 0.999):
            later = now + part * (until - now)
            assert later >= until or decided(view, policy, later).actions == ()
        looks.append(when)
        return when

    monkeypatch.setattr(ours, "next_check", check)
    world.run(Ours(world))
    assert len(looks) > 50


def test_a_wake_takes_its_bytes_over_the_bus():
    outcome = simulate(trace((0.0, 3, 1.0)), 1, Costs())
    assert outcome.wait_max == pytest.approx(70 / 20)


def test_who_must_leave_first_takes_its_time_too():
    outcome = simulate(trace((0.0, 3, 1.0), (30.0, 2, 1.0)), 1, Costs())
    assert outcome.wait_max == pytest.approx(max(70 / 20, 70 / 20 + 40 / 20))


def test_two_that_fit_beside_each_other_do_not_swap():
    played = trace(*((float(t), t % 2, 0.5) for t in range(60)))
    world = World(played, 1, Costs())
    world.run(Ours(world, SwapPolicy(spare=0)))
    assert world.swaps == 2


def test_ours_parks_whoever_can_leave_in_time():
    """A model of 8 GB is due 2.8 s after its call. The park of 70 GB takes 3.5 s, of 40 GB 2 s:
    first come, first served parks the one that was unused longest, and is late."""
    calls = trace((0.0, 0, 1.0), (10.0, 1, 1.0), (60.0, 2, 1.0), sizes=(70.0, 62.0, 8.0))
    no_spare = SwapPolicy(spare=0)
    smaller = trace((0.0, 0, 1.0), (10.0, 1, 1.0), (60.0, 2, 1.0), sizes=(75.0, 45.0, 30.0))
    due = Costs(slack=1.0)
    assert simulate(calls, 2, Costs(), Fifo).in_time == pytest.approx(2 / 3)
    assert simulate(smaller, 2, due, lambda w: Ours(w, no_spare)).in_time == 1.0
    assert simulate(smaller, 2, due, Fifo).in_time == pytest.approx(2 / 3)


def test_a_spare_gpu_is_emptied_before_anybody_calls():
    calls = trace((0.0, 0, 1.0), (60.0, 1, 1.0), sizes=(70.0, 70.0))
    kept = simulate(calls, 1, Costs(), lambda w: Ours(w, SwapPolicy(spare=1)))
    full = simulate(calls, 1, Costs(), lambda w: Ours(w, SwapPolicy(spare=0)))
    assert (kept.wait_max, full.wait_max) == (pytest.approx(3.5), pytest.approx(7.0))


def test_nothing_is_decided_while_all_who_wait_are_on_their_way_up(monkeypatch):
    views = []
    monkeypatch.setattr(ours, "decided", lambda *view: views.append(view) or decided(*view))
    calls = [(0.0, 0, 0.5), (0.1, 1, 5.0), (1.0, 0, 0.5), (1.1, 0, 0.2), (1.2, 1, 1.0)]
    world = World(trace(*calls, sizes=(8.0, 70.0)), 3, Costs())
    world.run(Ours(world))
    assert world.swaps == 2
    assert len(views) == 2  # a wake each


@pytest.mark.parametrize("seed", range(4))
def test_what_is_not_looked_at_would_decide_nothing(seed, monkeypatch):
    """The agent looks whenever something changes: its decisions are these."""
    rng, at = random.Random(seed), [0.0]
    while at[-1] < 3000:
        at.append(at[-1] + rng.expovariate(0.5))
    models = rng.choices(range(32), [1 / (n + 1) for n in range(32)], k=len(at))
    played = trace(*zip(at, models, [4.0] * len(at), strict=True), sizes=(30.0,) * 32)
    outcomes = []
    for _ in range(2):
        world = World(played, 5, Costs())
        world.run(Ours(world))
        outcomes.append((world.swaps, world.late, world.waits))
        monkeypatch.setattr(Ours, "_may_empty", lambda *_: True)
    assert outcomes[0] == outcomes[1]


def test_a_fixed_model_waits_for_its_own_gpu_beside_an_empty_one():
    """Models 0 and 2 have GPU 0, model 1 has GPU 1 and is never called."""
    calls = trace((0.0, 0, 30.0), (10.0, 2, 1.0), sizes=(70.0, 70.0, 70.0))
    free = simulate(calls, 2, Costs(), lambda w: Ours(w, SwapPolicy(spare=0)))
    on_one = simulate(calls, 2, Costs(), lambda w: fixed(w, SwapPolicy(spare=0)))
    assert free.wait_max == pytest.approx(3.5)
    assert on_one.wait_max > 7.0


def test_gpus_needed_are_the_fewest_that_do():
    played = trace(*((float(t), t % 4, 2.0) for t in range(200)))
    most = gpus_needed(played, Costs(), Ours)
    assert most is not None
    assert simulate(played, most, Costs(), Ours).in_time >= 0.99
    assert most == 1 or simulate(played, most - 1, Costs(), Ours).in_time < 0.99
    assert gpus_needed(played, Costs(), Ours, least=most) == most
    assert gpus_needed(played, Costs(), Ours, least=most + 1) == most + 1


@given(found=requests, gpus=st.integers(1, 3), share=st.sampled_from([0.5, 0.9, 0.99]))
@settings(max_examples=40, deadline=None)
def test_who_stops_once_too_much_is_late_says_what_the_whole_run_says(found, gpus, share):
    played = trace(*sorted(found), sizes=SIZES * 2)
    whole = simulate(played, gpus, Costs(), Fifo).in_time
    assert late_share(played, gpus, Costs(), Fifo) == pytest.approx(1 - whole)
    late = late_share(played, gpus, Costs(), Fifo, 1 - share)
    assert (late > 1 - share + 1e-9) == (whole < share - 1e-9)
    assert late <= 1 - whole + 1e-9


def test_nobody_is_said_to_need_what_does_not_do_either():
    late = Costs(slack=0.0, wakes=0.5)
    assert gpus_needed(trace((0.0, 0, 1.0)), late, Ours) is None


def test_a_policy_that_does_nothing_is_told_of():
    class Idle:
        def act(self, _world):
            return math.inf

    world = World(trace((0.0, 0, 1.0)), 1, Costs())
    with pytest.raises(RuntimeError, match="leaves requests"):
        world.run(Idle())


def test_the_figures_of_a_run():
    world = World(trace((0.0, 0, 1.0), (100.0, 0, 1.0)), 1, Costs())
    world.run(Ours(world))
    outcome = outcome_of(world)
    assert (outcome.requests, outcome.in_time, outcome.fairness) == (2, 1.0, 1.0)
    assert (outcome.wait_p50, outcome.wait_p99) == (0.0, pytest.approx(0.4))


@pytest.mark.parametrize(
    ("models", "requests", "said"),
    [
        ("model\na\n", "", "m.csv: the column gb is missing"),
        ("model,gb\na,x\n", "", "m.csv, line 2: gb: 'x' is no number"),
        ("model,gb\na,1\na,2\n", "", "m.csv, line 3: model: 'a' is there twice"),
        ("model,gb\n", "", "m.csv: it names no model"),
        ("model,gb\na,1\n", "at,model\n1,a\n", "t.csv: the column tokens is missing"),
        ("model,gb\na,1\n", "at,model,seconds\n1,b,1\n", "t.csv, line 2: model: 'b' has no line"),
        ("model,gb\na,1\n", "at,model,seconds\n2,a,1\n1,a,1\n", "line 3: at: 1 is before"),
        ("model,gb\na,1\n", "at,model,seconds\n", "t.csv: it has no requests"),
        ("model,gb\na,1\n", "at,model,seconds\n1,a,-1\n", "seconds: '-1' is no number"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(models, requests, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        read(models, requests)


def read(models, requests):
    sizes = read_models(models.splitlines(), "m.csv")
    return read_trace(requests.splitlines(), "t.csv", sizes, 50.0)


def test_tokens_become_seconds():
    found = read_trace(["at,model,tokens", "0,a,100"], "t", {"a": 1.0}, 50.0)
    assert list(found.work) == [2.0]
