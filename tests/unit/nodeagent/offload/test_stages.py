"""A dump that fails behind each of its stages, or before the first, leaves nothing: each is undone
by its own inverse, once or twice, and whether it was begun or not."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.types import SeatState
from nodeagent.offload.dumps import _Dump
from tests.unit.nodeagent.offloading import ACTIVE, PARKED, TIERS, reasons, two

STAGES = 5


def left(r, uid):
    """What a dump may leave, besides its folder."""
    seat, machine = r.node.seats[uid], r.machine
    thawed = [p.pid for p in machine._of(uid) if p.handle and p.handle not in machine.frozen]
    return {**machine.gates}, {**machine.dumps}, seat.saved.artifact, seat.saved.copies, thawed


async def first(r, uid, stages):
    """The first so many stages of a dump."""
    seat, dumps = r.node.seats[uid], r.loop.offload.dumps
    await dumps.dumping(seat, "a test")
    dump = _Dump(seat, uid)
    await dumps._do(dump, dumps._stages[:stages])
    return seat, dumps, dump


async def test_there_are_so_many_stages(rig):
    assert len(rig(tiers=TIERS).loop.offload.dumps._stages) == STAGES


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("stages", range(STAGES + 1))
async def test_what_was_done_is_undone(rig, proxy, stages, times):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    before = left(r, cold)
    seat, dumps, dump = await first(r, cold, stages)
    assert (left(r, cold) == before) is (stages == 0)
    for _ in range(times):
        assert await dumps._undo(seat)
    assert left(r, cold) == before
    assert not r.loop.custody.unnoted
    await dumps.keep(seat, OSError("a test"))
    await asyncio.sleep(1)
    assert r.state(cold) is PARKED
    assert dump.artifact not in r.machine.vault
    assert "/dumps/uid-cold" not in r.machine.folders
    proxy(r.loop).request(cold)
    await r.until(cold, ACTIVE)
    r.check()


async def test_of_a_container_that_has_ended_nothing_stays_in_ram_nor_on_nvme(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    seat, dumps, dump = await first(r, cold, STAGES)
    r.machine.end_container(cold)
    await dumps.keep(seat, OSError("a test"))
    await r.until(cold, SeatState.WAITING)
    await asyncio.sleep(1)
    assert dump.artifact not in r.machine.vault
    assert "KeptInRam" not in reasons(r)
    r.check()
