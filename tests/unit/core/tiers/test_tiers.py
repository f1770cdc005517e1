"""What tiers cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.tiers.tiers import (
    NETWORK,
    RESTART,
    SPEEDS,
    Artifact,
    Speed,
    move_seconds,
    switch_seconds,
    wake_seconds,
)
from kybernate.types import Tier

GIB = 1 << 30


def test_several_gpus_are_filled_side_by_side():
    one = wake_seconds(Artifact(Tier.RAM, 60 * GIB), "n1", 1)
    four = wake_seconds(Artifact(Tier.RAM, 60 * GIB), "n1", 4)
    latency = SPEEDS[Tier.RAM].latency
    assert (one - latency) == pytest.approx(4 * (four - latency))


def test_an_artifact_on_another_node_comes_over_the_network_first():
    here, there, anywhere = (
        wake_seconds(Artifact(Tier.RAM, 10 * GIB, node), "n1", 1) for node in ("n1", "n2", None)
    )
    assert here == anywhere
    assert there - here == pytest.approx(10 * GIB / NETWORK)


def test_a_switch_is_a_park_and_a_wake():
    """RAM is as fast both ways."""
    size = 40 * GIB
    assert SPEEDS[Tier.RAM].read == SPEEDS[Tier.RAM].write
    wake = wake_seconds(Artifact(Tier.RAM, size), "n1", 2)
    assert switch_seconds(size, 2) == pytest.approx(2 * wake)


def test_a_seat_below_ram_is_parked_into_ram_and_comes_in_from_its_tier():
    size, state = 40 * GIB, Artifact(Tier.NVME, 50 * GIB)
    out = wake_seconds(Artifact(Tier.RAM, size), "n1", 1)  # RAM is as fast both ways
    takes = out + wake_seconds(state, "n1", 1)
    assert switch_seconds(size, 1, state) == pytest.approx(takes)


SIZES = st.integers(1, 1000 * GIB)


@given(SIZES, SIZES, st.integers(1, 16), st.sampled_from(Tier))
def test_no_tier_is_faster_than_ram_and_more_bytes_take_no_less(size, saved, gpus, tier):
    by_ram = switch_seconds(size, gpus)
    takes = switch_seconds(size, gpus, Artifact(tier, saved))
    assert takes >= by_ram
    assert switch_seconds(size, gpus, Artifact(tier, saved + GIB)) >= takes
    assert switch_seconds(size, gpus, Artifact(Tier.RAM, size)) == pytest.approx(by_ram)


def test_where_no_state_outlives_its_pod_a_move_is_a_new_start():
    ram = {Tier.RAM: SPEEDS[Tier.RAM]}
    assert move_seconds(50 * GIB, ram) == pytest.approx(RESTART.latency + 50 * GIB / RESTART.read)


def test_what_lies_below_ram_outlives_its_pod():
    assert {tier for tier, speed in SPEEDS.items() if speed.outlives_pod} == {
        Tier.NVME,
        Tier.OBJECT,
    }


def test_a_move_goes_by_the_fastest_tier_that_outlives_the_pod_and_beats_a_new_start():
    nvme = SPEEDS[Tier.NVME]
    takes = nvme.latency + 50 * GIB / nvme.write + 50 * GIB / nvme.read
    assert move_seconds(50 * GIB) == pytest.approx(takes)
    assert takes < RESTART.latency + 50 * GIB / RESTART.read


def test_a_new_row_of_the_table_is_enough_to_move_by_it():
    disk = Speed(write=1e9, read=2e9, latency=1.0, outlives_pod=True)
    speeds = {Tier.RAM: disk}
    assert move_seconds(4_000_000_000, speeds) == pytest.approx(1 + 4 + 2)


def test_no_move_is_faster_than_the_network():
    disk = Speed(write=100e9, read=100e9, outlives_pod=True)
    assert move_seconds(50 * GIB, {Tier.NVME: disk}) > 50 * GIB / NETWORK
