"""Parked seats that lose a process, and pods that are deleted in whatever state their seat is."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.testing.clock import run_virtual
from kybernate.types import SeatState

from .watched import Watched

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
def test_a_process_killed_while_parked_ends_its_seat(rig, starved):
    async def main():
        r, g, a, b = await two_seats(rig)
        async with g.running():
            await asyncio.sleep(0.1)
            g.deaths.kill(app_of(r, a).pid, starved=starved)
            assert r.node.seats[a].handle not in r.machine.frozen
            await r.until(a, WAITING, 3)
            assert r.machine._of(a) == []
            (sentence,) = g.events("OutOfMemory" if starved else "KilledWhileParked")
            assert ("OOM" in sentence) is starved
            assert r.state(b) is ACTIVE
            r.machine.restart_container(a)
            await r.until(a, ACTIVE, 10)
            r.check()

    run_virtual(main())


def test_a_seat_that_is_awake_is_not_watched(rig, proxy):
    async def main():
        r, g, a, b = await two_seats(rig)
        async with g.running():
            proxy(r.loop).request(a)
            await r.until(a, ACTIVE)
            await asyncio.sleep(0.5)
            assert set(g.deaths.watched) == {b}
            r.loop.pod_gone(b)
            await asyncio.sleep(3)
            assert g.deaths.watched == {}

    run_virtual(main())


def test_one_that_died_while_the_agent_was_away_is_noticed(rig):
    from kybernate.testing.machine import Machine  # noqa: PLC0415

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
