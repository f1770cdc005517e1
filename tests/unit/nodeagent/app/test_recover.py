"""The agent killed at every write of its journal: it goes on, and no seat is lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from kybernate.ports import ProcessState
from kybernate.types import SeatState
from tests.kit.clock import run_virtual, until
from tests.kit.machine import Crash, Machine

WRITES = 40


def quiet():
    """The running loop, told not to complain of tasks that die with the agent."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    return loop


async def life(rig, proxy, machine=None):
    """Three seats on one GPU start, then a and b are asked in turn."""
    r = rig(machine, min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    uids = [await r.seat(name) for name in "abc"]
    await r.until(uids[2], SeatState.ACTIVE)
    p = proxy(r.loop)
    for uid in (uids[0], uids[1], uids[0]):
        p.request(uid)
        await r.until(uid, SeatState.ACTIVE)
        await asyncio.sleep(0.3)
    return r


def test_how_many_writes_a_life_has(rig, proxy):
    machine = Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30})
    run_virtual(life(rig, proxy, machine))
    assert WRITES * 0.6 < machine.journal_writes < WRITES * 1.5


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash_at", range(2, WRITES))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_agent_killed_at_any_write_goes_on(rig, proxy, crash_at, after):
    machine = Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30})
    machine.crash_at, machine.crash_after = crash_at, after
    ends: list[float] = []

    async def first():
        loop = quiet()
        try:
            await life(rig, proxy, machine)
        finally:
            ends.append(loop.time())

    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(first())
    machine.crash_at = None
    go_on(rig, proxy, machine, ends[0] + 1.0)


@pytest.mark.parametrize("millisecond", range(0, 60, 2))
def test_an_agent_killed_between_two_driver_calls_goes_on(rig, proxy, millisecond):
    machine = Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30})

    async def first():
        loop = quiet()

        async def at_swap():
            await until(lambda: machine.journal_writes >= 18, 60.0)
            loop.call_later(millisecond / 1000, loop.stop)

        await asyncio.gather(life(rig, proxy, machine), at_swap())

    with contextlib.suppress(RuntimeError):  # the loop was stopped
        run_virtual(first())
    go_on(rig, proxy, machine, 2000.0)


def go_on(rig, proxy, machine, start):
    """The agent comes back: every seat answers, nothing was started anew or left locked."""
    gc.collect()  # what died with the agent is finalised here, not within what follows
    alive = dict(machine.inits)

    async def second():
        r = rig(machine, min_residency_s=0.1, idle_after_s=0.1, lease_break_s=1.0)
        await r.recover()
        if r.node.inventory is None:
            r.begin()
        for uid in r.node.seats.keys() - machine.inits.keys():
            machine.start_container(uid)  # the kubelet had not come to it yet
        p = proxy(r.loop)
        await asyncio.sleep(10)
        for uid in r.node.seats:
            p.request(uid)
        await asyncio.sleep(10)
        assert p.answered == dict.fromkeys(r.node.seats, 1)
        assert "SeatFailed" not in [reason for reason, _ in r.seen.events]
        assert alive.items() <= machine.inits.items()
        locked = [p for p in machine.procs.values() if p.cuda is ProcessState.LOCKED]
        assert not locked
        r.check()

    run_virtual(second(), start=start)


@pytest.mark.parametrize("cut", [SeatState.PARKING, SeatState.WAKING])
def test_processes_that_died_with_the_agent_away_are_noticed(rig, proxy, cut):
    machine = Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30})

    async def first():
        r = await life(rig, proxy, machine)
        return next(uid for uid in r.node.seats if r.state(uid) is SeatState.PARKED)

    uid = run_virtual(first())
    machine.journal[f"seat/{uid}"] = {**machine.journal[f"seat/{uid}"], "state": cut.value}
    machine.listener = None
    machine.end_container(uid)

    async def second():
        r = rig(machine)
        await r.recover()
        await r.until(uid, SeatState.WAITING, 5.0)
        assert not machine._of(uid)
        assert f"/cgroup/{uid}" not in machine.frozen

    run_virtual(second(), start=5000.0)


async def test_a_tree_that_no_seat_keeps_frozen_is_thawed_first_thing(rig):
    r = rig()
    r.machine.frozen.add("/cgroup/99/kyb")
    await r.recover()
    assert not r.machine.frozen


def test_parked_seats_stay_parked_and_wake_within_a_second(rig, proxy):
    machine = Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30})

    async def first():
        r = rig(machine)
        r.begin()
        for i in range(8):
            uid = await r.seat(f"s{i}")
        await r.until(uid, SeatState.ACTIVE)
        r.machine.end_container(uid)
        await r.until(uid, SeatState.WAITING)
        return r.clock.time()

    now = run_virtual(first())
    frozen = set(machine.frozen)
    assert len(frozen) == 7

    async def second():
        r = rig(machine)
        await r.recover()
        await asyncio.sleep(0.1)
        assert machine.frozen == frozen
        p = proxy(r.loop)
        began = r.clock.time()
        uid = next(iter(r.node.seats))
        p.request(uid)
        await r.until(uid, SeatState.ACTIVE, 1.0)
        assert r.clock.time() - began < 0.1

    run_virtual(second(), start=now)


def test_a_running_tree_without_a_record_is_taken_over(rig, proxy):
    machine = Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30})

    async def first():
        r = rig(machine)
        r.begin()
        uid = await r.seat("a")
        await r.until(uid, SeatState.ACTIVE)
        return r.node.seats[uid].record()

    record = run_virtual(first())
    record |= {"state": "waiting", "init": None, "tree": None, "handle": ""}
    machine.journal[f"seat/{record['uid']}"] = record

    async def second():
        r = rig(machine)
        await r.recover()
        await r.until(record["uid"], SeatState.ACTIVE, 5.0)
        r.check()

    run_virtual(second(), start=5000.0)
