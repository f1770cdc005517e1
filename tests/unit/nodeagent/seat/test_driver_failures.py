"""Every failure of the driver's calls, as the agent sees it, and its end."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.types import SeatState

ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING


def reasons(r):
    return [reason for reason, _ in r.seen.events]


@pytest.mark.parametrize(
    ("fault", "event", "end"),
    [
        ("lock-timeout", "ParkReverted", PARKED),
        ("checkpoint-refused", "ParkReverted", PARKED),
        ("lock-sticks", "SeatFailed", WAITING),
        ("lock-kills", "ParkReverted", PARKED),
        ("checkpoint-fails", "SeatFailed", WAITING),
        ("park-hangs", "SeatFailed", WAITING),
        ("helper-dies", "ParkReverted", PARKED),
        ("helper-dies-midway", "ParkReverted", PARKED),
    ],
)
async def test_every_failure_of_a_park_ends_as_it_should(rig, proxy, fault, event, end):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    r.machine.apps[b].ranks = 2
    await r.until(b, ACTIVE)
    await asyncio.sleep(0.1)
    r.machine.faults.add(fault)
    p = proxy(r.loop)
    p.request(a)
    await r.until(a, ACTIVE, 200.0)
    assert r.state(b) is end
    assert event in reasons(r)
    assert r.machine.faults == set()
    assert not r.machine.locked()
    assert r.machine.held("GPU-0").keys() == {a}
    r.check()


@pytest.mark.parametrize(
    ("fault", "end"),
    [("restore-fails", WAITING), ("wake-hangs", WAITING), ("helper-dies", ACTIVE)],
)
async def test_every_failure_of_a_wake_ends_as_it_should(rig, proxy, fault, end):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    p = proxy(r.loop)
    r.loop.operators.send_away(b, "a test")
    await r.until(b, PARKED)
    r.machine.faults.add(fault)
    p.request(a)
    await r.until(a, end, 200.0)
    assert not r.machine.locked()
    assert (r.machine.held("GPU-0").keys() == {a}) is (end is ACTIVE)
    p.request(b)
    await r.until(b, ACTIVE, 10.0)
    r.check()
