"""What a park and a wake in RAM wait for: their record is out of the agent, not yet on the disk."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.ports import ProcessState
from kybernate.types import SeatState

ACTIVE, PARKED = SeatState.ACTIVE, SeatState.PARKED


async def two(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    return r, a, b, proxy(r.loop)


async def test_a_swap_waits_for_no_disk(rig, proxy, monkeypatch):
    r, a, b, p = await two(rig, proxy)
    journal, put = r.node.world.journal, r.node.world.journal.put

    def on_a_disk_that_hangs(key, record, *, synced, late=False):
        written = put(key, record, synced=synced, late=late)
        return asyncio.get_running_loop().create_future() if synced else written

    monkeypatch.setattr(journal, "put", on_a_disk_that_hangs)
    p.request(a)
    await r.until(a, ACTIVE, 1.0)
    assert r.state(b) is PARKED
    r.check()


@pytest.mark.parametrize("state", ["parking", "waking"])
async def test_the_driver_is_not_asked_before_the_record_is_out(rig, proxy, monkeypatch, state):
    r, a, b, p = await two(rig, proxy)
    journal, put, out = r.node.world.journal, r.node.world.journal.put, asyncio.Event()

    async def once_out(written):
        await out.wait()
        await written

    def held_back(key, record, *, synced, late=False):
        written = put(key, record, synced=synced, late=late)
        return asyncio.ensure_future(once_out(written)) if record.get("state") == state else written

    monkeypatch.setattr(journal, "put", held_back)
    p.request(a)
    parks = state == "parking"
    seat = b if parks else a
    await r.until(seat, SeatState(state))
    await asyncio.sleep(1.0)
    before = ProcessState.RUNNING if parks else ProcessState.CHECKPOINTED
    assert cuda(r.machine, seat) == {before}
    out.set()
    await r.until(a, ACTIVE, 1.0)
    r.check()


def cuda(machine, uid):
    """What the driver says of the seat's processes that use its GPU."""
    states = {process.cuda for process in machine.procs.values() if process.uid == uid}
    return states - {ProcessState.NO_CUDA}
