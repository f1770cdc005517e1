"""What the kubelet is answered: lists, withheld seats, allocation, preference."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.inventory import Held, Holdings, Sighting, first_inventory, with_health
from deviceplugin.offer import (
    allocate,
    device_list,
    offer,
    prefer,
    still_awaited,
    withheld,
)
from kybernate.core.ledger.ledger import Claim, NodeSeats, NodeView
from kybernate.core.placement import POLICIES, Demand, choose_group
from kybernate.gen import deviceplugin_pb2
from kybernate.settings.plugin import DEFAULT_SEATS, parse_seats_config
from kybernate.types import Gpu, GpuUuid, GroupName, NodeName, PodRef, PodUid

ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"
GIB = 1 << 30


def gpu(at, minor=-1):
    return Gpu(GpuUuid(f"GPU-{at}"), at, "NVIDIA H100", 80 * GIB, numa=0, minor=minor)


def seen(*at):
    return Sighting(tuple(map(gpu, at)), {}, "580.1", "13.0")


def node(count=2, budget=None, held=(), vram=None, ill=()):
    """A node; `held` are (device ID, group)."""
    inventory = first_inventory(DEFAULT_SEATS, seen(*range(count)))
    seats = tuple(Held(seat, GroupName(group), vram) for seat, group in held)
    holdings = None if budget is None else Holdings(budget, seats)
    inventory = with_health(inventory, {GpuUuid(f"GPU-{at}"): "it is lost" for at in ill})
    return replace(inventory, holdings=holdings)


def healthy(listed):
    return [seat for seat, health in listed.items() if health == "Healthy"]


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
    first, second = allocate(request, node()).container_responses
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


def test_all_seats_of_an_ill_gpu_are_unhealthy_and_no_other():
    listed = offer(node(ill=(1,)), ONE)
    assert healthy(listed) == [f"G0-seat-{k}" for k in range(1, 5)]
    assert len(listed) == 8
    assert healthy(offer(node(ill=(1,)), TWO)) == []


def test_free_seats_beyond_what_the_host_can_park_are_withdrawn():
    # Two seats fit the GPUs. A third one needs its own place in memory, and one to swap through.
    for budget, seats in ((0, 2), (159 * GIB, 2), (160 * GIB, 3), (240 * GIB, 4), (1 << 50, 8)):
        listed = offer(node(budget=budget), ONE)
        assert len(healthy(listed)) == len(listed) == seats, budget
        assert withheld(node(budget=budget), ONE) == 8 - seats


def test_what_is_left_is_spread_over_the_groups():
    assert list(offer(node(budget=0), ONE)) == ["G0-seat-1", "G1-seat-1"]


def test_declared_memory_makes_room():
    held = [(f"G0-seat-{k}", "G0") for k in range(1, 4)]
    whole = node(budget=160 * GIB, held=held)
    small = node(budget=160 * GIB, held=held, vram=10 * GIB)
    assert len(offer(whole, ONE)) == 3
    assert len(offer(small, ONE)) == 5


def test_ids_in_use_stay_whatever_the_host_can_park():
    held = [("G0-seat-3", "G0"), ("G0-seat-4", "G0"), ("G1-seat-2", "G1")]
    assert set(offer(node(budget=0, held=held), ONE)) == {seat for seat, _ in held}
    listed = offer(node(budget=0, held=held[:2]), ONE, on_the_way=["G1-seat-4"])
    assert "G1-seat-4" in listed


def test_a_pod_that_is_bound_finds_an_id_whatever_it_needs():
    held = [("G0-seat-1", "G0"), ("G1-seat-1", "G1")]
    inventory = node(budget=0, held=held)
    assert len(offer(inventory, ONE)) == 2
    bound = replace(inventory, holdings=replace(inventory.holdings, awaited=("G1",)))
    assert set(offer(bound, ONE)) == {"G0-seat-1", "G1-seat-1", "G1-seat-2"}


PODS = st.lists(
    st.tuples(st.sampled_from([ONE, TWO]), st.sampled_from([None, 10 * GIB, 40 * GIB])), max_size=12
)


@given(PODS, st.integers(0, 12), st.integers(0, 600))
def test_every_pod_that_the_extender_places_finds_an_id(pods, seen_by_agent, budget):
    """Placed one after the other; the agent knows the first ones, and awaits the others."""
    empty = node(4, budget * GIB)
    place = NodeSeats(NodeName("n1"), empty.gpus, {}, empty.groups, budget * GIB)
    claims = ()
    for number, (resource, vram) in enumerate(pods):
        view = NodeView(place, claims)
        group = choose_group(view, Demand(resource, vram), POLICIES["best-fit"])
        if group is not None:
            ref = PodRef("d", f"p{number}", PodUid(f"u{number}"))
            claims += (Claim(ref, view.seats.name, group.name, resource, vram),)
    known, awaited = claims[:seen_by_agent], claims[seen_by_agent:]
    held, count = [], Counter()
    for claim in known:
        count[claim.group] += 1
        held.append(Held(f"{claim.group}-seat-{count[claim.group]}", claim.group, claim.vram))
    told = Holdings(budget * GIB, tuple(held), tuple(str(claim.group) for claim in awaited))
    inventory = replace(empty, holdings=told)
    for resource in (ONE, TWO):
        free = set(healthy(offer(inventory, resource))) - {one.device_id for one in held}
        assert len(free) >= sum(claim.resource == resource for claim in awaited)


def test_an_id_in_use_is_as_well_as_the_group_that_its_pod_has():
    inventory = node(budget=1 << 50, held=[("G0-seat-1", "G1")], ill=(1,))
    listed = offer(inventory, ONE)
    assert listed["G0-seat-1"] == "Unhealthy"
    # G0 has all its four seats, though one of its IDs stands for a seat of G1.
    assert len(healthy(listed)) == 4
    assert len(listed) == 8


def test_seats_of_another_resource_count_in_the_hosts_memory_too():
    inventory = node(budget=0, held=[("G01-seat-1", "G01")])
    assert list(offer(inventory, TWO)) == ["G01-seat-1"]
    assert offer(inventory, ONE) == {}


def test_held_ids_beyond_a_smaller_profile_stay():
    fewer = parse_seats_config(
        f"profiles: [{{name: a, resource: {ONE}, groupSize: 1, seatsPerGroup: 1}}]"
    )
    inventory = replace(
        first_inventory(fewer, seen(0)),
        holdings=Holdings(1 << 50, (Held("G0-seat-4", GroupName("G0")),)),
    )
    assert offer(inventory, ONE) == {"G0-seat-4": "Healthy"}


HOLDINGS = st.lists(
    st.tuples(
        st.builds("G{}-seat-{}".format, st.integers(0, 3), st.integers(1, 6)),
        st.sampled_from(["G0", "G1", "G2", "G3"]),
    ),
    unique_by=lambda one: one[0],
    max_size=16,
)


@given(HOLDINGS, st.integers(0, 2000), st.sets(st.integers(0, 3)))
def test_the_list_tells_the_truth(held, budget, ill):
    inventory = node(4, budget * GIB, held, ill=ill)
    listed = offer(inventory, ONE)
    taken = {seat for seat, _ in held}
    assert taken <= set(listed)
    free = [seat for seat in healthy(listed) if seat not in taken]
    left = sum(max(0, 4 - sum(g == f"G{at}" for _, g in held)) for at in range(4) if at not in ill)
    assert len(free) <= left
    more = offer(replace(inventory, holdings=Holdings(1 << 60, inventory.holdings.seats)), ONE)
    assert set(listed) <= set(more) or len(listed) <= len(more)


def test_without_cdi_the_id_says_all():
    config = DEFAULT_SEATS.model_copy(update={"device_strategy": "nodes"})
    gpus = (gpu(0, minor=3), gpu(1, minor=5))
    inventory = first_inventory(config, Sighting(gpus, {}))
    request = deviceplugin_pb2.AllocateRequest()
    request.container_requests.add(devices_ids=["G01-seat-2"])
    request.container_requests.add(devices_ids=["G1-seat-1"])
    pair, single = allocate(request, inventory, "/run/kyb").container_responses
    control = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert [one.host_path for one in pair.devices] == ["/dev/nvidia3", "/dev/nvidia5", *control]
    assert [one.host_path for one in single.devices] == ["/dev/nvidia5", *control]
    assert all(one.host_path == one.container_path for one in pair.devices)
    assert {one.permissions for one in pair.devices} == {"rw"}
    assert dict(pair.envs) == {
        "KYB_GPU_GROUP": "G01",
        "KYB_GPU_SEAT": "G01-seat-2",
        "KYB_GPU_INDICES": "0,1",
        "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1",
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
    }
    assert {one.container_path: (one.host_path, one.read_only) for one in pair.mounts} == {
        "/run/kyb": ("/run/kyb/ids/G01-seat-2/seat", True),
        "/kyb/kyb-init": ("/run/kyb/ids/G01-seat-2/kyb-init", True),
    }
    assert not pair.cdi_devices
