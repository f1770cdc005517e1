"""What a pod's sidecar is told, and what it is asked, around parks and wakes."""

from __future__ import annotations

import asyncio
import itertools

from kybernate.types import SeatState
from nodeagent.api.teller import Teller

ACTIVE, PARKED = SeatState.ACTIVE, SeatState.PARKED


async def test_every_state_is_told_once_and_before_the_act_it_announces(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.node.observe(Teller(r.node.world.doors))
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    proxy(r.loop).request(a)
    await r.until(a, ACTIVE)
    await asyncio.sleep(0.1)
    told = [entry[2] for entry in r.machine.log if entry[:2] == ("tell", a)]
    distinct = [name for name, _ in itertools.groupby(told)]
    life = ["starting", "active", "draining", "parking", "parked", "waking", "active"]
    assert distinct[-len(life) :] == life
    log = [entry for entry in r.machine.log if a in entry]
    assert log.index(("tell", a, "starting")) < log.index(("go", a, "1"))
    assert log.index(("tell", a, "parking")) < log.index(("cooperate", a, "park"))
    r.check()


async def test_a_workload_is_asked_before_its_park_and_after_its_wake(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    proxy(r.loop).request(a)
    await r.until(a, ACTIVE)
    asked = [entry[1:] for entry in r.machine.log if entry[0] == "cooperate"]
    assert asked == [(a, "park"), (b, "park"), (a, "wake")]
    r.check()


async def test_a_workload_that_does_not_do_its_part_is_parked_and_woken_all_the_same(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.machine.faults.add("not-cooperating")
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    proxy(r.loop).request(a)
    await r.until(a, ACTIVE)
    assert r.state(b) is PARKED
    assert any("did not do its part of the park: HTTP 500" in str(e) for e in r.seen.events)
    r.check()


async def test_progress_is_the_reason_of_a_seat_that_starts_and_of_no_other(rig):
    r = rig()
    r.begin()
    a = await r.seat("a", delay=5.0)
    await r.until(a, SeatState.STARTING)
    r.loop.doors.on_progress(a, "answers 503 after 3 s")
    assert r.node.seats[a].history.reason == "answers 503 after 3 s"
    await r.until(a, ACTIVE)
    r.loop.doors.on_progress(a, "too late")
    assert r.node.seats[a].history.reason != "too late"
    r.check()
