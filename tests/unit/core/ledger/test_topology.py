"""Groups from GPUs and links: partitions are sound, best, and independent of the input's order."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate import keys
from kybernate.core.ledger.topology import (
    GroupSpec,
    form_groups,
    group_name,
    group_worth,
    link_between,
    partition,
    seat_ids,
    worst_link,
)
from kybernate.errors import ConfigError
from kybernate.types import Gpu, GpuUuid, Group, GroupName, Link, Profile

GIB = 1 << 30


def gpu(index, numa=0):
    return Gpu(GpuUuid(f"GPU-{index:04d}"), index, "NVIDIA H100", 80 * GIB, numa)


def uuid(index):
    return GpuUuid(f"GPU-{index:04d}")


def links_of(*pairs):
    return {frozenset((uuid(a), uuid(b))): kind for a, b, kind in pairs}


def profile(size, seats=3, slots=1, *, over=True):
    return Profile(f"gpu-{size}x-seat", keys.seat_resource(size), size, seats, slots, over)


def indices(cut):
    return [tuple(member.index for member in group) for group in cut]


@st.composite
def nodes(draw, most=8):
    count = draw(st.integers(1, most))
    gpus = [gpu(index, draw(st.integers(0, 1))) for index in range(count)]
    known = {
        frozenset((a.uuid, b.uuid)): draw(st.sampled_from(Link)) for a, b in combinations(gpus, 2)
    }
    return gpus, known


def cuts(members, size, spare):
    """Every cut of `members` into groups of `size` that leaves `spare` of them out."""
    if len(members) < size:
        yield ()
        return
    low, others = members[0], members[1:]
    for mates in combinations(others, size - 1):
        rest = [one for one in others if one not in mates]
        for cut in cuts(rest, size, spare):
            yield ((low, *mates), *cut)
    if spare:
        yield from cuts(others, size, spare - 1)


def ranked(cut, links):
    """The documented order, spelled out: comparable by the usual tuple order."""
    together = sum(len({member.numa for member in group}) == 1 for group in cut)
    worst = [worst_link(links, [member.uuid for member in group]) for group in cut]
    pairs = [
        link_between(links, a.uuid, b.uuid) for group in cut for a, b in combinations(group, 2)
    ]
    best_first = sorted(Link, reverse=True)
    return (
        len(cut),
        together,
        [worst.count(kind) for kind in best_first],
        [pairs.count(kind) for kind in best_first],
    )


@given(nodes(), st.sampled_from([1, 2, 3, 4, 8]))
@settings(deadline=None, max_examples=150)
def test_a_cut_is_as_good_as_the_best_of_all(node, size):
    gpus, links = node
    best = max(ranked(cut, links) for cut in cuts(gpus, size, len(gpus) % size))
    assert ranked(partition(gpus, links, size), links) == best


@given(nodes(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_the_input_does_not_matter(node, random):
    gpus, links = node
    shuffled = random.sample(gpus, len(gpus))
    turned = dict(random.sample(sorted(links.items(), key=str), len(links)))
    profiles = [profile(1), profile(2), profile(4)]
    assert form_groups(shuffled, turned, profiles) == form_groups(gpus, links, profiles)


@given(nodes())
@settings(deadline=None)
def test_a_gpu_is_at_most_once_in_the_groups_of_a_profile(node):
    gpus, links = node
    for size in (1, 2, 4, 8):
        groups = form_groups(gpus, links, [profile(size)])
        members = [member for group in groups for member in group.gpus]
        assert len(members) == len(set(members))
        assert all(len(group.gpus) == size for group in groups)
        assert len(groups) == len(gpus) // size


def test_more_gpus_than_can_be_cut_exactly_stay_on_their_numa_nodes():
    gpus = [gpu(index, index % 2) for index in range(24)]
    cut = partition(gpus, {}, 4)
    assert len(cut) == 6
    assert all(len({member.numa for member in group}) == 1 for group in cut)


def test_what_numa_nodes_leave_over_still_makes_groups():
    gpus = [gpu(index, index // 9) for index in range(18)]
    cut = partition(gpus, {}, 2)
    assert len(cut) == 9
    assert len({member.uuid for group in cut for member in group}) == 18


def test_sixteen_gpus_are_cut_exactly():
    pairs = [(index, index + 8, Link.NVLINK) for index in range(8)]
    gpus = [gpu(index) for index in range(16)]
    assert indices(partition(gpus, links_of(*pairs), 2)) == [(at, at + 8) for at in range(8)]


def test_nvlink_pairs_win_over_neighbours():
    links = links_of((0, 2, Link.NVLINK), (1, 3, Link.NVLINK), (0, 1, Link.PCIE_SWITCH))
    assert indices(partition([gpu(at) for at in range(4)], links, 2)) == [(0, 2), (1, 3)]


def test_a_numa_border_weighs_more_than_nvlink():
    gpus = [gpu(0, 0), gpu(1, 1), gpu(2, 0), gpu(3, 1)]
    links = links_of((0, 1, Link.NVLINK), (2, 3, Link.NVLINK))
    assert indices(partition(gpus, links, 2)) == [(0, 2), (1, 3)]


def test_the_gpu_with_the_worst_links_is_left_out():
    links = links_of((1, 2, Link.NVLINK), (0, 1, Link.HOST_BRIDGE), (0, 2, Link.HOST_BRIDGE))
    assert indices(partition([gpu(0), gpu(1), gpu(2)], links, 2)) == [(1, 2)]


def test_a_worth_never_overflows_into_the_next_rank():
    gpus = [gpu(at) for at in range(16)]
    system = group_worth(gpus, {})
    better = group_worth(gpus[:2], links_of((0, 1, Link.NUMA_NODE)))
    assert system < better


@pytest.mark.parametrize(
    ("members", "name"),
    [((0,), "G0"), ((0, 1), "G01"), ((0, 1, 2, 3), "G0123"), ((8, 9), "G89"), ((8, 10), "G8-10")],
)
def test_formed_groups_are_named_by_their_indices(members, name):
    assert group_name(members) == name


@pytest.mark.slow
@given(nodes(most=16))
def test_no_two_groups_of_a_node_have_one_name(node):
    gpus, links = node
    groups = form_groups(gpus, links, [profile(size) for size in (1, 2, 4)])
    assert len({group.name for group in groups}) == len(groups)


def test_a_name_that_is_taken_is_written_apart():
    assert group_name((1, 3), {"G13"}) == "G-1-3"
    assert group_name((13,), {"G13"}) == "G-13"


def test_seats_are_numbered_from_one():
    group = Group(GroupName("G01"), keys.seat_resource(2), (uuid(0), uuid(1)), 2)
    assert seat_ids(group) == ("G01-seat-1", "G01-seat-2")


def test_without_overprovisioning_there_is_a_seat_per_active_slot():
    groups = form_groups([gpu(0)], {}, [profile(1, seats=4, over=False)])
    assert [group.seats for group in groups] == [1]


def test_configured_groups_are_taken_for_their_size_and_the_rest_is_formed():
    gpus = [gpu(at) for at in range(4)]
    groups = form_groups(
        gpus, {}, [profile(1), profile(2), profile(8)], [GroupSpec("left", (2, 0))]
    )
    assert [group.name for group in groups] == ["G0", "G1", "G2", "G3", "left"]
    assert groups[-1].gpus == (uuid(0), uuid(2))


def test_links_that_nobody_knows_count_as_the_worst():
    assert worst_link({}, [uuid(0), uuid(1)]) is Link.SYSTEM
    assert worst_link({}, [uuid(0)]) is Link.NVLINK
    assert link_between({}, uuid(0), uuid(0)) is Link.NVLINK


@pytest.mark.parametrize(
    ("specs", "field", "word"),
    [
        ([GroupSpec("A", (0, 7))], "gpuTopology.groups[0].gpus[1]", "no GPU 7"),
        ([GroupSpec("A", (0, 1, 2))], "gpuTopology.groups[0].gpus", "groupSize 3"),
        ([GroupSpec("A", (0, 0))], "gpuTopology.groups[0].gpus[1]", "already in A"),
        (
            [GroupSpec("A", (0, 1)), GroupSpec("B", (1, 2))],
            "gpuTopology.groups[1].gpus[0]",
            "already in A",
        ),
        (
            [GroupSpec("A", (0, 1)), GroupSpec("A", (2, 3))],
            "gpuTopology.groups[0].name",
            "two groups",
        ),
        ([GroupSpec("G3", (0, 1))], "gpuTopology.groups[0].name", "two groups"),
        ([GroupSpec("x" * 60, (0, 1))], "gpuTopology.groups[0].name", "63"),
    ],
    ids=["no such GPU", "no such size", "twice", "shared", "same name", "formed name", "too long"],
)
def test_a_wrong_group_is_refused_by_its_field(specs, field, word):
    with pytest.raises(ConfigError, match=word) as caught:
        form_groups([gpu(at) for at in range(4)], {}, [profile(1), profile(2)], specs)
    assert caught.value.field == field


def test_a_node_without_gpus_has_no_groups():
    assert form_groups([], {}, [profile(1)]) == ()
