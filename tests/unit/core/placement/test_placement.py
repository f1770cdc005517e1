"""Which group a pod gets, and the sentence when it gets none."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.ledger.ledger import Claim, NodeSeats, NodeView
from kybernate.core.placement import (
    FULL,
    POLICIES,
    Demand,
    candidates,
    choose_group,
    lattice,
    load,
    score,
    usable,
)
from kybernate.core.placement.seats import worth
from kybernate.types import Gpu, GpuUuid, Group, GroupName, Link, NodeName, PodRef, PodUid

GIB = 1 << 30
ONE, TWO, FOUR = (f"kyb.ai/gpu-{n}x-seat" for n in (1, 2, 4))
BEST_FIT, BIN_PACK, SPREAD = (POLICIES[name] for name in ("best-fit", "bin-pack", "spread"))


def gpu(index: int, product: str = "H100", memory: int = 80 * GIB, *, healthy: bool = True) -> Gpu:
    return Gpu(GpuUuid(f"GPU-{index}"), index, product, memory, healthy=healthy)


def group(name: str, resource: str = ONE, seats: int = 4) -> Group:
    """G01 is the group of GPUs 0 and 1."""
    gpus = tuple(GpuUuid(f"GPU-{digit}") for digit in name.removeprefix("G"))
    return Group(GroupName(name), resource, gpus, seats)


def pair(a: int, b: int) -> frozenset[GpuUuid]:
    return frozenset((GpuUuid(f"GPU-{a}"), GpuUuid(f"GPU-{b}")))


SINGLES = tuple(group(f"G{i}") for i in range(4))
PAIRS = (group("G01", TWO, 3), group("G23", TWO, 3))
ALL = (*SINGLES, *PAIRS, group("G0123", FOUR, 2))
LINKS = {pair(0, 1): Link.NVLINK, pair(2, 3): Link.PCIE_SWITCH}


def view(*taken: str, gpus: tuple[Gpu, ...] | None = None, **changes: object) -> NodeView:
    """A node of four GPUs on which the named groups have a claim each, once per mention."""
    seats = NodeSeats(
        NodeName("n1"), gpus or tuple(gpu(i) for i in range(4)), LINKS, changes.pop("groups", ALL)
    )
    claims = tuple(
        Claim(PodRef("d", f"p{i}", PodUid(f"u{i}")), NodeName("n1"), GroupName(name), ONE)
        for i, name in enumerate(taken)
    )
    return NodeView(replace(seats, **changes), claims)


def names(view: NodeView, demand: Demand) -> list[str]:
    return [group.name for group in candidates(view, demand).groups]


def chosen(view: NodeView, demand: Demand, policy: str = "best-fit") -> str | None:
    group = choose_group(view, demand, POLICIES[policy])
    return group.name if group else None


def test_only_groups_of_the_resource_are_candidates() -> None:
    assert names(view(), Demand(TWO)) == ["G01", "G23"]


def test_a_required_group_is_a_condition() -> None:
    assert names(view(), Demand(ONE, require_group=GroupName("G2"))) == ["G2"]


def test_a_preferred_group_is_a_wish() -> None:
    wish = Demand(ONE, prefer_group=GroupName("G3"))
    assert chosen(view(), wish) == "G3"
    assert chosen(view(*["G3"] * 4), wish) == "G2"


def test_any_of_several_products_will_do() -> None:
    node = view(gpus=(gpu(0, "A100"), gpu(1, "L40S"), gpu(2), gpu(3)))
    assert names(node, Demand(ONE, products=("L40S", "H100"))) == ["G1", "G2", "G3"]


def test_all_gpus_of_a_group_must_be_of_the_product() -> None:
    node = view(gpus=(gpu(0, "A100"), gpu(1), gpu(2), gpu(3)))
    assert names(node, Demand(TWO, products=("H100",))) == ["G23"]


def test_the_topology_is_the_least_link() -> None:
    assert names(view(), Demand(TWO, topology=Link.NVLINK)) == ["G01"]
    assert names(view(), Demand(TWO, topology=Link.HOST_BRIDGE)) == ["G01", "G23"]
    assert len(names(view(), Demand(ONE, topology=Link.NVLINK))) == 4


def test_memory_counts_less_the_reserve_and_by_the_smallest_gpu() -> None:
    node = view(gpus=(gpu(0, memory=40 * GIB), gpu(1), gpu(2), gpu(3)), reserve=GIB)
    assert [usable(node, group) // GIB for group in PAIRS] == [39, 79]
    assert names(node, Demand(TWO, vram=40 * GIB)) == ["G23"]
    assert names(node, Demand(TWO, vram=39 * GIB)) == ["G01", "G23"]


def test_an_unhealthy_or_lost_gpu_takes_its_groups_out() -> None:
    sick = view(gpus=(gpu(0, healthy=False), gpu(1), gpu(2), gpu(3)))
    gone = view(gpus=(gpu(1), gpu(2), gpu(3)))
    for node in (sick, gone):
        assert names(node, Demand(ONE)) == ["G1", "G2", "G3"]
        assert names(node, Demand(TWO)) == ["G23"]
        assert names(node, Demand(FOUR)) == []


@pytest.mark.parametrize(
    ("node", "demand", "reason", "seat_helps"),
    [
        (view(groups=SINGLES), Demand(TWO), "no group for kyb.ai/gpu-2x-seat", False),
        (view(), Demand(TWO, require_group=GroupName("G9")), "no group G9 .* has G01, G23", False),
        (view(), Demand(ONE, products=("A100", "L4")), "for A100 or L4, .* have H100", False),
        (
            view(groups=(*SINGLES, PAIRS[1])),
            Demand(TWO, topology=Link.NVLINK),
            "linked by NVLink, and the best is PCIe switch",
            False,
        ),
        (view(reserve=GIB), Demand(ONE, vram=80 * GIB), "80Gi per GPU, .* at most 79Gi", False),
        (
            view(park_budget=100 * GIB),
            Demand(TWO, vram=60 * GIB),
            "take 120Gi of host memory, and the node's budget is 100Gi",
            False,
        ),
        (view(gpus=(gpu(0, healthy=False),)), Demand(ONE), "unhealthy or gone", False),
        (view(not_ready="driver lost"), Demand(ONE), "takes no new seats: driver lost", False),
        (view("G01", "G01", "G01", *["G23"] * 3), Demand(TWO), "all 6 seats of G01, G23", True),
    ],
    ids=[
        *("resource", "required", "product", "topology", "memory", "parking", "health", "ready"),
        "seats",
    ],
)
def test_the_reason_is_a_sentence(
    node: NodeView, demand: Demand, reason: str, *, seat_helps: bool
) -> None:
    found = candidates(node, demand)
    assert found.groups == ()
    assert found.seat_helps is seat_helps
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.reason)


def test_a_seat_that_never_parks_needs_no_park_budget() -> None:
    alone = replace(group("G01", TWO), seats=1)
    node = view(groups=(alone,), park_budget=0)
    assert names(node, Demand(TWO, vram=60 * GIB)) == ["G01"]


def test_best_fit_takes_the_smallest_gpu_that_is_large_enough() -> None:
    node = view(gpus=(gpu(0), gpu(1, memory=24 * GIB), gpu(2, memory=48 * GIB), gpu(3)))
    assert chosen(node, Demand(ONE, vram=20 * GIB)) == "G1"
    assert chosen(node, Demand(ONE, vram=30 * GIB)) == "G2"
    assert chosen(node, Demand(ONE, vram=60 * GIB)) in {"G0", "G3"}


def test_bin_pack_fills_what_is_in_use() -> None:
    assert chosen(view("G1"), Demand(ONE), "bin-pack") == "G1"
    assert chosen(view("G23"), Demand(ONE), "bin-pack") == "G2"
    assert chosen(view(*["G1"] * 4, "G0"), Demand(ONE), "bin-pack") == "G0"


def test_spread_takes_the_least_contended_gpu() -> None:
    assert chosen(view("G2", "G3", "G0"), Demand(ONE), "spread") == "G1"
    assert chosen(view("G2", "G3"), Demand(TWO), "spread") == "G01"
    assert chosen(view("G01"), Demand(ONE), "spread") == "G2"


@pytest.mark.parametrize("policy", ["best-fit", "spread", "bin-pack"])
def test_a_small_pod_leaves_the_well_linked_pair_whole(policy: str) -> None:
    assert chosen(view(), Demand(ONE), policy) == "G2"


def test_a_large_pod_gets_the_well_linked_pair() -> None:
    assert chosen(view(), Demand(TWO)) == "G01"


def test_scores_follow_the_policy() -> None:
    empty, busy = view(), view("G0", "G1", "G2", "G3", "G0", "G1", "G2", "G3")
    assert score(empty, Demand(ONE), SPREAD) > score(busy, Demand(ONE), SPREAD)
    assert score(empty, Demand(ONE), BIN_PACK) < score(busy, Demand(ONE), BIN_PACK)
    small = view(gpus=tuple(gpu(i, memory=24 * GIB) for i in range(4)))
    tight = Demand(ONE, vram=20 * GIB)
    assert score(small, tight, BEST_FIT) > score(empty, tight, BEST_FIT)


def test_a_node_without_a_candidate_scores_nothing() -> None:
    assert score(view(groups=SINGLES), Demand(TWO), BEST_FIT) == 0


def test_a_node_with_the_preferred_group_free_scores_above_all_without() -> None:
    wish = Demand(ONE, prefer_group=GroupName("G3"))
    other = view(groups=SINGLES[:3])
    for policy in POLICIES.values():
        assert score(view("G3"), wish, policy) >= 5
        assert score(other, wish, policy) <= 5


DEMANDS = st.builds(
    Demand,
    resource=st.sampled_from((ONE, TWO, FOUR)),
    vram=st.none() | st.integers(0, 100 * GIB),
    products=st.sampled_from(((), ("H100",), ("A100", "H100"))),
    prefer_group=st.none() | st.sampled_from([g.name for g in ALL]),
    topology=st.none() | st.sampled_from(Link),
)
TAKEN = st.lists(st.sampled_from([g.name for g in ALL]), max_size=12)
GPUS = st.lists(
    st.tuples(st.sampled_from(("H100", "A100")), st.integers(1, 90), st.booleans()),
    min_size=4,
    max_size=4,
)


@given(TAKEN, GPUS, DEMANDS, st.sampled_from(sorted(POLICIES)), st.randoms())
def test_the_choice_depends_on_the_state_only(
    taken: list[str], made: list[tuple[str, int, bool]], demand: Demand, policy: str, random: object
) -> None:
    """Not on the order of groups, GPUs or claims, and it is one that can take the pod."""
    gpus = [gpu(i, p, m * GIB, healthy=h) for i, (p, m, h) in enumerate(made)]
    groups, shuffled, mixed = list(ALL), list(ALL), list(gpus)
    for items in (shuffled, mixed):
        random.shuffle(items)
    straight = view(*taken, gpus=tuple(gpus), groups=tuple(groups))
    other = view(*reversed(taken), gpus=tuple(mixed), groups=tuple(shuffled))
    best = choose_group(straight, demand, POLICIES[policy])
    assert choose_group(other, demand, POLICIES[policy]) == best
    assert score(straight, demand, POLICIES[policy]) == score(other, demand, POLICIES[policy])
    found = candidates(straight, demand)
    assert (best in found.groups) if found.groups else (best is None and found.reason)
    if best is not None:
        assert straight.taken(best.name) < best.seats


@given(TAKEN, GPUS, DEMANDS)
def test_worths_and_scores_stay_in_range(
    taken: list[str], made: list[tuple[str, int, bool]], demand: Demand
) -> None:
    gpus = tuple(gpu(i, p, m * GIB, healthy=h) for i, (p, m, h) in enumerate(made))
    node = view(*taken, gpus=gpus)
    for policy in POLICIES.values():
        assert 0 <= score(node, demand, policy) <= 10
        for found in candidates(node, demand).groups:
            assert worth(node, found, demand, policy) <= FULL
            assert worth(node, found, demand, policy) >= 0 or policy.name == "default"
            assert 0 <= load(node, found) <= FULL


def test_a_node_takes_no_more_than_its_gpus_and_its_memory_bear() -> None:
    # Four GPUs of 80 GiB. A fifth seat needs its own place in memory, and one to swap through.
    full = ("G0", "G1", "G2", "G3")
    for budget, fits in ((0, False), (159 * GIB, False), (160 * GIB, True)):
        assert bool(names(view(*full, park_budget=budget), Demand(ONE))) is fits, budget
    small = candidates(view(*full, park_budget=100 * GIB), Demand(ONE, vram=10 * GIB))
    assert small.groups
    refused = candidates(view(*full, park_budget=0), Demand(ONE))
    assert refused.seat_helps
    assert refused.reason == (
        "its pods hold 320Gi of GPU memory, and another one would be more than its GPUs and the "
        "0 of host memory for parked seats can bear"
    )


def test_a_group_that_shares_its_gpus_counts_in_full() -> None:
    assert names(view("G0123", park_budget=0), Demand(ONE)) == []
    assert names(view("G01", park_budget=0), Demand(ONE)) != []


def test_memory_of_a_gpu_that_is_ill_bears_nothing() -> None:
    gpus = (gpu(0, healthy=False), *(gpu(i) for i in (1, 2, 3)))
    assert names(view("G1", "G2", "G3", gpus=gpus, park_budget=0), Demand(ONE)) == []
    assert names(view("G1", "G2", gpus=gpus, park_budget=0), Demand(ONE)) != []


def test_a_link_is_looked_for_once_for_all_groups_of_the_same_gpus() -> None:
    """A node may tell of hundreds of groups, each of most of its GPUs."""
    uuids = tuple(GpuUuid(f"g{at}") for at in range(16))
    gpus = tuple(Gpu(uuid, at, "H100", 80) for at, uuid in enumerate(uuids))
    small = [Group(GroupName(f"S{at}"), ONE, uuids[:1], 1) for at in range(20)]
    large = [Group(GroupName(f"L{at}"), TWO, uuids[at % 2 :], 1) for at in range(20)]
    view = NodeView(NodeSeats(NodeName("n"), gpus, {}, (*small, *large)))
    with patch.object(lattice, "worst_link", wraps=lattice.worst_link) as found:
        members = [lattice.member(view, group) for group in view.seats.groups]
    assert found.call_count == 3
    assert members[0].breaks == members[-1].link == Link.SYSTEM
    assert len(members[0].sharing) == 30
