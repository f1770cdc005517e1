"""Trees that no record knows, and what storms found of agents killed at bad moments."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.ports import ProcessState
from kybernate.types import SeatState
from tests.kit.clock import run_virtual
from tests.kit.machine import Machine
from tests.unit.nodeagent.offloading import two_on_one_gpu

ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING
MEMORY = {"GPU-0": 80 << 30, "GPU-1": 80 << 30}


def reasons(r):
    return [reason for reason, _ in r.seen.events]


def forget(machine, *records):
    """The journal knows the pods, and nothing of what was done with them."""
    for record in records:
        nothing = {"state": "waiting", "init": None, "tree": None, "handle": "", "cuda": []}
        machine.journal[f"seat/{record['uid']}"] = record | nothing


def test_seats_without_a_record_are_found_parked_and_active_as_they_are(rig, proxy):
    machine, (parked, active) = two_on_one_gpu(rig)
    forget(machine, parked, active)

    async def second():
        r = rig(machine)
        await r.recover()
        await r.until(active["uid"], ACTIVE, 5.0)
        await r.until(parked["uid"], PARKED, 5.0)
        assert machine.frozen == {parked["handle"]}
        p = proxy(r.loop)
        p.request(parked["uid"])
        await asyncio.sleep(10)
        assert p.answered == {parked["uid"]: 1}
        assert "SeatFailed" not in reasons(r)
        r.check()

    run_virtual(second(), start=5000.0)


def test_without_an_inventory_a_tree_without_a_record_is_unverified(rig):
    machine, (parked, active) = two_on_one_gpu(rig)
    forget(machine, parked, active)
    del machine.journal["inventory"]

    async def second():
        r = rig(machine)
        await r.recover()
        await asyncio.sleep(20)
        assert [r.state(one["uid"]) for one in (parked, active)] == [SeatState.UNVERIFIED] * 2
        r.begin()
        await r.until(active["uid"], ACTIVE, 5.0)
        await r.until(parked["uid"], PARKED, 5.0)
        r.check()

    run_virtual(second(), start=5000.0)


@pytest.mark.parametrize(
    ("fault", "end"), [(None, PARKED), ("lock-timeout", PARKED), ("checkpoint-fails", WAITING)]
)
def test_a_running_tree_without_room_is_parked_or_killed(rig, fault, end):
    """Both of one GPU's seats run: the one that the journal doesn't know has no right to it."""
    machine, (stray, active) = two_on_one_gpu(rig)
    forget(machine, stray)
    machine.thaw(stray["handle"])
    for process in machine.procs.values():
        if process.handle == stray["handle"] and process.memory:
            process.cuda, process.memory = ProcessState.RUNNING, {"GPU-0": 1 << 30}

    async def second():
        r = rig(machine)
        machine.faults |= {fault} if fault else set()
        await r.recover()
        await asyncio.sleep(2)
        assert [r.state(active["uid"]), r.state(stray["uid"])] == [ACTIVE, end]
        assert ("SeatFailed" in reasons(r)) == (end is WAITING)
        assert machine.held("GPU-0").keys() == {active["uid"]}
        assert not machine.locked()
        r.check()

    run_virtual(second(), start=5000.0)


def test_a_tree_without_a_record_that_the_driver_calls_failed_is_killed(rig):
    machine, (stray, _) = two_on_one_gpu(rig)
    forget(machine, stray)
    for process in machine.procs.values():
        if process.handle == stray["handle"] and process.memory:
            process.cuda = ProcessState.FAILED

    async def second():
        r = rig(machine)
        await r.recover()
        await asyncio.sleep(2)
        assert "SeatFailed" in reasons(r)
        assert r.state(stray["uid"]) is WAITING
        assert not machine._of(stray["uid"])

    run_virtual(second(), start=5000.0)


def test_a_start_that_an_agent_left_undone_looks_for_room_again(rig):
    machine = Machine(MEMORY)

    thief = machine._new("thief")
    thief.memory = {"GPU-0": 60 << 30}

    async def first():
        r = rig(machine)
        r.begin()
        a = await r.seat("a")
        await asyncio.sleep(0.1)
        return r.node.seats[a].record()

    record = run_virtual(first())
    uid = record["uid"]
    machine.journal[f"seat/{uid}"] = record | {"state": "starting"}

    async def second():
        r = rig(machine)
        released = r.node.world.specs.released
        released.add(machine.inits[uid])  # by that agent, which was killed before it said `go`
        await r.recover()
        await asyncio.sleep(5)
        assert r.state(uid) is not ACTIVE
        assert "PutOff" in reasons(r)
        assert not released, "it may open its GPUs before its turn"
        thief.alive = False
        await r.until(uid, ACTIVE, 5.0)
        assert released

    run_virtual(second(), start=1000.1)


async def test_a_park_that_keeps_failing_does_not_keep_the_agent_busy(rig):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    a = await r.seat("a")
    await r.until(a, ACTIVE)
    r.machine.fault = lambda name: name == "nvml-list"
    before = r.machine.journal_writes
    r.loop.operators.send_away(a, "an operator parks it")
    await asyncio.sleep(10)
    assert r.machine.journal_writes - before < 60
    r.machine.fault = lambda name: False
    await r.until(a, PARKED, 3.0)


async def test_a_kill_that_fails_at_first_is_tried_until_the_parked_tree_is_gone(rig):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    r.machine.faults.add("kill-fails")
    r.loop.doors.on_term(a, 15)
    await r.until(a, WAITING, 5.0)
    assert not r.machine._of(a)
    assert "KillIncomplete" in reasons(r)


def test_a_seat_that_was_gone_is_not_taken_up_again(rig):
    machine, (record, _) = two_on_one_gpu(rig)
    machine.journal[f"seat/{record['uid']}"] = record | {"state": "gone"}

    async def second():
        r = rig(machine)
        await r.recover()
        assert record["uid"] not in r.node.seats
        assert f"seat/{record['uid']}" not in machine.journal

    run_virtual(second(), start=5000.0)


async def test_demand_that_came_before_its_seat_was_known_again_is_served(rig, proxy):
    r = rig()
    r.begin()
    b = await r.seat("b")
    await r.until(b, ACTIVE)
    p = proxy(r.loop)
    r.machine.apps["uid-a"] = r.machine.apps[b]
    p.request("uid-a")
    a = await r.seat("a")
    await r.until(a, ACTIVE, 10.0)
    await asyncio.sleep(1)
    assert p.answered == {a: 1}


@pytest.mark.parametrize("state", [PARKED, SeatState.WAKING])
def test_what_began_to_use_a_gpu_while_no_agent_looked_is_not_frozen_with_it(rig, state):
    """Its tree was thawed, and then the agent was killed."""
    machine, (record, active) = two_on_one_gpu(rig)
    machine.journal[f"seat/{record['uid']}"] = record | {"state": state.value}
    machine.thaw(record["handle"])
    if state is SeatState.WAKING:
        machine.listener = None
        machine.end_container(active["uid"])

    async def second():
        r = rig(machine)
        machine.faults.add("worker-begins")
        await r.recover()
        await asyncio.sleep(3)
        found = r.state(record["uid"])
        assert found is (WAITING if state is PARKED else ACTIVE)
        assert not machine.locked()
        r.check()

    run_virtual(second(), start=5000.0)


def test_a_parked_tree_that_uses_a_gpu_keeps_it_from_others_until_it_is_gone(rig):
    machine, (record, active) = two_on_one_gpu(rig)
    machine.thaw(record["handle"])
    stuck, usual = ["kill-fails"], machine.fault

    async def second():
        r = rig(machine)
        machine.faults.add("worker-begins")
        machine.fault = lambda name: name in stuck or usual(name)
        await r.recover()
        await asyncio.sleep(1)
        machine.end_container(active["uid"])
        machine.restart_container(active["uid"])
        await asyncio.sleep(3)
        assert r.state(active["uid"]) is WAITING
        stuck.clear()
        await r.until(active["uid"], ACTIVE, 10.0)
        r.check()

    run_virtual(second(), start=5000.0)


def test_a_tree_without_a_record_is_not_restored_where_there_is_no_room(rig):
    """Half of its ranks are parked, and somebody else has the memory."""
    machine, (stray, active) = two_on_one_gpu(rig)
    forget(machine, stray)
    machine.thaw(stray["handle"])
    machine.add_worker(stray["handle"])

    async def second():
        r = rig(machine)
        machine.faults.add("freeze-fails")
        await r.recover()
        await asyncio.sleep(3)
        assert r.state(active["uid"]) is ACTIVE
        assert "SeatFailed" in reasons(r)
        assert not machine._of(stray["uid"])
        r.check()

    run_virtual(second(), start=5000.0)
