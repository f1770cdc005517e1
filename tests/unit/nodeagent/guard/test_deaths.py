"""Parked seats that lose a process, and pods that are deleted in whatever state their seat is."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.types import SeatState
from tests.kit.clock import run_virtual
from tests.unit.nodeagent.watched import Watched

ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING


async def two_seats(rig, machine=None, **settings):
    """a parked, b active on the same GPU."""
    r = rig(machine, **settings)
    g = Watched(r)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    return r, g, a, b


def app_of(r, uid):
    return next(p for p in r.machine._of(uid) if p.memory)


@pytest.mark.parametrize("starved", [True, False])
async def test_a_process_killed_while_parked_ends_its_seat(rig, starved):
    r, g, a, b = await two_seats(rig)
    async with g.running():
        await asyncio.sleep(0.1)
        g.deaths.kill(app_of(r, a).pid, starved=starved)
        assert r.node.seats[a].tree.handle not in r.machine.frozen
        await r.until(a, WAITING, 3)
        assert r.machine._of(a) == []
        (sentence,) = g.events("OutOfMemory" if starved else "KilledWhileParked")
        assert ("OOM" in sentence) is starved
        assert r.state(b) is ACTIVE
        r.machine.restart_container(a)
        await r.until(a, ACTIVE, 10)
        r.check()


async def test_a_seat_that_is_awake_is_not_watched(rig, proxy):
    r, g, a, b = await two_seats(rig)
    async with g.running():
        proxy(r.loop).request(a)
        await r.until(a, ACTIVE)
        await asyncio.sleep(0.5)
        assert set(g.deaths.watched) == {b}
        r.loop.pod_gone(b)
        await asyncio.sleep(3)
        assert g.deaths.watched == {}


def test_one_that_died_while_the_agent_was_away_is_noticed(rig):
    from tests.kit.machine import Machine  # noqa: PLC0415

    async def before():
        r, _, a, _ = await two_seats(rig)
        app = app_of(r, a)
        app.alive, app.memory = False, {}
        return r.machine, a

    machine, a = run_virtual(before())
    assert isinstance(machine, Machine)

    async def after():
        r = rig(machine)
        g = Watched(r)
        await r.recover()
        r.begin()
        async with g.running():
            await r.until(a, WAITING, 3)
            assert g.events("KilledWhileParked")

    run_virtual(after(), 2000.0)


async def caught(r, uid, state, limit=30.0):
    """The moment at which it is in this state."""
    end = r.clock.time() + limit
    while r.state(uid) is not state:
        assert r.clock.time() < end, (uid, r.state(uid))
        await asyncio.sleep(0.0005)


async def starting(r, p):
    await r.seat("a", delay=100.0)
    await caught(r, "uid-a", SeatState.STARTING)


async def active(r, p):
    await r.seat("a")
    await r.until("uid-a", ACTIVE)


async def draining(r, p):
    await active(r, p)
    p.service = 5.0
    p.request("uid-a")
    await asyncio.sleep(0.01)
    r.loop.operators.send_away("uid-a", "away")
    await caught(r, "uid-a", SeatState.DRAINING)


async def parking(r, p):
    await active(r, p)
    r.loop.operators.send_away("uid-a", "away")
    await caught(r, "uid-a", SeatState.PARKING)


async def parked(r, p):
    await parking(r, p)
    await caught(r, "uid-a", PARKED)


async def waking(r, p):
    await parked(r, p)
    r.loop.operators.request_wake("uid-a", "back")
    await caught(r, "uid-a", SeatState.WAKING)


async def waking_in_vain(r, p):
    await parked(r, p)
    r.machine.faults.add("disk-full")
    r.loop.operators.request_wake("uid-a", "back")
    await caught(r, "uid-a", SeatState.WAKING)


async def failed(r, p):
    await active(r, p)
    r.loop.life.fail(r.node.seats["uid-a"], "a test says so")


@pytest.mark.parametrize(
    "brought",
    [starting, active, draining, parking, parked, waking, waking_in_vain, failed],
    ids=lambda brought: brought.__name__,
)
async def test_sigterm_in_every_state_ends_the_container_in_time(rig, proxy, brought):
    r = rig(min_residency_s=0.0)
    Watched(r)
    r.begin()
    await brought(r, proxy(r.loop))
    uid = "uid-a"
    r.loop.doors.on_term(uid, 15)
    asked = r.clock.time()
    # What kyb-init does: it passes the signal on when it is told to, or after 2 s.
    while ("ok", uid) not in r.machine.log and r.clock.time() < asked + 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    r.machine.end_container(uid)
    await r.until(uid, WAITING, 4)
    assert r.machine._of(uid) == []
    assert r.machine.frozen == set()
    r.loop.pod_gone(uid)
    await asyncio.sleep(1)
    assert r.node.seats == {}
    r.check()
