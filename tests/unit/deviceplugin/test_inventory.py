"""Pure answers: inventory over time, device lists, allocation, preference, report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.inventory import (
    Sighting,
    all_lost,
    allocate,
    device_list,
    first_inventory,
    inventory_report,
    next_inventory,
    prefer,
    still_awaited,
)
from kybernate.gen import deviceplugin_pb2
from kybernate.settings.plugin import DEFAULT_SEATS, parse_seats_config
from kybernate.types import Gpu, GpuUuid, Link

ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"


def gpu(at):
    return Gpu(GpuUuid(f"GPU-{at}"), at, "NVIDIA H100", 80 << 30, numa=0)


def seen(*at):
    return Sighting(tuple(map(gpu, at)), {}, "580.1", "13.0")


def health(inventory, resource):
    return {device.ID: device.health for device in device_list(inventory, resource).devices}


def test_seats_of_a_lost_gpu_turn_unhealthy_together_and_recover():
    first = first_inventory(DEFAULT_SEATS, seen(0, 1, 2))
    lost = next_inventory(DEFAULT_SEATS, first, seen(0, 2))
    assert set(health(lost, TWO).values()) == {"Unhealthy"}
    assert {one for one, state in health(lost, ONE).items() if state == "Unhealthy"} == {
        f"G1-seat-{k}" for k in range(1, 5)
    }
    assert next_inventory(DEFAULT_SEATS, lost, seen(0, 1, 2)) == first


def test_a_gpu_keeps_index_and_groups_when_the_driver_counts_anew():
    first = first_inventory(DEFAULT_SEATS, seen(0, 1, 2))
    moved = Sighting((gpu(0), replace(gpu(2), index=1)), {})
    after = next_inventory(DEFAULT_SEATS, first, moved)
    assert [(one.uuid, one.index, one.healthy) for one in after.gpus] == [
        ("GPU-0", 0, True),
        ("GPU-1", 1, False),
        ("GPU-2", 2, True),
    ]
    assert after.groups == first.groups


def test_a_new_gpu_gets_groups_of_its_own():
    first = first_inventory(DEFAULT_SEATS, seen(0, 1))
    after = next_inventory(DEFAULT_SEATS, first, seen(0, 1, 2, 3))
    assert [group.name for group in after.groups] == ["G0", "G1", "G01", "G2", "G3", "G23"]


def test_a_new_gpu_on_a_taken_index_is_counted_on():
    first = first_inventory(DEFAULT_SEATS, seen(0))
    after = next_inventory(DEFAULT_SEATS, first, Sighting((replace(gpu(5), index=0),), {}))
    assert [(one.uuid, one.index, one.healthy) for one in after.gpus] == [
        ("GPU-0", 0, False),
        ("GPU-5", 1, True),
    ]


def test_configured_groups_are_never_added_to():
    config = parse_seats_config(
        "profiles: [{name: a, resource: kyb.ai/gpu-1x-seat, groupSize: 1, seatsPerGroup: 2}]\n"
        "gpuTopology: {groups: [{name: only, gpus: [0]}]}"
    )
    first = first_inventory(config, seen(0))
    assert next_inventory(config, first, seen(0, 1)).groups == first.groups


def test_without_a_driver_everything_is_lost():
    lost = all_lost(first_inventory(DEFAULT_SEATS, seen(0, 1)))
    assert set(health(lost, ONE).values()) == set(health(lost, TWO).values()) == {"Unhealthy"}


def test_device_ids_are_short_and_without_numa():
    inventory = first_inventory(DEFAULT_SEATS, seen(*range(16)))
    for resource in inventory.resources():
        for device in device_list(inventory, resource).devices:
            assert len(device.ID) <= 63
            assert not device.HasField("topology")


def test_allocate_names_one_cdi_device_per_id_and_nothing_else():
    request = deviceplugin_pb2.AllocateRequest()
    request.container_requests.add(devices_ids=["G01-seat-2"])
    request.container_requests.add(devices_ids=["what", "ever"])
    first, second = allocate(request).container_responses
    assert [one.name for one in first.cdi_devices] == ["kyb.ai/seat=G01-seat-2"]
    assert [one.name for one in second.cdi_devices] == ["kyb.ai/seat=what", "kyb.ai/seat=ever"]
    assert not any((first.envs, first.mounts, first.devices, first.annotations))


FREE = ["G1-seat-2", "G0-seat-10", "G0-seat-2", "G2-seat-1", "G1-seat-1"]


@pytest.mark.parametrize(
    ("must", "size", "awaited", "expected"),
    [
        ([], 1, ["G1"], ["G1-seat-1"]),
        ([], 1, ["G9", "G2"], ["G2-seat-1"]),
        ([], 1, [], ["G0-seat-2"]),
        ([], 1, ["G9"], ["G0-seat-2"]),
        (["G2-seat-1"], 1, ["G1"], ["G2-seat-1"]),
        (["G2-seat-1"], 2, ["G1"], ["G2-seat-1", "G1-seat-1"]),
        ([], 3, ["G1", "G1"], ["G1-seat-1", "G1-seat-2", "G0-seat-2"]),
        ([], 9, ["G0"], ["G0-seat-2", "G1-seat-1", "G1-seat-2", "G2-seat-1", "G0-seat-10"]),
        ([], 0, ["G0"], []),
    ],
    ids=[
        "the oldest awaited",
        "its group is full",
        "nobody is awaited",
        "an unknown group",
        "must include",
        "must include, then awaited",
        "several",
        "more than there is",
        "none",
    ],
)
def test_preference(must, size, awaited, expected):
    assert list(prefer(FREE, must, size, awaited)) == expected


IDS = st.builds("G{}-seat-{}".format, st.integers(0, 3), st.integers(1, 4))


@given(
    st.lists(IDS, unique=True),
    st.data(),
    st.lists(st.builds("G{}".format, st.integers(0, 5)), max_size=6),
)
def test_a_preference_is_sound_whatever_the_order(available, data, awaited):
    must = data.draw(
        st.lists(st.sampled_from(available), unique=True) if available else st.just([])
    )
    size = data.draw(st.integers(len(must), max(len(must), len(available))))
    chosen = prefer(available, must, size, awaited)
    assert len(chosen) == len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)
    assert prefer(available[::-1], must, size, awaited) == chosen


def test_ids_on_the_way_are_taken_off_what_is_awaited():
    assert still_awaited(["G0", "G1", "G0"], ["G0-seat-1", "G7-seat-1"]) == ("G1", "G0")


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
