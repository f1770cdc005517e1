"""Pure answers: inventory over time, device lists, allocation, preference, report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deviceplugin.inventory import (
    Held,
    Holdings,
    Sighting,
    first_inventory,
    inventory_report,
    next_inventory,
    reformed,
    with_health,
)
from kybernate.errors import ConfigError
from kybernate.settings.plugin import DEFAULT_SEATS, parse_seats_config
from kybernate.types import Gpu, GpuUuid, GroupName, Link

ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"


def gpu(at):
    return Gpu(GpuUuid(f"GPU-{at}"), at, "NVIDIA H100", 80 << 30, numa=0)


def seen(*at):
    return Sighting(tuple(map(gpu, at)), {}, "580.1", "13.0")


def held(*groups):
    return Holdings(1 << 50, tuple(Held(f"{one}-seat-1", GroupName(one)) for one in groups))


def test_a_lost_gpu_keeps_its_groups_and_comes_back():
    first = first_inventory(DEFAULT_SEATS, seen(0, 1, 2))
    lost = next_inventory(DEFAULT_SEATS, first, seen(0, 2))
    lost = with_health(lost, {GpuUuid("GPU-1"): "it is lost"})
    assert [gpu.healthy for gpu in lost.gpus] == [True, False, True]
    assert [group.name for group in lost.groups if not lost.healthy(group)] == ["G1", "G01"]
    assert with_health(next_inventory(DEFAULT_SEATS, lost, seen(0, 1, 2)), {}) == first


def test_a_gpu_keeps_index_and_groups_when_the_driver_counts_anew():
    first = first_inventory(DEFAULT_SEATS, seen(0, 1, 2))
    moved = Sighting((gpu(0), replace(gpu(2), index=1)), {})
    after = next_inventory(DEFAULT_SEATS, first, moved)
    assert [(one.uuid, one.index) for one in after.gpus] == [
        ("GPU-0", 0),
        ("GPU-1", 1),
        ("GPU-2", 2),
    ]
    assert after.groups == first.groups


def test_a_new_gpu_gets_groups_of_its_own():
    first = first_inventory(DEFAULT_SEATS, seen(0, 1))
    after = next_inventory(DEFAULT_SEATS, first, seen(0, 1, 2, 3))
    assert [group.name for group in after.groups] == ["G0", "G1", "G01", "G2", "G3", "G23"]


def test_the_groups_of_a_new_gpu_have_names_of_their_own():
    first = first_inventory(DEFAULT_SEATS, Sighting((gpu(1), gpu(3)), {}))
    assert [group.name for group in first.groups] == ["G1", "G3", "G13"]
    after = next_inventory(DEFAULT_SEATS, first, seen(1, 3, 13))
    assert after.groups[:3] == first.groups
    assert [group.name for group in after.groups[3:]] == ["G-13"]


def test_a_new_gpu_takes_the_place_of_a_lost_one_that_nobody_holds():
    first = replace(first_inventory(DEFAULT_SEATS, seen(0, 1)), holdings=held())
    new = replace(gpu(5), index=1)
    after = next_inventory(DEFAULT_SEATS, first, Sighting((gpu(0), new), {}))
    assert [(one.uuid, one.index) for one in after.gpus] == [("GPU-0", 0), ("GPU-5", 1)]
    assert [(group.name, group.gpus) for group in after.groups] == [
        ("G0", ("GPU-0",)),
        ("G1", ("GPU-5",)),
        ("G01", ("GPU-0", "GPU-5")),
    ]


def test_a_new_gpu_never_takes_the_place_of_one_that_a_pod_holds():
    first = replace(first_inventory(DEFAULT_SEATS, seen(0, 1)), holdings=held("G01"))
    new = replace(gpu(5), index=1)
    after = next_inventory(DEFAULT_SEATS, first, Sighting((gpu(0), new), {}))
    assert [(one.uuid, one.index) for one in after.gpus][1:] == [("GPU-1", 1), ("GPU-5", 2)]
    assert after.groups[:3] == first.groups
    assert after.groups[3].gpus == ("GPU-5",)


def test_before_the_agent_is_heard_a_stranger_beside_a_lost_gpu_waits():
    first = first_inventory(DEFAULT_SEATS, seen(0, 1))
    after = next_inventory(DEFAULT_SEATS, first, seen(0, 5))
    assert [one.uuid for one in after.gpus] == ["GPU-0", "GPU-1"]


def test_configured_groups_are_never_added_to():
    config = parse_seats_config(
        "profiles: [{name: a, resource: kyb.ai/gpu-1x-seat, groupSize: 1, seatsPerGroup: 2}]\n"
        "gpuTopology: {groups: [{name: only, gpus: [0]}]}"
    )
    first = first_inventory(config, seen(0))
    assert next_inventory(config, first, seen(0, 1)).groups == first.groups


def test_the_report_names_everything_by_uuid():
    links = {frozenset((GpuUuid("GPU-0"), GpuUuid("GPU-1"))): Link.PCIE_SWITCH}
    inventory = first_inventory(DEFAULT_SEATS, Sighting((gpu(1), gpu(0)), links, "580.1", "13.0"))
    report = inventory_report(inventory)
    assert [(one.uuid, one.index, one.healthy) for one in report.gpus] == [
        ("GPU-0", 0, True),
        ("GPU-1", 1, True),
    ]
    assert [(one.a, one.b, one.kind) for one in report.links] == [("GPU-0", "GPU-1", "pcie_switch")]
    pair = next(group for group in report.groups if group.name == "G01")
    assert (list(pair.gpus), pair.resource, pair.seats, pair.active_slots) == (
        ["GPU-0", "GPU-1"],
        TWO,
        3,
        1,
    )
    assert (report.driver_version, report.cuda_version) == ("580.1", "13.0")


def test_the_report_says_what_is_wrong_with_a_gpu():
    ill = with_health(first_inventory(DEFAULT_SEATS, seen(0)), {GpuUuid("GPU-0"): "Xid 79"})
    (told,) = inventory_report(ill).gpus
    assert (told.healthy, told.trouble) == (False, "Xid 79")


PROFILE = "{{name: p{0}, resource: kyb.ai/gpu-{0}x-seat, groupSize: {0}, seatsPerGroup: {1}}}"


def config(*profiles, groups="", strategy="cdi"):
    listed = ", ".join(PROFILE.format(size, seats) for size, seats in profiles)
    chosen = f"gpuTopology: {{groups: [{groups}]}}\n" if groups else ""
    return parse_seats_config(f"profiles: [{listed}]\n{chosen}deviceStrategy: {strategy}\n")


def chosen(*groups):
    return ", ".join(f"{{name: {name}, gpus: {list(gpus)}}}" for name, *gpus in groups)


def names(inventory):
    return [group.name for group in inventory.groups]


def test_new_profiles_form_new_groups():
    before = first_inventory(config((1, 2)), seen(0, 1, 2))
    after = reformed(config((1, 3), (3, 2), groups=chosen(("all", 0, 1, 2))), before, frozenset())
    assert names(after) == ["G0", "G1", "G2", "all"]
    assert {group.seats for group in after.groups[:3]} == {3}


@pytest.mark.parametrize(
    ("groups", "field", "word"),
    [
        ([("B", 0, 1), ("C", 2, 3)], "gpuTopology.groups[0].name", "can't be renamed to B"),
        ([("A", 0, 2), ("C", 1, 3)], "gpuTopology.groups[0].gpus", "can't get other GPUs"),
        ([("C", 2, 3)], "gpuTopology.groups", "can't go"),
    ],
)
def test_a_held_group_keeps_its_name_and_gpus(groups, field, word):
    before = first_inventory(
        config((2, 2), groups=chosen(("A", 0, 1), ("C", 2, 3))), seen(0, 1, 2, 3)
    )
    wanted = config((2, 2), groups=chosen(*groups))
    with pytest.raises(ConfigError, match=word) as caught:
        reformed(wanted, before, frozenset({"A"}))
    assert caught.value.field == field
    assert "keep {name: A, gpus: [0, 1]}" in str(caught.value)
    assert reformed(wanted, before, frozenset()).groups != before.groups


def test_every_held_group_that_would_change_is_named():
    before = first_inventory(
        config((2, 2), groups=chosen(("A", 0, 1), ("C", 2, 3))), seen(0, 1, 2, 3)
    )
    wanted = config((2, 2), groups=chosen(("X", 0, 1), ("Y", 2, 3)))
    with pytest.raises(ConfigError) as caught:
        reformed(wanted, before, frozenset({"A", "C"}))
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "gpuTopology.groups[0].name",
        "gpuTopology.groups[1].name",
    ]


def test_a_profile_with_held_groups_stays():
    before = first_inventory(config((1, 2), (2, 2)), seen(0, 1))
    with pytest.raises(ConfigError, match="can't go while G01 is held") as caught:
        reformed(config((1, 2)), before, frozenset({"G01"}))
    assert caught.value.field == "profiles"


def test_of_a_held_group_the_seats_may_change():
    before = first_inventory(config((2, 2)), seen(0, 1))
    (group,) = reformed(config((2, 5)), before, frozenset({"G01"})).groups
    assert group.seats == 5


def test_a_group_that_a_bound_pod_waits_for_counts_as_held():
    assert Holdings(0, (), ("G01",)).groups() == {"G01"}


def test_a_cut_that_is_held_outlives_better_links():
    before = first_inventory(config((2, 2)), seen(0, 1, 2, 3))
    better = {frozenset((GpuUuid("GPU-0"), GpuUuid("GPU-2"))): Link.NVLINK}
    changed = replace(before, links=better)
    assert names(reformed(config((2, 3)), changed, frozenset({"G01"}))) == ["G01", "G23"]
    assert names(reformed(config((2, 3)), changed, frozenset())) == ["G02", "G13"]


def test_the_strategy_stays_while_something_is_held():
    before = first_inventory(config((1, 2)), seen(0))
    nodes = config((1, 2), strategy="nodes")
    with pytest.raises(ConfigError) as caught:
        reformed(nodes, before, frozenset({"G0"}))
    assert caught.value.field == "deviceStrategy"
    assert reformed(nodes, before, frozenset()).strategy == "nodes"


def test_without_overprovision_there_are_as_many_seats_as_active_slots():
    text = (
        "profiles: [{name: a, resource: kyb.ai/gpu-1x-seat, groupSize: 1, seatsPerGroup: 4,"
        " activeSlots: 2, allowOverprovision: false}]"
    )
    assert [g.seats for g in first_inventory(parse_seats_config(text), seen(0)).groups] == [2]


def test_a_group_may_have_seats_of_its_own():
    text = (
        "profiles: [{name: a, resource: kyb.ai/gpu-1x-seat, groupSize: 1, seatsPerGroup: 4}]\n"
        "gpuTopology: {groups: [{name: A, gpus: [0], seatsPerGroup: 8, activeSlots: 2},"
        " {name: B, gpus: [1]}]}"
    )
    groups = first_inventory(parse_seats_config(text), seen(0, 1)).groups
    assert [(one.seats, one.active_slots) for one in groups] == [(8, 2), (4, 1)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 8, 16])
def test_groups_of_any_size(size):
    groups = first_inventory(config((size, 2)), seen(*range(16))).groups
    assert {len(group.gpus) for group in groups} == {size}
    assert len(groups) == 16 // size
