"""Many gangs at once, in any order of events, with crashes: none waits for another, none hoards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate.core.gangs.gang import Act, trouble
from kybernate.core.gangs.gangplan import plan
from tests.unit.core.gangs.world import (
    HOLD_S,
    ONE,
    POLICY,
    TWO,
    World,
    gang,
    gpu_node,
    member,
    views,
)

if TYPE_CHECKING:
    from kybernate.core.gangs.gang import Member

SPECS = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([ONE, TWO])), min_size=1, max_size=4)
NODES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 2)), min_size=1, max_size=3)
WRITES = st.sampled_from([99, 99, 99, 0, 1, 2])


def world_of(nodes: list, specs: list) -> tuple[World, dict[str, list[Member]]]:
    gangs = {f"g{i}": gang(f"g{i}", *spec) for i, spec in enumerate(specs)}
    made = [gpu_node(f"n{i}", *spec) for i, spec in enumerate(nodes)]
    return World(made, [one for members in gangs.values() for one in members]), gangs


def held(world: World, name: str) -> int:
    """Seats that are held for members which are bound nowhere."""
    world.ledger.expire(world.now)
    waiting = [one for one in world.gang(name) if one.node is None]
    return sum(world.ledger.claim(one.pod.uid) is not None for one in waiting)


def over_promised(world: World) -> list[str]:
    return [
        f"{name}/{group.name}"
        for name, view in world.views().items()
        for group in view.seats.groups
        if view.taken(group.name) > group.seats
    ]


def settle(world: World, names: list[str]) -> None:
    """Let the extender and the scheduler work until nothing changes any more."""
    for _ in range(12):
        for name in names:
            world.step(name)
        for uid in list(world.pods):
            world.bind(uid)


def bound(world: World, name: str) -> int:
    return sum(one.node is not None for one in world.gang(name))


@pytest.mark.slow
@given(NODES, SPECS, st.data())
@settings(max_examples=100, deadline=None)
def test_whatever_happens_seats_are_held_for_whole_gangs_and_no_gang_waits_for_another(
    nodes: list, specs: list, data: st.DataObject
) -> None:
    world, gangs = world_of(nodes, specs)
    names = list(gangs)
    lost: list[Member] = []
    for _ in range(data.draw(st.integers(0, 40))):
        name = data.draw(st.sampled_from(names))
        event = data.draw(st.sampled_from(["step", "step", "bind", "delete", "back", "late"]))
        some = data.draw(st.sampled_from(gangs[name]))
        if event == "step":
            writes = data.draw(WRITES)
            act = world.step(name, writes)
            if act is not Act.LIFT and writes == 99:
                waiting = sum(one.node is None for one in world.gang(name))
                assert held(world, name) in (0, waiting)
        elif event == "bind" and some.pod.uid in world.pods:
            world.bind(some.pod.uid)
        elif event == "delete" and some.pod.uid in world.pods:
            world.delete(some.pod.uid)
            lost.append(some)
        elif event == "back" and lost:
            back = lost.pop()
            world.pods[back.pod.uid] = back
        elif event == "late":
            world.now += HOLD_S
        assert not over_promised(world)
    settle(world, names)
    for name in names:
        members = world.gang(name)
        assert held(world, name) == 0
        if members and not trouble(members) and bound(world, name) < len(members):
            assert not plan(members, world.views(), POLICY).seats


@given(NODES, SPECS)
@settings(max_examples=60, deadline=None)
def test_every_gang_that_fits_an_empty_cluster_runs_once_others_have_ended(
    nodes: list, specs: list
) -> None:
    world, gangs = world_of(nodes, specs)
    fits = {
        name for name, members in gangs.items() if plan(members, views(*world.nodes), POLICY).seats
    }
    ran = set()
    for _ in range(len(gangs)):
        settle(world, list(gangs))
        for name, members in gangs.items():
            assert bound(world, name) in (0, len(members) if name not in ran else 0)
            if bound(world, name):
                ran.add(name)
                for one in members:
                    world.delete(one.pod.uid)
    assert ran == fits


def test_two_gangs_that_need_the_same_seats_run_one_after_the_other() -> None:
    world, gangs = world_of([(2, 1)], [(2, ONE), (2, ONE)])
    settle(world, ["g1", "g0"])
    assert (bound(world, "g0"), bound(world, "g1")) == (0, 2)
    assert all(one.gates for one in gangs["g0"])
    for one in gangs["g1"]:
        world.delete(one.pod.uid)
    settle(world, ["g1", "g0"])
    assert bound(world, "g0") == 2


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_crash_in_the_middle_of_a_plan_holds_no_seat_for_long(writes: int) -> None:
    world, _ = world_of([(3, 1)], [(3, ONE)])
    world.step("g0", writes)
    assert held(world, "g0") == writes
    assert world.step("g0") is (Act.RELEASE if writes else Act.PLAN)
    settle(world, ["g0"])
    assert bound(world, "g0") == 3


def test_a_crash_in_the_middle_of_lifting_goes_on_with_the_same_plan() -> None:
    world, _ = world_of([(3, 1)], [(3, ONE)])
    world.step("g0")
    before = [one.seat for one in world.gang("g0")]
    assert world.step("g0", 1) is Act.LIFT
    assert [len(one.gates) for one in world.gang("g0")] == [0, 1, 1]
    assert held(world, "g0") == 3
    assert world.step("g0") is Act.LIFT
    assert [one.seat for one in world.gang("g0")] == before


def test_a_pod_in_place_of_one_that_went_away_starts_the_gang() -> None:
    world, gangs = world_of([(2, 1)], [(2, ONE)])
    world.step("g0")
    world.delete(gangs["g0"][0].pod.uid)
    assert world.step("g0") is Act.RELEASE
    assert held(world, "g0") == 0
    new = member("new", "g0")
    world.pods[new.pod.uid] = new
    settle(world, ["g0"])
    assert bound(world, "g0") == 2
