"""Seats that always want their GPUs: nothing idles, shares converge, swaps stay cheap."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from kybernate.core.swap.swapview import Turn
from kybernate.core.swap.turns import TurnPolicy
from kybernate.types import PodUid, SeatState
from tests.unit.core.swap.turnsworld import World, server, share_of, trainer

S = SeatState


def test_one_that_nobody_calls_wakes_on_empty_gpus_and_stays():
    world = World([trainer("a"), server("s")])
    world.run(1000.0)
    assert world.seats["a"].state is S.ACTIVE
    assert world.swaps == 1
    assert world.held["a"] > 999.0


def test_one_at_the_gate_that_ended_instead_of_being_parked_starts_without_a_call():
    world = World([replace(trainer("a", state=S.WAITING), on_demand=True)])
    world.run(10.0)
    assert world.seats["a"].state is S.ACTIVE


def test_where_nobody_takes_turns_nothing_is_counted_until_somebody_does():
    world = World([server("s")])
    world.run(10.0)
    assert world.book.claims == {}
    assert (world.book.had, world.book.held) == (0.0, {})
    world.seats["a"], world.held["a"] = trainer("a", "G1"), 0.0
    world.run(20.0)
    assert 9.0 < world.held["a"] < 10.0
    world.book.count(20.0)
    assert world.book.held["a"] == pytest.approx(world.held["a"])


def test_shares_follow_the_weights_within_a_namespace():
    seats = [trainer(n, weight=w) for n, w in (("a", 1), ("b", 1), ("c", 2), ("d", 4))]
    world = World(seats, costs=0.1)
    world.run(600.0)
    shares = share_of(world)
    for name, due in (("a", 0.125), ("b", 0.125), ("c", 0.25), ("d", 0.5)):
        assert abs(shares[name] - due) < 0.05
    assert sum(world.held.values()) >= 0.95 * 600
    assert world.book.swapping <= 0.05 * 600
    assert world.empty["g0"] < 0.1


def test_shares_between_namespaces_are_the_administrators():
    seats = [trainer("a", namespace="x"), trainer("b", namespace="x", weight=100)]
    seats += [trainer("c", namespace="y"), trainer("d", namespace="z")]
    turns = TurnPolicy(shares={"y": 2.0})
    world = World(seats, turns=turns)
    world.run(2000.0)
    shares = share_of(world)
    assert abs(shares["a"] + shares["b"] - 0.25) < 0.02
    assert abs(shares["c"] - 0.5) < 0.02
    assert abs(shares["d"] - 0.25) < 0.02


def test_shares_that_change_hold_from_then_on():
    world = World([trainer("a", namespace="x"), trainer("b", namespace="y")])
    world.run(1000.0)
    before = dict(world.held)
    assert world.book.set_shares({"x": 3.0}, world.now)
    assert not world.book.set_shares({"x": 3.0}, world.now)
    world.run(3000.0)
    assert abs((world.held["a"] - before["a"]) / 2000 - 0.75) < 0.03


def test_who_comes_last_has_only_what_nobody_else_wants():
    world = World([trainer(name) for name in "abc"], turns=TurnPolicy(shares={}))
    world.last = frozenset({"a"})
    world.run(500.0)
    begun = dict(world.held)
    world.run(1500.0)
    assert world.held["a"] == begun["a"] < 60
    assert abs(world.held["b"] - world.held["c"]) < 60
    # Alone it has all of its GPU; then it gives way at once, as soon as its swap is paid off.
    for name in "bc":
        world.put(name, turn=None, idle_since=world.now)
    world.run(1600.0)
    assert world.seats["a"].state is S.ACTIVE
    world.put("b", turn=Turn("ns"))
    world.run(1620.0)
    assert world.seats["b"].state is S.ACTIVE


def test_what_was_missed_while_last_is_not_given_back():
    world = World([trainer("a"), trainer("b")])
    world.last = frozenset({"a"})
    world.run(2000.0)
    before, world.last = dict(world.held), frozenset()
    world.run(3000.0)
    assert abs((world.held["a"] - before["a"]) / 1000 - 0.5) < 0.05


def test_requests_of_one_that_comes_last_come_behind_those_of_others_but_are_answered():
    world = World([server("s"), server("t"), server("u")], costs=0.0)
    world.last = frozenset({"t"})
    world.run(1.0)
    world.ask("s", 5.0)
    world.run(2.0)
    world.ask("t", 1.0)
    world.run(2.1)
    world.ask("u", 1.0)
    world.run(6.5)
    assert world.seats["u"].state is S.ACTIVE, "it came later, and goes first"
    world.run(9.0)
    assert world.seats["t"].state is S.ACTIVE


@pytest.mark.parametrize("seed", range(12))
def test_nobody_who_comes_last_waits_for_ever_for_a_request_nor_holds_what_others_want(seed):
    """Whatever namespaces have used up meanwhile."""
    random = Random(seed)
    groups = [random.choice(("G0", "G1", "G01")) for _ in range(random.randint(2, 4))]
    world = World(
        [*(trainer(f"t{n}", one) for n, one in enumerate(groups)), server("s"), server("u", "G01")]
    )
    names = sorted(world.seats)

    def change():
        world.last = frozenset(random.sample(names, random.randint(0, len(names))))

    for at in range(0, 600, 20):
        world.at(float(at), change)
    for at in range(10, 600, 40):
        world.at(float(at), lambda: world.ask("s", 0.2))
        world.at(at + 0.1, lambda: world.ask("u", 0.2))
    world.run(700.0)
    assert not any(one.waiting for one in world.seats.values())
    world.last = frozenset({PodUid("t0")})
    world.run(800.0)
    before = dict(world.held)
    world.run(900.0)
    mine = world.seats["t0"].gpus
    others = [one for one in world.seats.values() if one.turn and one.uid != "t0"]
    # One that needs more than these GPUs may wait for others, and leaves these to it meanwhile.
    if any(one.gpus <= mine for one in others):
        assert world.held["t0"] == before["t0"]
    if not any(one.gpus & mine for one in others):
        assert world.held["t0"] > before["t0"] + 99.0


def test_a_turn_grows_with_what_a_swap_costs():
    turns = {cost: World([trainer("a"), trainer("b")], costs=cost) for cost in (0.1, 3.0)}
    for world in turns.values():
        world.run(3000.0)
    assert turns[0.1].swaps > 10 * turns[3.0].swaps > 100


def test_a_request_takes_the_gpu_after_the_residency_and_what_it_costs_is_counted():
    world = World([trainer("a"), trainer("b"), server("s")])
    world.run(30.0)
    before = world.book.swapping
    (one,) = (name for name in "ab" if world.seats[name].state is S.ACTIVE)
    world.ask("s", 0.2)
    world.run(30.25)
    assert world.seats["s"].state is S.ACTIVE
    world.run(32.0)
    assert world.book.swapping == before
    assert 0.39 < world.book.serving < 0.6
    assert world.seats[one].state is S.ACTIVE


def test_a_request_waits_for_the_residency_of_one_that_has_just_begun():
    world = World([trainer("a"), server("s")], costs=0.0)
    world.run(0.5)
    world.ask("s", 0.1)
    world.run(0.9)
    assert world.seats["a"].state is S.ACTIVE
    world.run(1.05)
    assert world.seats["s"].state is S.ACTIVE


def test_a_turn_waits_until_the_server_was_idle_for_as_long_as_its_swap_took():
    world = World([trainer("a"), server("s")], costs=2.0)
    world.run(10.0)

    def asks():
        world.ask("s", 0.1)
        if world.now < 25.0:
            world.at(world.now + 3.0, asks)

    asks()
    world.run(28.0)
    # A swap takes 4 s: a request every 3 s keeps the server, up to max_wait.
    assert (world.seats["s"].state, world.swaps) == (S.ACTIVE, 2)
    world.run(60.0)
    assert (world.seats["a"].state, world.swaps) == (S.ACTIVE, 3)


def test_nobody_starves_while_requests_never_end():
    world = World([trainer("a"), trainer("b"), trainer("c"), server("s"), server("t")])
    for second in range(600):
        world.at(0.7 * second, lambda: world.ask("s", 2.0))
        world.at(0.7 * second + 0.3, lambda: world.ask("t", 2.0))
    world.run(400.0)
    for name in "abc":
        assert world.held[name] >= 4.0


def test_a_turn_does_not_displace_who_answers_requests():
    world = World([trainer("a"), server("s")], costs=0.0)
    world.run(2.0)
    world.ask("s", 15.0)
    world.run(16.9)
    assert world.seats["s"].state is S.ACTIVE
    world.run(17.6)
    assert world.seats["a"].state is S.ACTIVE


def test_a_wide_seat_takes_turns_with_narrow_ones_and_nothing_idles():
    world = World([trainer("n0"), trainer("n1", "G1"), trainer("wide", "G01"), trainer("m1", "G1")])
    world.run(3000.0)
    assert world.held["wide"] > 0.25 * 3000
    assert world.empty == {"g0": 0.0, "g1": 0.0}
    for gpu in (("n0", "wide"), ("n1", "m1", "wide")):
        assert sum(world.held[name] for name in gpu) > 0.95 * 3000


def test_who_comes_later_begins_at_par():
    world = World([trainer("a"), trainer("b")])
    world.run(1000.0)
    world.seats["c"], world.held["c"] = trainer("c"), 0.0
    held = dict(world.held)
    world.run(1600.0)
    for name in "abc":
        assert abs((world.held[name] - held[name]) / 600 - 1 / 3) < 0.05


def test_who_was_away_has_neither_credit_nor_more_debt_than_others():
    world = World([trainer("a"), trainer("b")])
    world.run(500.0)
    away = next(name for name in "ab" if world.seats[name].state is S.PARKED)
    world.put(away, leave="parked by an operator")
    world.run(3000.0)
    held = dict(world.held)
    world.put(away, leave="")
    world.run(3400.0)
    for name in "ab":
        assert abs((world.held[name] - held[name]) / 400 - 0.5) < 0.05


def test_nobody_pays_for_the_time_in_which_the_node_was_drained():
    world = World([trainer("a"), trainer("b")])
    world.run(100.0)
    world.draining = "maintenance"
    world.run(10000.0)
    assert {one.state for one in world.seats.values()} == {S.PARKED}
    world.draining, held = "", dict(world.held)
    world.run(10060.0)
    for name in "ab":
        assert world.held[name] - held[name] > 15.0


def test_nobody_pays_for_the_time_in_which_its_gpu_was_lost():
    world = World([trainer("a"), trainer("b")], gpus=("g0",))
    world.run(100.0)
    size = world.memory.pop("g0")
    for uid, one in world.seats.items():
        if one.state is S.ACTIVE:
            world.put(uid, state=S.PARKED, active_since=None)
    world.run(10000.0)
    world.memory["g0"], held = size, dict(world.held)
    world.run(10060.0)
    for name in "ab":
        assert world.held[name] - held[name] > 15.0


def test_one_that_gives_up_its_turn_lets_the_next_one_in_and_gets_another():
    world = World([trainer("a"), trainer("b")], costs=0.01)
    world.run(100.0)
    (one,) = (name for name in "ab" if world.seats[name].state is S.ACTIVE)
    other = "ab".replace(one, "")
    world.run(world.now + 2.0)
    world.put(one, turn=Turn("ns", yields=True))
    world.run(world.now + 1.1)
    assert world.seats[other].state is S.ACTIVE
    held = world.held[one]
    world.run(world.now + 20.0)
    assert world.held[one] > held


def test_those_who_always_give_up_their_turn_cannot_make_swaps_cost_more():
    def seat(name):
        return replace(trainer(name), turn=Turn("ns", yields=True))

    world = World([seat("a"), seat("b"), trainer("c")], costs=1.0)
    for second in range(500):
        for name in "ab":
            world.at(float(second), lambda n=name: world.put(n, turn=Turn("ns", yields=True)))
    world.run(500.0)
    assert world.book.swapping <= 0.05 * 500 + 2.0
    assert world.held["c"] > 0.25 * 500


def test_a_seat_that_is_idle_leaves_gpu_memory_though_nobody_needs_it_if_set():
    world = World([server("s", idle_limit=5.0), server("t")], costs=0.0)
    world.ask("s", 1.0)
    world.run(5.9)
    assert world.seats["s"].state is S.ACTIVE
    world.run(6.1)
    assert world.seats["s"].state is S.PARKED
    world.ask("t", 1.0)
    world.run(100.0)
    assert world.seats["t"].state is S.ACTIVE


def test_one_that_takes_turns_is_never_idle():
    world = World([replace(trainer("a"), idle_limit=5.0)], costs=0.0)
    world.run(100.0)
    assert world.seats["a"].state is S.ACTIVE


def test_one_that_is_called_is_served_like_any_other_where_nobody_else_takes_turns():
    world = World([trainer("a"), server("s")], costs=0.0)
    world.run(10.0)
    world.ask("s", 2.0)
    world.run(10.5)
    world.ask("a", 0.1)
    world.run(13.0)
    assert not world.seats["a"].waiting
    assert world.seats["a"].state is S.ACTIVE


def test_a_turn_lasts_as_long_as_is_said_of_its_seat():
    for said, swaps in ((None, 10), (30.0, 3)):
        seats = [replace(trainer(name), min_residency=said) for name in "ab"]
        world = World(seats, costs=0.01)
        world.run(60.0)
        assert (world.swaps >= swaps) if said is None else (world.swaps <= swaps)
