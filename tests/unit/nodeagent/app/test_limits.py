"""What the agent tells its decision of seats whose pods say when an answer is in time."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.core.swap.swapview import Expected
from kybernate.local.specs import Declared
from kybernate.types import SeatState
from nodeagent.seat.record import from_record

ACTIVE, PARKED = SeatState.ACTIVE, SeatState.PARKED
GIB = 1 << 30


async def two(r, **more):
    """The second is active."""
    found = [await r.seat(name, vram=40 * GIB, **more) for name in "ab"]
    await r.until(found[1], ACTIVE)
    return found


def shown(r, uid):
    (view,) = (one for one in r.node.swap_view().seats if one.uid == uid)
    return view


def wants_within(r, uid, seconds):
    r.node.seats[uid].wishes.ready_within = seconds
    r.loop.kick()


async def test_without_a_limit_nothing_is_told(rig):
    r = rig()
    r.begin()
    a, b = await two(r)
    r.node.activity[a] = {"calls": [36.0] * 24}
    for uid in (a, b):
        view = shown(r, uid)
        assert (view.within, view.wakes_in, view.parks_in, view.calls) == (None, 0.0, 0.0, 0.0)


async def test_a_limit_is_told_with_what_swaps_are_expected_to_take(rig):
    r = rig()
    r.begin()
    a, b = await two(r)
    r.node.activity[b] = {"calls": [36.0] * 24, "recentCalls": 72.0}
    wants_within(r, a, 10.0)
    waits, there = shown(r, a), shown(r, b)
    assert (waits.within, there.within) == (10.0, None)
    assert (waits.calls, there.calls) == (0.0, 72.0 / 3600)
    # 40 GiB at 6 GB/s: nobody has seen that seat leave or enter yet.
    assert there.wakes_in == there.parks_in == pytest.approx(40 * GIB / 6e9 + 0.05)
    assert waits.parks_in == r.node.seats[a].history.last_park_ms / 1000 > 0


async def test_a_seat_s_own_swaps_tell_more_than_the_table(rig):
    r = rig()
    r.begin()
    a, _ = await two(r)
    wants_within(r, a, 10.0)
    before = shown(r, a).wakes_in
    r.loop.operators.request_wake(a, "an operator wakes it")
    await r.until(a, ACTIVE)
    history = r.node.seats[a].history
    assert shown(r, a).wakes_in == history.last_wake_ms / 1000 != before
    again = from_record(r.node.seats[a].record())
    assert again.history.last_park_ms == history.last_park_ms > 0


async def test_a_state_below_ram_is_expected_to_take_as_long_as_its_tier(rig):
    r = rig()
    r.begin()
    a, _ = await two(r)
    seat = r.node.seats[a]
    wants_within(r, a, 100.0)
    seat.history.woke(0.5)
    assert shown(r, a).wakes_in == 0.5
    seat.state, seat.saved.size = SeatState.PARKED_NVME, 48 * GIB
    assert shown(r, a).wakes_in == pytest.approx(48 * GIB / 1.2e9 + 0.2)
    seat.state = PARKED


async def test_who_can_wait_interrupts_no_request(rig, proxy):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    a, b = await two(r)
    p = proxy(r.loop, service=4.0)
    p.request(b)
    await asyncio.sleep(0.5)
    wants_within(r, a, 30.0)
    p.request(a)
    await asyncio.sleep(3.0)
    assert r.state(b) is ACTIVE
    await r.until(a, ACTIVE, 5.0)
    await asyncio.sleep(5.0)
    assert p.answered == {a: 1, b: 1}
    r.check()


async def test_views_stay_the_same_objects(rig):
    r = rig()
    r.begin()
    a, _ = await two(r)
    wants_within(r, a, 10.0)
    one, again = shown(r, a), shown(r, a)
    assert one is again
    assert r.node.seats[a].view(drained=False).wakes_in == Expected().wakes_in == 0.0


async def test_what_a_pod_or_its_policy_says_of_residency_replaces_the_setting(rig, proxy):
    r = rig(min_residency_s=0.1, idle_after_s=0.1, pod_residency_s=20.0)
    r.begin()
    a, b = await two(r)
    p = proxy(r.loop, service=0.05)
    for said, stays in ((10.0, 10.0), (900.0, 20.0)):
        seat = r.node.seats[b]
        assert r.loop.declared(seat, Declared(min_residency=said)) is None
        assert from_record(seat.record()).wishes.min_residency == said
        p.request(b)
        await r.until(b, ACTIVE, 5.0)
        since = r.node.seats[b].history.active_since
        p.request(a)
        while r.node.world.now() < since + stays - 0.2:
            p.request(b)
            await asyncio.sleep(0.04)
            assert r.state(b) is ACTIVE
        await r.until(a, ACTIVE, 5.0)
        await asyncio.sleep(2.0)
    r.check()
