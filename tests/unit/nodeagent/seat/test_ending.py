"""A container that was asked to end, and an agent that is restarted meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.types import SeatState
from tests.kit.clock import run_virtual
from tests.kit.machine import Machine


def machine():
    return Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30})


async def asked_to_end(rig, world, state):
    """Two seats on one GPU; the one that is in this state is asked to end. Its UID, the time."""
    r = rig(world, min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    first, second = await r.seat("a"), await r.seat("b")
    await r.until(second, SeatState.ACTIVE)
    uid = second if state is SeatState.ACTIVE else first
    assert r.state(uid) is state
    r.loop.doors.on_term(uid, 15)
    return uid, r.clock.time()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_seat_that_is_ending_gets_no_requests_after_a_restart(rig, proxy):
    world = machine()
    uid, now = run_virtual(asked_to_end(rig, world, SeatState.ACTIVE))

    async def second():
        r = rig(world)
        await r.recover()
        p = proxy(r.loop)
        p.request(uid)
        await asyncio.sleep(3)
        assert r.node.seats[uid].ending.asked
        assert uid not in p.leases
        world.end_container(uid)
        await r.until(uid, SeatState.WAITING)
        world.restart_container(uid)
        await r.until(uid, SeatState.ACTIVE)
        await asyncio.sleep(1)
        assert p.answered[uid] == 1
        r.check()

    run_virtual(second(), start=now)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_parked_seat_that_is_ending_is_thawed_and_ended_after_a_restart(rig, proxy):
    world = machine()
    uid, now = run_virtual(asked_to_end(rig, world, SeatState.PARKED))

    async def second():
        r = rig(world)
        await r.recover()
        await r.until(uid, SeatState.WAITING, 5.0)
        assert not world.frozen
        world.restart_container(uid)
        await r.until(uid, SeatState.ACTIVE)
        r.check()

    run_virtual(second(), start=now)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_seat_that_ignores_its_term_serves_again_also_over_a_restart(rig, proxy):
    world = machine()
    uid, now = run_virtual(asked_to_end(rig, world, SeatState.ACTIVE))

    async def second():
        r = rig(world)
        await r.recover()
        p = proxy(r.loop)
        p.request(uid)
        await asyncio.sleep(r.node.seats[uid].identity.grace + 10)
        assert not r.node.seats[uid].ending.asked
        assert p.answered[uid] == 1
        assert "TermIgnored" in [reason for reason, _ in r.seen.events]
        return r.clock.time()

    now = run_virtual(second(), start=now)

    async def third():
        r = rig(world)
        await r.recover()
        assert not r.node.seats[uid].ending.asked

    run_virtual(third(), start=now)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_seat_that_ended_is_not_taken_for_ending_after_a_restart(rig):
    world = machine()

    async def first():
        r = rig(world)
        r.begin()
        await r.seat("a")
        uid = await r.seat("b")
        r.loop.doors.on_term(uid, 15)
        world.end_container(uid)
        await asyncio.sleep(1)
        assert r.state(uid) is SeatState.WAITING
        return uid, r.clock.time()

    uid, now = run_virtual(first())

    async def second():
        r = rig(world)
        await r.recover()
        assert not r.node.seats[uid].ending.asked

    run_virtual(second(), start=now)
