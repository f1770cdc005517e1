"""Seats that are parked below RAM, for tests."""

from __future__ import annotations

import asyncio

from kybernate.types import SeatState, Tier
from tests.kit.clock import run_virtual, until
from tests.kit.machine import Machine

GIB = 1 << 30
MEMORY = {"GPU-0": 80 * GIB, "GPU-1": 80 * GIB}
ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING
NVME, OBJECT = SeatState.PARKED_NVME, SeatState.PARKED_OBJECT
TIERS = {Tier.NVME: 1000 * GIB, Tier.OBJECT: 10000 * GIB}


def reasons(r):
    return [reason for reason, _ in r.seen.events]


async def two(r):
    """A parked seat, and an active one that has its GPU."""
    r.node.park_budget = 1000 * GIB
    r.begin()
    cold, hot = await r.seat("cold"), await r.seat("hot")
    await r.until(hot, ACTIVE)
    assert r.state(cold) is PARKED
    return cold, hot


async def when(condition):
    """Look at every step of the loop."""
    assert await until(condition, 10.0), "it never comes to that"


async def down(r, uid, state=NVME):
    """The seat goes to NVMe, as an operator asks."""
    r.loop.operators.ask_for_tier(uid, Tier.NVME if state is NVME else Tier.OBJECT)
    await r.until(uid, state)


def app_of(r, uid):
    (process,) = (p for p in r.machine.procs.values() if p.uid == uid and p.alive and p.main)
    return process


def quiet():
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)


async def ended(operation, limit=4000.0):
    end = asyncio.get_running_loop().time() + limit
    while not operation.ended:
        assert asyncio.get_running_loop().time() < end, operation
        await asyncio.sleep(0.01)
    return operation


def two_on_one_gpu(rig):
    """A parked and an active seat on GPU-0, and what the agent knew of them."""
    machine = Machine({"GPU-0": 80 * GIB, "GPU-1": 80 * GIB})

    async def first():
        r = rig(machine)
        r.begin()
        parked, active = await r.seat("a"), await r.seat("b")
        await r.until(active, ACTIVE)
        return [r.node.seats[uid].record() for uid in (parked, active)]

    return machine, run_virtual(first())
