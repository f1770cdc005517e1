"""Pieces of work on a seat."""

from __future__ import annotations

import asyncio
import inspect

from kybernate.types import SeatState


async def test_work_that_is_dropped_before_its_first_step_is_not_left_unawaited(rig):
    async def never():
        raise AssertionError("it was dropped")

    r = rig()
    seat = r.node.seats[await r.seat("a")]
    what = never()
    r.loop.life.work(seat, what)
    seat.tasks.work.cancel()
    await asyncio.sleep(0.1)
    assert inspect.getcoroutinestate(what) == inspect.CORO_CLOSED


async def test_a_wake_thaws_the_tree_once(rig, proxy, monkeypatch):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, SeatState.ACTIVE)
    thawed, thaw = [], r.machine.thaw
    monkeypatch.setattr(r.machine, "thaw", lambda handle: (thawed.append(handle), thaw(handle)))
    proxy(r.loop).request(a)
    await r.until(a, SeatState.ACTIVE)
    assert thawed == [r.node.seats[a].tree.handle]
    r.check()
