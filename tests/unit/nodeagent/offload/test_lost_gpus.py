"""What is parked below RAM outlives a GPU that falls off the bus: it is not recreated for a GPU of
which nobody can say whether its memory is free."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.types import SeatState
from tests.unit.nodeagent.offloading import ACTIVE, NVME, OBJECT, TIERS, down, two, when


def lose(r):
    """GPU-0, the only one of both seats; the inventory of before."""
    whole = r.node.inventory
    r.machine.lost.add("GPU-0")
    gpus = tuple(replace(gpu, healthy=gpu.uuid != "GPU-0") for gpu in whole.gpus)
    r.loop.inventory_reported(replace(whole, gpus=gpus))
    return whole


async def serves_once_it_is_back(r, p, cold, whole):
    """It continues: the command of its container isn't started again."""
    r.machine.lost.clear()
    r.loop.inventory_reported(whole)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    assert [entry[2] for entry in r.machine.log if entry[:2] == ("go", cold)] == ["1"]
    r.check()


@pytest.mark.parametrize("state", [NVME, OBJECT])
async def test_a_seat_whose_gpu_is_lost_stays_where_it_is_though_it_is_requested(rig, proxy, state):
    r = rig(tiers=TIERS, tier_residency_s=0.0)
    cold, _ = await two(r)
    await down(r, cold, state)
    whole, p = lose(r), proxy(r.loop)
    p.request(cold)
    await asyncio.sleep(60)
    assert (r.state(cold), p.answered) == (state, {})
    await serves_once_it_is_back(r, p, cold, whole)


async def test_a_gpu_that_is_lost_while_a_seat_is_restored_costs_no_state(rig, proxy):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    p = proxy(r.loop)
    p.request(cold)
    await when(lambda: r.state(cold) is SeatState.RESTORING)
    whole = lose(r)
    await r.until(cold, NVME, 60)
    await serves_once_it_is_back(r, p, cold, whole)
