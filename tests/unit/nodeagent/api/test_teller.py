"""What a pod's sidecar is told, and what it is asked, around parks and wakes."""

from __future__ import annotations

import asyncio
import itertools

from kybernate.types import SeatState
from nodeagent.api.teller import Teller

ACTIVE, PARKED = SeatState.ACTIVE, SeatState.PARKED


def told(machine, uid):
    """The different states that kyb-init was told, in order."""
    every = (entry[2] for entry in machine.log if entry[:2] == ("tell", uid))
    return [name for name, _ in itertools.groupby(every)]


async def test_a_state_in_which_probes_are_answered_otherwise_is_told_before_its_act(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.node.observe(Teller(r.node.world.doors))
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    proxy(r.loop).request(a)
    await r.until(a, ACTIVE)
    log = [entry for entry in r.machine.log if a in entry]
    assert log.index(("tell", a, "starting")) < log.index(("go", a, "1"))
    assert log.index(("tell", a, "parking")) < log.index(("cooperate", a, "park"))
    r.check()


async def test_a_swap_has_kyb_init_told_once_of_each_seat_and_of_what_it_is_in_the_end(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.node.observe(Teller(r.node.world.doors))
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    await asyncio.sleep(1)
    assert [told(r.machine, uid)[-1] for uid in (a, b)] == ["parked", "active"]
    r.machine.log.clear()
    proxy(r.loop).request(a)
    await r.until(a, ACTIVE)
    assert [told(r.machine, uid) for uid in (a, b)] == [[], ["parking"]]
    await asyncio.sleep(0.1)
    assert [told(r.machine, uid) for uid in (a, b)] == [["active"], ["parking", "parked"]]
    r.check()


async def test_a_state_that_lasts_is_told(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.node.observe(Teller(r.node.world.doors))
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    slow = proxy(r.loop, service=2.0)
    slow.request(b)
    await asyncio.sleep(1)
    slow.request(a)
    await r.until(b, SeatState.DRAINING)
    await asyncio.sleep(0.1)
    assert told(r.machine, b)[-1] == "draining"
    await r.until(a, ACTIVE)
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
