"""Seats that always want their GPUs: any seats, any costs, any requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate.core.swap.swapview import SwapPolicy
from kybernate.core.swap.turns import TurnPolicy
from kybernate.types import SeatState
from tests.unit.core.swap.turnsworld import POLICY, World, server, share_of, trainer

S = SeatState
COSTS = st.sampled_from([0.01, 0.1, 0.5, 2.0])


@st.composite
def worlds(draw):
    groups = draw(st.lists(st.sampled_from(["G0", "G0", "G1", "G01"]), min_size=2, max_size=6))
    seats = [
        trainer(
            f"t{number}",
            group,
            draw(st.sampled_from([1, 1, 2, 5])),
            draw(st.sampled_from(["x", "y"])),
            draw(st.sampled_from([S.PARKED, S.WAITING])),
        )
        for number, group in enumerate(groups)
    ]
    costs = draw(st.lists(COSTS, min_size=8, max_size=8))
    at = iter(range(10**9))
    limit = draw(st.sampled_from([0.02, 0.05, 0.2]))
    return World(seats, lambda uid: costs[next(at) % 8], turns=TurnPolicy(limit, 1.0, {"y": 3.0}))


@pytest.mark.slow
@settings(max_examples=15)
@given(worlds())
def test_nothing_idles_and_swaps_stay_within_their_part(world):
    world.run(800.0)
    limit = world.turns.swap_share
    held = sum(world.held[uid] * len(world.seats[uid].gpus) for uid in world.seats)
    costs = len(world.memory) * 4.0  # the last swap of each GPU is not paid off yet
    assert world.book.swapping <= limit * (held + world.book.swapping) + costs
    assert max(world.empty.values()) == 0.0
    for uid in world.seats:
        assert world.held[uid] > 0.0, f"{uid} never had a turn"


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.lists(st.sampled_from([1, 1, 2, 3, 7]), min_size=2, max_size=5),
    st.lists(st.sampled_from([0.01, 0.1, 0.5]), min_size=4, max_size=4),
)
def test_shares_converge_on_the_weights_whatever_swaps_cost(weights, costs):
    seats = [trainer(f"t{n}", weight=weight) for n, weight in enumerate(weights)]
    world = World(seats, lambda uid: costs[int(uid[1:]) % 4])
    world.run(1500.0)
    for number, weight in enumerate(weights):
        assert abs(share_of(world)[f"t{number}"] - weight / sum(weights)) < 0.05


@pytest.mark.slow
@settings(max_examples=15)
@given(
    worlds(),
    st.lists(
        st.tuples(st.floats(0, 300), st.sampled_from(["s", "s1", "s01"]), st.floats(0.01, 20.0)),
        max_size=100,
    ),
)
def test_nobody_starves_under_any_requests(world, asks):
    for name, group in (("s", "G0"), ("s1", "G1"), ("s01", "G01")):
        one = server(name, group)
        world.seats[one.uid], world.held[one.uid] = one, 0.0
    for when, name, seconds in asks:
        world.at(when, lambda n=name, s=seconds: world.ask(n, s))
    world.run(1500.0)
    for uid, one in world.seats.items():
        assert one.turn is None or world.held[uid] > 0.0, f"{uid} never had a turn"
        assert not one.waiting, f"requests for {uid} were never served"


@settings(max_examples=2)
@given(st.sampled_from([POLICY, SwapPolicy(min_residency=0.0, idle_after=0.0, max_wait=5.0)]))
def test_an_endless_stream_of_requests_leaves_everybody_a_turn_within_its_bound(policy):
    names = ("a", "b", "c")
    world = World([*(trainer(name) for name in names), server("s")], costs=0.05, policy=policy)
    world.ask("s", 1e9)
    world.run(len(names) * (policy.max_wait + policy.drain_limit + 5.0))
    for name in names:
        assert world.held[name] > 0.0


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.floats(0.05, 5.0),
    st.floats(0.01, 9.0),
    st.sampled_from([0, 5]),
    st.lists(st.sampled_from([0.01, 0.1, 0.3]), min_size=4, max_size=4),
    st.integers(1, 3),
)
def test_who_calls_itself_takes_nothing_from_another_namespace(every, takes, priority, costs, many):
    """One that takes turns and has a port sends itself requests, however many and long."""
    at = iter(range(10**9))
    seats = [replace(trainer("taker", namespace="x"), priority=priority)]
    seats += [trainer(f"t{number}", namespace="y") for number in range(many)]
    world = World(seats, lambda uid: costs[next(at) % 4], turns=TurnPolicy(shares={"y": 3.0}))

    def calls():
        if world.seats["taker"].state in (S.ACTIVE, S.PARKED):
            world.ask("taker", takes)
        world.at(world.now + every, calls)

    calls()
    world.run(500.0)
    assert share_of(world)["taker"] < 0.25 + 0.05
