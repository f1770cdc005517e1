"""A simulated node whose RAM has a limit: what leaves it, and how long that takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate.core.simulate import hostram
from kybernate.core.simulate.fifo import Fifo
from kybernate.core.simulate.ours import Ours
from kybernate.core.simulate.outcome import POLICIES, simulate
from kybernate.core.simulate.trace import Trace
from kybernate.core.simulate.world import Costs, Where, World
from kybernate.core.swap.swapview import SwapPolicy
from kybernate.core.tiers.tiers import Speed
from kybernate.types import Tier

SIZES = (8.0, 16.0, 40.0, 70.0)


def trace(*requests: tuple[float, int, float], sizes: tuple[float, ...] = SIZES) -> Trace:
    at, models, work = zip(*requests, strict=True)
    return Trace(at, models, work, [f"m{n}" for n in range(len(sizes))], sizes)


class Watched:
    """Weighs, at every look of the policy that it passes on to, what is in RAM."""

    def __init__(self, policy):
        self._policy = policy

    def act(self, world):
        again = self._policy.act(world)
        ram, there = world.ram, 0
        for m, state in enumerate(world.state):
            moves = ram.to[m] is not None
            assert not moves or state in (Where.PARKED, Where.WAKING)
            short = m in ram._short
            rises = m in ram._rising
            if state is Where.PARKED or rises:
                there += world.size[m] if Tier.RAM in (ram.tier[m], ram.to[m]) else 0
            elif state is not Where.ACTIVE and not short:
                there += world.size[m]
        assert there <= world.costs.ram_gb + 1e-6
        return again


requests = st.lists(
    st.tuples(st.floats(0, 200), st.integers(0, 7), st.floats(0.1, 20)), min_size=1, max_size=40
)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@given(found=requests, gpus=st.integers(1, 3), ram=st.sampled_from([70.0, 90.0, 150.0, 200.0]))
@settings(max_examples=40, deadline=None)
def test_every_request_is_answered_and_ram_is_never_overfull(name, found, gpus, ram):
    played = trace(*sorted(found), sizes=SIZES * 2)
    world = World(played, gpus, Costs(ram_gb=ram))
    world.run(Watched(POLICIES[name](world)))
    assert sum(map(len, world.waits)) == len(found)


def test_what_has_room_in_ram_never_leaves_it():
    """The product parks large ones first where RAM is counted, so its waits are others."""
    played = trace(*((3.0 * n, n % 8, 4.0) for n in range(200)), sizes=SIZES * 2)
    plenty = Costs(ram_gb=2 * sum(SIZES))
    assert [simulate(played, 3, plenty, one).restores for one in POLICIES.values()] == [0, 0, 0]
    assert simulate(played, 3, plenty, Fifo) == simulate(played, 3, Costs(), Fifo)


def test_what_ram_has_no_room_for_is_on_nvme_and_wakes_at_its_rate():
    """RAM holds the first two. The third reads 40 GB at 4 GB/s once RAM has room: at once, as the
    first is awake and leaves 30 GB, and the second is written at 5 GB/s."""
    sizes = (30.0, 20.0, 40.0)
    nvme = Speed(write=5e9, read=4e9, latency=0.5)
    costs = Costs(ram_gb=50.0, nvme=nvme)
    calls = trace((0.0, 0, 1.0), (10.0, 2, 1.0), sizes=sizes)
    for policy in (lambda w: Ours(w, SwapPolicy(spare=0)), Fifo):
        found = simulate(calls, 2, costs, policy)
        assert found.restores == 1
        assert found.wait_max == pytest.approx(0.5 + 20 / 5 + 0.5 + 40 / 4 + 40 / 20)
        roomy = simulate(calls, 2, replace(costs, ram_gb=60.0), policy)
        assert roomy.wait_max == pytest.approx(0.5 + 40 / 4 + 40 / 20)


def test_who_is_asked_for_while_it_is_written_stays_in_ram():
    """As the agent's dumps: what is written is in vain, and nothing is read. The first, in GPU
    memory, must be parked for the third, so the second leaves RAM from second 10 to 18."""
    sizes = (30.0, 40.0, 30.0)
    costs = Costs(gpu_gb=40.0, ram_gb=70.0, nvme=Speed(write=5e9, read=4e9))
    first, third = (0.0, 0, 1.0), (10.0, 2, 1.0)
    for asked, restores in ((17.0, 1), (25.0, 2)):
        calls = trace(first, third, (asked, 1, 1.0), sizes=sizes)
        assert simulate(calls, 1, costs, Fifo).restores == restores


@pytest.mark.parametrize("policy", [Ours, Fifo])
def test_the_decision_about_tiers_is_the_products(monkeypatch, policy):
    def nobody(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(hostram, "decide", nobody)
    calls = trace((0.0, 0, 1.0))
    simulate(calls, 1, Costs(), policy)
    with pytest.raises(ZeroDivisionError):
        simulate(calls, 1, Costs(ram_gb=80.0), policy)


def test_ram_that_could_not_take_a_model_is_refused():
    with pytest.raises(ValueError, match="no room for the largest"):
        World(trace((0.0, 0, 1.0)), 1, Costs(ram_gb=69.0))
