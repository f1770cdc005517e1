"""Pieces of work on a seat."""

from __future__ import annotations

import asyncio
import inspect


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
