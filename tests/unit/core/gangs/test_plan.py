"""Seats for all members at once, or none: by example, and against trying everything."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate.core.gangs.gangplan import Limits, fits_beside, plan
from kybernate.core.ledger.ledger import Claim, NodeSeats, NodeView
from kybernate.core.placement import Demand, candidates
from kybernate.types import GroupName, NodeName, PodRef, PodUid
from tests.unit.core.gangs.world import GIB, ONE, POLICY, TWO, gang, gpu_node, member, views

if TYPE_CHECKING:
    from kybernate.core.gangs.gang import Member


def seats(found: object) -> list[str]:
    return sorted(f"{node}/{group}" for node, group in found.seats.values())


def test_a_gang_stays_on_one_node_if_it_can() -> None:
    nodes = views(gpu_node("n1", 2), gpu_node("n2", 4), gpu_node("n3", 8))
    found = plan(gang("g", 4), nodes, POLICY)
    assert seats(found) == ["n2/G0", "n2/G1", "n2/G2", "n2/G3"]


def test_a_gang_takes_several_nodes_if_it_must() -> None:
    found = plan(gang("g", 3, TWO), views(gpu_node("n1", 2), gpu_node("n2", 4)), POLICY)
    assert seats(found) == ["n1/P0", "n2/P0", "n2/P2"]


def test_no_two_members_take_turns_on_a_gpu() -> None:
    found = plan(gang("g", 3), views(gpu_node(gpus=2, seats=8)), POLICY)
    assert not found.seats
    assert found.reason == (f"3 of its pods need a {ONE} at the same time, and 2 can be had")
    mixed = [*gang("g", 2), *gang("h", 1, TWO)]
    found = plan(mixed, views(gpu_node(gpus=2, seats=8)), POLICY)
    assert "can't all have seats at the same time" in found.reason
    assert seats(plan(mixed, views(gpu_node(gpus=4, seats=8)), POLICY)) in (
        ["n1/G0", "n1/G1", "n1/P2"],
        ["n1/G2", "n1/G3", "n1/P0"],
    )


def test_members_share_a_gpu_of_several_slots_as_far_as_memory_goes() -> None:
    node = views(gpu_node(gpus=1, seats=8, slots=3))
    assert len(plan(gang("g", 2, vram=40 * GIB), node, POLICY).seats) == 2
    assert not plan(gang("g", 2, vram=41 * GIB), node, POLICY).seats
    assert not plan(gang("g", 2), node, POLICY).seats
    assert not plan(gang("g", 4, vram=GIB), node, POLICY).seats


def test_bound_members_count() -> None:
    node = gpu_node(gpus=2)
    first, second = gang("g", 2)
    bound = replace(first, node=NodeName("n1"), group=GroupName("G0"))
    claim = Claim(first.pod, NodeName("n1"), GroupName("G0"), ONE)
    found = plan([bound, second], {NodeName("n1"): NodeView(node, (claim,))}, POLICY)
    assert found.seats == {second.pod.uid: ("n1", "G1")}


def test_nodes_that_the_scheduler_does_not_offer_are_left_out_and_told() -> None:
    members = gang("g", 2)
    nowhere = Limits(offered={one.pod.uid: frozenset() for one in members})
    found = plan(members, views(gpu_node()), POLICY, nowhere)
    assert found.reason.endswith(
        "and 0 can be had (2 more are where the scheduler would not have them)"
    )


def test_each_member_goes_where_it_is_offered_a_node() -> None:
    members = gang("g", 3)
    nodes = views(gpu_node("n1"), gpu_node("n2", 4))
    limits = Limits(offered={members[1].pod.uid: frozenset({NodeName("n1")})})
    found = plan(members, nodes, POLICY, limits)
    assert found.seats[members[1].pod.uid][0] == "n1"
    assert len(found.seats) == 3


def test_no_node_gets_more_members_than_the_scheduler_had_there() -> None:
    nodes = views(gpu_node("n1", 4), gpu_node("n2", 4), gpu_node("n3", 4))
    limits = Limits(most={NodeName("n1"): 2, NodeName("n2"): 0, NodeName("n3"): 2})
    found = plan(gang("g", 4), nodes, POLICY, limits)
    assert Counter(node for node, _ in found.seats.values()) == {"n1": 2, "n3": 2}
    found = plan(gang("g", 5), nodes, POLICY, limits)
    assert "4 can be had (8 more" in found.reason


def test_wishes_are_honoured_whatever_the_order() -> None:
    picky = [
        member("z", demand=Demand(ONE, require_group=GroupName("G0"))),
        member("a", demand=Demand(ONE)),
    ]
    for members in (picky, picky[::-1]):
        found = plan(members, views(gpu_node()), POLICY)
        assert {uid: group for uid, (_, group) in found.seats.items()} == {
            "uid-z": "G0",
            "uid-a": "G1",
        }


def test_a_hopeless_search_ends() -> None:
    wishes = [
        member(f"p{i}", size=12, demand=Demand(ONE, vram=GIB * (1 + i % 12))) for i in range(12)
    ]
    small = [replace(gpu_node(f"n{i}", 2), park_budget=0) for i in range(5)]
    found = plan([*wishes, *gang("t", 3, TWO)], views(*small), POLICY)
    assert not found.seats
    assert found.reason


GROUPS = [None, GroupName("G0"), GroupName("P0")]


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[NodeName, NodeView], list[Member]]:
    nodes = [
        gpu_node(f"n{i}", draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2)))
        for i in range(draw(st.integers(1, 2)))
    ]
    found = {
        node.name: NodeView(node, tuple(draw(st.lists(claims(node), max_size=2)))) for node in nodes
    }
    members = [
        member(
            f"p{i}",
            demand=Demand(
                draw(st.sampled_from([ONE, TWO])),
                draw(st.sampled_from([None, 30 * GIB, 50 * GIB])),
                require_group=draw(st.sampled_from([None, None, GroupName("G1")])),
            ),
        )
        for i in range(draw(st.integers(1, 3)))
    ]
    return found, members


def claims(node: NodeSeats) -> st.SearchStrategy[Claim]:
    def claim(number: int, at: int) -> Claim:
        group = node.groups[at % len(node.groups)]
        pod = PodRef("d", f"x{number}", PodUid(f"x{number}-{node.name}"))
        return Claim(pod, node.name, group.name, group.resource, 10 * GIB)

    return st.builds(claim, st.integers(0, 9), st.integers(0, 9))


def valid(found: dict, nodes: dict[NodeName, NodeView], members: list[Member]) -> bool:
    """Whether all these seats can be given one after the other, and be active together."""
    left, here = dict(nodes), {name: [] for name in nodes}
    for one in members:
        node, name = found[one.pod.uid]
        fitting = {group.name: group for group in candidates(left[node], one.demand).groups}
        if name not in fitting:
            return False
        group = fitting[name]
        here[node].append((group, one.demand.vram))
        if not fits_beside(left[node], here[node], group):
            return False
        claim = Claim(one.pod, node, name, group.resource, one.demand.vram)
        left[node] = replace(left[node], claims=(*left[node].claims, claim))
    return True


@given(problems())
@settings(max_examples=200, deadline=None)
def test_there_is_a_plan_exactly_if_trying_everything_finds_one(problem: tuple) -> None:
    nodes, members = problem
    found = plan(members, nodes, POLICY)
    if found.seats:
        assert set(found.seats) == {one.pod.uid for one in members}
        assert valid(dict(found.seats), nodes, members)
        return
    every = [(name, group.name) for name, view in nodes.items() for group in view.seats.groups]
    uids = [one.pod.uid for one in members]
    tries = (dict(zip(uids, seats, strict=True)) for seats in product(every, repeat=len(uids)))
    assert not any(valid(one, nodes, members) for one in tries)


@given(problems())
@settings(max_examples=50, deadline=None)
def test_the_same_state_gives_the_same_plan(problem: tuple) -> None:
    nodes, members = problem
    turned = dict(reversed(nodes.items()))
    assert plan(members, nodes, POLICY).seats == plan(members[::-1], turned, POLICY).seats


def test_the_worst_case_of_a_large_cluster_is_planned_at_once() -> None:
    nodes = views(*(gpu_node(f"n{i:03}", 8) for i in range(60)))
    found = plan(gang("g", 256), nodes, POLICY)
    assert len(found.seats) == 256
    assert max(Counter(node for node, _ in found.seats.values()).values()) == 8
