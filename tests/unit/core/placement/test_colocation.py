"""What sharing a group means for a pod, on nodes with claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.ledger.ledger import Claim, Ledger, NodeSeats, NodeView
from kybernate.core.placement import POLICIES, Demand, candidates, choose_group, score
from kybernate.core.placement.colocation import (
    detour,
    expected_wait,
    expected_wake,
    hot_together,
    neighbours,
    park_room,
    strange_parties,
)
from kybernate.core.placement.seats import worth
from kybernate.core.swap.activity import HOURS
from kybernate.core.swap.forecast import Traffic
from kybernate.core.tiers.tiers import Artifact
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName, PodRef, PodUid, Tier

GIB = 1 << 30
ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"
GPUS = tuple(Gpu(GpuUuid(f"GPU-{i}"), i, "H100", 80 * GIB) for i in range(4))
GROUPS = (
    *(Group(GroupName(f"G{i}"), ONE, (GPUS[i].uuid,), 4) for i in range(4)),
    Group(GroupName("G01"), TWO, (GPUS[0].uuid, GPUS[1].uuid), 4),
)
SEATS = NodeSeats(NodeName("n1"), GPUS, {}, GROUPS, park_budget=200 * GIB)


def day(hours, busy, calls_per_hour=60):
    return Traffic(
        tuple(busy if hour in hours else 0.0 for hour in range(HOURS)),
        tuple(calls_per_hour / 3600 if hour in hours else 0.0 for hour in range(HOURS)),
    )


OFFICE, NIGHT = day(range(8, 18), 0.6), day(range(20, 24), 0.6)


def claim(name, group, vram=40 * GIB, **more):
    resource = TWO if group == "G01" else ONE
    ref = PodRef("shop", name, PodUid(name))
    return Claim(ref, SEATS.name, GroupName(group), resource, vram, **more)


def view(*claims, seats=SEATS):
    return NodeView(seats, claims)


def group(name, seats=SEATS):
    return next(one for one in seats.groups if one.name == name)


def test_neighbours_are_those_of_all_groups_with_a_gpu_in_common():
    a, b, c = claim("a", "G0"), claim("b", "G01"), claim("c", "G2")
    here = view(a, b, c, claim("d", None))
    assert neighbours(here, group("G0")) == (a, b)
    assert neighbours(here, group("G1")) == (b,)
    assert neighbours(here, group("G3")) == ()


def test_a_pod_waits_least_beside_a_model_with_other_hours():
    here = view(claim("a", "G0", traffic=OFFICE), claim("b", "G1", traffic=NIGHT))
    newcomer = Demand(ONE, 40 * GIB, traffic=OFFICE)
    hot, other, empty = (expected_wait(here, group(f"G{i}"), newcomer) for i in range(3))
    assert empty == 0
    assert 0 < other < 1
    assert hot > 10
    assert hot_together(here, group("G0"), newcomer) == tuple(range(8, 18))
    assert hot_together(here, group("G1"), newcomer) == ()


def test_bigger_neighbours_take_longer_to_switch():
    newcomer = Demand(ONE, 10 * GIB, traffic=NIGHT)
    small, big = (
        expected_wait(view(claim("a", "G0", size, traffic=NIGHT)), group("G0"), newcomer)
        for size in (10 * GIB, 79 * GIB)
    )
    assert small < big


def test_a_neighbour_below_ram_takes_longer_to_come_in():
    newcomer = Demand(ONE, 40 * GIB, traffic=NIGHT)
    states = (None, Artifact(Tier.NVME, 40 * GIB), Artifact(Tier.OBJECT, 40 * GIB))
    waits = [
        expected_wait(view(claim("a", "G0", traffic=NIGHT, rests=one)), group("G0"), newcomer)
        for one in states
    ]
    assert waits[0] < waits[1] < waits[2]
    in_ram = claim("a", "G0", traffic=NIGHT, rests=Artifact(Tier.RAM, 40 * GIB))
    assert expected_wait(view(in_ram), group("G0"), newcomer) == pytest.approx(waits[0])


def test_the_policy_prefers_the_group_whose_seat_rests_in_ram():
    below = claim("a", "G0", traffic=NIGHT, rests=Artifact(Tier.OBJECT, 40 * GIB))
    others = [claim(f"x{i}", f"G{i}", traffic=NIGHT) for i in (1, 2, 3)]
    newcomer = Demand(ONE, 40 * GIB, traffic=NIGHT)
    found = choose_group(view(below, *others), newcomer, POLICIES["default"])
    assert found is not None
    assert found.name == "G1"


def test_the_ledger_tells_claims_where_they_rest_and_who_looks_at_no_tier_sees_no_difference():
    ledger, held = Ledger(), claim("a", "G0", traffic=None)
    ledger.upsert_claim(held)
    ledger.upsert_node(SEATS)
    before = ledger.node(SEATS.name)
    state = Artifact(Tier.NVME, 40 * GIB)
    ledger.upsert_node(replace(SEATS, rests={held.pod.uid: state}))
    after = ledger.node(SEATS.name)
    assert [one.rests for one in after.claims] == [state]
    assert before.shape != after.shape
    assert before.still_shape == after.still_shape
    ledger.upsert_node(SEATS)
    assert ledger.node(SEATS.name).shape == before.shape


STATES = st.builds(
    Artifact,
    st.sampled_from([Tier.NVME, Tier.OBJECT]),
    st.integers(1, 1 << 42),
    st.sampled_from([None, NodeName("n2"), NodeName("n3")]),
)


@given(st.lists(STATES, max_size=4), STATES, st.sampled_from(["G0", "G01"]))
def test_a_state_is_soonest_in_the_gpus_of_the_node_that_holds_it(known, one, name):
    demand = Demand(ONE, 40 * GIB, states=(*known, replace(one, node=NodeName("n2"))))
    elsewhere = expected_wake(view(), group(name), demand)
    here = expected_wake(NodeView(SEATS, holds=(replace(one, node=None),)), group(name), demand)
    assert 0 < here <= elsewhere
    holder = NodeView(SEATS, holds=(replace(one, node=None),))
    assert 0 <= detour(holder, group(name), demand) <= detour(view(), group(name), demand)
    alone = replace(demand, states=(replace(one, node=NodeName("n2")),))
    assert detour(holder, group(name), alone) == 0
    assert expected_wake(view(), group(name), replace(demand, states=())) == 0


def test_who_can_be_active_side_by_side_hardly_waits():
    slots = replace(SEATS, groups=tuple(replace(one, active_slots=2) for one in GROUPS))
    newcomer = Demand(ONE, 30 * GIB, traffic=OFFICE)
    waits = [
        expected_wait(view(claim("a", "G0", size, traffic=OFFICE), seats=seats), g, newcomer)
        for size, seats, g in [
            (30 * GIB, slots, group("G0", slots)),  # both fit into 80 GiB
            (60 * GIB, slots, group("G0", slots)),
            (None, slots, group("G0", slots)),
            (30 * GIB, SEATS, group("G0")),
        ]
    ]
    assert waits[0] < waits[3] / 2
    assert waits[1] > waits[3]
    assert hot_together(view(claim("a", "G0", 30 * GIB, traffic=OFFICE), seats=slots),
                        group("G0", slots), newcomer) == ()  # fmt: skip


def test_strangers_are_named():
    here = view(claim("a", "G0", party="namespace a"), claim("b", "G01", party="namespace b"))
    mine = Demand(ONE, party="namespace a")
    assert strange_parties(here, group("G0"), mine) == ("namespace b",)
    assert strange_parties(here, group("G2"), mine) == ()


def test_no_group_among_strangers_is_a_candidate_and_the_reason_says_why():
    theirs = [claim(f"c{i}", f"G{i}", party="namespace b") for i in range(3)]
    mine = Demand(ONE, 40 * GIB, party="namespace a")
    assert [one.name for one in candidates(view(*theirs), mine).groups] == ["G3"]
    full = candidates(view(*theirs, claim("d", "G3", party="namespace c")), mine)
    assert full.groups == ()
    assert (full.kind, full.seat_helps) == ("party", True)
    assert full.reason == (
        "the GPUs of G0, G1, G2, G3 are used by pods of namespace b and of namespace c, the pod "
        "is of namespace a, and the cluster's rule (sharing) keeps them apart"
    )


def test_only_where_the_cluster_says_so_are_hot_models_kept_apart_at_all_costs():
    hot = [claim(f"c{i}", f"G{i}", traffic=OFFICE) for i in range(4)]
    shares = Demand(ONE, 40 * GIB, traffic=OFFICE)
    assert len(candidates(view(*hot), shares).groups) == 4
    apart = replace(shares, apart=True)
    refused = candidates(view(*hot), apart)
    assert (refused.groups, refused.kind, refused.seat_helps) == ((), "hot", True)
    assert refused.reason == (
        "G0, G1, G2, G3 hold hot models, busy at the same hours as the pod's (8-17 UTC), and the "
        "cluster's rule (hot_apart) keeps such models apart"
    )
    (free,) = candidates(view(*hot[:3]), apart).groups
    assert free.name == "G3"
    other = replace(apart, traffic=NIGHT)
    assert len(candidates(view(*hot), other).groups) == 4


@pytest.mark.parametrize(
    ("claims", "left"),
    [
        ((), 200 - 40),  # all on the GPUs, and room for one to be parked first
        ((claim("a", "G0", 80 * GIB),), 200 - 80),
        (tuple(claim(f"c{i}", "G0", 80 * GIB) for i in range(4)), 200 - 80 - 40),
    ],
)
def test_room_to_park(claims, left):
    demand = Demand(ONE, 40 * GIB)
    assert park_room(view(*claims), group("G0"), demand) == left * GIB
    assert park_room(NodeView(replace(SEATS, park_budget=None)), group("G0"), demand) is None


def test_the_ledger_joins_claims_with_what_their_nodes_agent_saw():
    ledger = Ledger()
    ledger.upsert_claim(claim("a", "G0"))
    ledger.upsert_node(replace(SEATS, traffic={PodUid("a"): OFFICE}))
    (seen,) = ledger.node(SEATS.name).claims
    assert seen.traffic == OFFICE
    shape = ledger.node(SEATS.name).shape
    ledger.upsert_node(replace(SEATS, traffic={PodUid("a"): NIGHT}))
    (seen,) = ledger.node(SEATS.name).claims
    assert seen.traffic == NIGHT
    # What is decided may depend on it: nodes with other traffic have another shape.
    assert ledger.node(SEATS.name).shape != shape


def test_the_default_policy_puts_models_with_other_hours_together():
    """Of three GPUs in use, and of nodes where all are: never the one that is hot at the same
    hours."""
    default = POLICIES["default"]
    busy = [("G0", OFFICE), ("G1", NIGHT), ("G2", OFFICE), ("G3", OFFICE)]
    here = view(*(claim(f"c{i}", name, traffic=day) for i, (name, day) in enumerate(busy)))
    newcomer = Demand(ONE, 40 * GIB, traffic=OFFICE)
    assert choose_group(here, newcomer, default).name == "G1"
    other = replace(newcomer, traffic=NIGHT)
    assert choose_group(here, other, default).name != "G1"
    hot = view(*(claim(f"c{i}", name, traffic=OFFICE) for i, (name, _) in enumerate(busy)))
    cool = view(*(claim(f"c{i}", name, traffic=NIGHT) for i, (name, _) in enumerate(busy)))
    assert score(hot, newcomer, default) < score(cool, newcomer, default)
    assert score(hot, other, default) > score(cool, other, default)


def test_of_nodes_alike_the_default_policy_takes_the_one_with_more_room_to_park():
    default, demand = POLICIES["default"], Demand(ONE, 40 * GIB, traffic=NIGHT)
    held = [claim(f"c{i}", f"G{i}", 70 * GIB, traffic=OFFICE) for i in range(4)]
    worths = [
        worth(view(*held, seats=replace(SEATS, park_budget=budget)), group("G0"), demand, default)
        for budget in (80 * GIB, 300 * GIB, 3000 * GIB, None)
    ]
    assert worths == sorted(worths)
    assert 10 < worths[-1] - worths[0] <= 100
