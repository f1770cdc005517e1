"""Parks that the host's memory would not bear, on the made-up machine."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.core.seat.budget import HostMemory, MemoryLevel
from kybernate.types import SeatState
from tests.unit.nodeagent.watched import Watched

ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING
GIB = 1 << 30


async def two_seats(rig, **settings):
    """a parked, b active on the same GPU; 30 GiB each."""
    r = rig(min_residency_s=0.0, **settings)
    g = Watched(r)
    r.begin()
    a, b = await r.seat("a", size=30 * GIB), await r.seat("b", size=30 * GIB)
    await r.until(b, ACTIVE)
    return r, g, a, b


def no_room_in_container(r, g, uid):
    init = r.machine.inits[uid]
    g.memory.limits[init] = (MemoryLevel("its container's", 40 * GIB, 20 * GIB),)


def no_room_in_budget(r, g, uid):
    r.node.park_budget = 50 * GIB


def no_room_on_host(r, g, uid):
    g.memory.node = HostMemory(100 * GIB, 30 * GIB + (1 << 29), 0.0)


def stalled(r, g, uid):
    g.memory.node = HostMemory(100 * GIB, 90 * GIB, 35.0)


@pytest.mark.parametrize(
    ("make_short", "choice"),
    [
        (no_room_in_container, "raise that limit by 10.0 GiB"),
        (no_room_in_budget, "raise park_bytes"),
        (no_room_on_host, "end another parked seat"),
        (stalled, "35 %"),
    ],
)
async def test_a_park_that_would_not_fit_is_refused_before_it_begins(
    rig, proxy, make_short, choice
):
    r, g, a, b = await two_seats(rig)
    p = proxy(r.loop)
    async with g.running():
        await asyncio.sleep(2)
        make_short(r, g, b)
        p.request(a)
        await asyncio.sleep(5)
        assert r.state(b) is ACTIVE
        assert b in p.leases
        (sentence,) = g.events("ParkRefused")
        assert choice in sentence
        assert r.node.notices["HostMemory"].ok is False
        assert SeatState.PARKING not in [s for uid, s in r.seen.states[-3:] if uid == b]


@pytest.mark.parametrize("make_short", [no_room_in_container, no_room_on_host, stalled])
async def test_the_wake_comes_when_there_is_room_again(rig, proxy, make_short):
    r, g, a, b = await two_seats(rig)
    p = proxy(r.loop)
    async with g.running():
        await asyncio.sleep(2)
        make_short(r, g, b)
        p.request(a)
        await asyncio.sleep(3)
        assert p.answered == {}
        g.memory.limits, g.memory.node = {}, HostMemory(1 << 42, 1 << 42, 0.0)
        await r.until(a, ACTIVE, 2.5)
        await asyncio.sleep(1.5)
        assert r.state(b) is PARKED
        assert p.answered == {a: 1}
        assert r.node.notices["HostMemory"].ok


async def test_more_room_in_ram_is_looked_at_though_nobody_was_refused(rig):
    _, g, _, _ = await two_seats(rig)
    g.memory.node = HostMemory(1 << 42, 40 * GIB, 0.0)
    await asyncio.sleep(1)
    g.pressure.look()
    kicks = []
    g.pressure._kick = lambda: kicks.append(1)
    await asyncio.sleep(1)
    g.pressure.look()
    assert kicks == []
    g.memory.node = HostMemory(1 << 42, 60 * GIB, 0.0)
    await asyncio.sleep(1)
    g.pressure.look()
    assert kicks == [1]


async def test_nobody_is_bothered_while_nobody_needs_the_gpu(rig):
    r, g, _, b = await two_seats(rig)
    async with g.running():
        no_room_in_container(r, g, b)
        await asyncio.sleep(10)
        assert g.events("ParkRefused") == []
        r.loop.operators.send_away(b, "an operator wants it")
        await asyncio.sleep(3)
        assert len(g.events("ParkRefused")) == 1
        assert r.state(b) is ACTIVE


async def test_of_two_parks_at_once_only_what_fits_together_goes(rig, proxy, groups):
    r = rig(min_residency_s=0.0)
    g = Watched(r)
    r.begin()
    left = await r.seat("left", groups["G0"], 30 * GIB)
    right = await r.seat("right", groups["G1"], 30 * GIB)
    await r.until(left, ACTIVE)
    await r.until(right, ACTIVE)
    async with g.running():
        await asyncio.sleep(2)
        g.memory.node = HostMemory(100 * GIB, 45 * GIB, 0.0)
        r.loop.operators.send_away(left, "away")
        r.loop.operators.send_away(right, "away")
        await asyncio.sleep(0.05)
        g.memory.node = HostMemory(100 * GIB, 15 * GIB, 0.0)
        await asyncio.sleep(5)
        assert sorted([r.state(left), r.state(right)]) == [ACTIVE, PARKED]


@pytest.mark.parametrize(
    ("make_short", "why"),
    [
        (no_room_in_container, "memory limit"),
        (no_room_in_budget, "park_bytes"),
        (no_room_on_host, "the node can give"),
    ],
)
async def test_under_restart_the_seat_starts_anew_and_only_when_it_is_called_for(
    rig, proxy, make_short, why
):
    r, g, a, b = await two_seats(rig, memory_short="restart")
    p = proxy(r.loop)
    async with g.running():
        await asyncio.sleep(2)
        make_short(r, g, b)
        p.request(a)
        await r.until(a, ACTIVE, 5)
        assert r.state(b) is WAITING
        assert why in g.events("SeatFailed")[0]
        g.memory.node = HostMemory(100 * GIB, 60 * GIB, 0.0)  # what it had is free
        r.machine.restart_container(b)
        await asyncio.sleep(20)
        assert (r.state(a), r.state(b)) == (ACTIVE, WAITING)
        p.request(b)
        await r.until(b, ACTIVE)
        await asyncio.sleep(1)
        assert p.answered == {a: 1, b: 1}
        assert r.state(a) is PARKED
        r.check()


async def test_under_restart_nobodys_work_ends_because_it_idles(rig):
    r, g, _, b = await two_seats(rig, memory_short="restart")
    r.node.seats[b].wishes.idle = {"vram": 5.0}
    async with g.running():
        no_room_in_container(r, g, b)
        await asyncio.sleep(60)
        assert r.state(b) is ACTIVE
        g.memory.limits.clear()
        await r.until(b, PARKED, 10)


async def test_under_restart_nobodys_work_is_lost_for_anothers_turn(rig, proxy):
    r, g, a, b = await two_seats(rig, memory_short="restart")
    for uid in (a, b):
        r.node.seats[uid].wishes.weight = 1.0
    async with g.running():
        no_room_in_container(r, g, b)
        r.loop.kick()
        await asyncio.sleep(60)
        assert r.state(b) is ACTIVE
        assert g.events("SeatFailed") == []
        # Nor for its own calls, but for one of a seat that waits for requests.
        proxy(r.loop).request(a)
        await asyncio.sleep(10)
        assert r.state(b) is ACTIVE
        r.node.seats[a].wishes.weight = None
        r.loop.kick()
        await r.until(a, ACTIVE, 5)
        assert "memory limit" in g.events("SeatFailed")[0]


async def test_under_restart_a_node_that_is_short_just_now_gives_nothing_up(rig, proxy):
    r, g, a, b = await two_seats(rig, memory_short="restart")
    async with g.running():
        await asyncio.sleep(2)
        stalled(r, g, b)
        proxy(r.loop).request(a)
        await asyncio.sleep(5)
        assert r.state(b) is ACTIVE
        g.memory.node = replace(g.memory.node, stalled=0.0)
        await r.until(a, ACTIVE, 3)
        assert r.state(b) is PARKED
        assert g.events("SeatFailed") == []
        assert r.node.host_available == 90 * GIB


async def test_what_cannot_be_read_refuses_nothing(rig, proxy):
    r, g, a, _ = await two_seats(rig)
    g.memory.fails = True
    async with g.running():
        await asyncio.sleep(2)
        proxy(r.loop).request(a)
        await r.until(a, ACTIVE, 2)


async def test_what_was_seen_on_the_gpu_counts_rather_than_what_was_declared(rig, proxy):
    r = rig(min_residency_s=0.0)
    g = Watched(r)
    r.begin()
    a = await r.seat("a", size=10 * GIB, vram=70 * GIB)
    b = await r.seat("b", size=10 * GIB, vram=70 * GIB)
    await r.until(b, ACTIVE)
    async with g.running():
        await asyncio.sleep(2)
        g.memory.node = replace(g.memory.node, available=20 * GIB)
        proxy(r.loop).request(a)
        await r.until(a, ACTIVE, 2)
