"""Seats that may be on any GPU of their node: where they go, and that it is known afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from dataclasses import replace

import pytest

from kybernate.ports import ProcessState
from kybernate.types import PodUid, SeatState
from nodeagent.seat.steps import Broken
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash, Machine
from tests.unit.nodeagent.conftest import GIB, GPUS, INVENTORY

A, B = (gpu.uuid for gpu in GPUS)
QUICK = {"min_residency_s": 0.1, "idle_after_s": 0.1}


def on(r, uid):
    """GPUs that the seat's processes have memory of now."""
    mine = [p for p in r.machine.procs.values() if p.uid == uid and p.alive]
    held = [p for p in mine if p.cuda is not ProcessState.CHECKPOINTED]
    return {gpu for process in held for gpu in process.memory}


async def asked(r, p, uid):
    p.request(uid)
    await r.until(uid, SeatState.ACTIVE)
    await asyncio.sleep(0.3)


async def three(rig, proxy, machine=None):
    """Of three seats that each need most of a GPU, a and b have one each and c has had a's."""
    r = rig(machine, **QUICK)
    r.begin()
    uids = [await r.seat(name, vram=60 * GIB, anywhere=True) for name in "abc"]
    p = proxy(r.loop)
    await r.until(uids[2], SeatState.ACTIVE)
    return r, p, uids


async def test_a_seat_starts_where_there_is_room(rig, proxy):
    r, _, (a, b, c) = await three(rig, proxy)
    assert r.state(a) is SeatState.PARKED
    assert (on(r, b), on(r, c)) == ({B}, {A})
    assert ("go", b, "1", "/usr/bin/env", f"CUDA_VISIBLE_DEVICES={B}") in r.machine.log
    r.check()


async def test_a_parked_seat_wakes_on_the_other_gpu_and_on_that_again(rig, proxy):
    r, p, (a, b, c) = await three(rig, proxy)
    r.loop.operators.send_away(b, "test")
    await r.until(b, SeatState.PARKED)
    await asked(r, p, a)
    assert (on(r, a), on(r, c)) == ({B}, {A})
    seat = r.node.seats[a]
    assert seat.identity.gpus == (B,)
    assert r.machine.journal[f"seat/{a}"]["gpus"] == [B]
    assert seat.tree.gpu_map == {}
    await asked(r, p, b)  # its own is taken now: it goes onto the one that was unused longest
    await asked(r, p, a)
    assert r.seen.broken == []
    for uid in (a, b, c):
        if r.state(uid) is SeatState.ACTIVE:
            assert on(r, uid) == set(r.node.seats[uid].identity.gpus)
    assert "SeatFailed" not in [reason for reason, _ in r.seen.events]
    r.check()


async def test_a_wake_that_is_put_off_may_go_elsewhere(rig, proxy):
    r, p, (a, b, c) = await three(rig, proxy)
    r.loop.operators.send_away(b, "test")
    await r.until(b, SeatState.PARKED)
    r.machine.faults.add("disk-full")
    p.request(a)
    await asyncio.sleep(0.2)
    assert r.state(a) is SeatState.PARKED
    assert r.node.seats[a].tree.gpu_map == {A: B}
    r.loop.operators.send_away(c, "test")
    await r.until(a, SeatState.ACTIVE)
    assert on(r, a) == set(r.node.seats[a].identity.gpus)
    r.check()


async def test_where_the_driver_refuses_the_seat_keeps_its_gpu(rig, proxy):
    r, p, (a, b, _) = await three(rig, proxy)
    r.loop.operators.send_away(b, "test")
    await r.until(b, SeatState.PARKED)
    r.machine.faults.add("remap-refused")
    p.request(a)
    await r.until(a, SeatState.ACTIVE)
    assert on(r, a) == {A}
    told = dict(r.seen.events)["RemapRefused"]
    assert told.startswith(f"the driver does not move it from GPU {A} to {B}: ")
    assert r.node.places(r.node.seats[a]) == ()
    assert r.machine.journal[f"seat/{a}"]["stays_on"]
    r.check()


@pytest.mark.parametrize("fault", ["freeze-fails", "worker-begins"])
async def test_who_is_refused_and_cannot_be_parked_does_not_stay_beside_another(rig, proxy, fault):
    """Its own GPU is another's by now: it starts again, and nobody else notices."""
    r, p, (a, b, c) = await three(rig, proxy)
    r.loop.operators.send_away(b, "test")
    await r.until(b, SeatState.PARKED)
    assert on(r, c) == {A}
    r.machine.faults |= {"remap-refused", fault}
    p.request(a)
    await asyncio.sleep(5.0)
    assert r.state(c) is SeatState.ACTIVE
    assert on(r, c) == {A}
    assert A not in on(r, a)
    assert r.seen.broken == []
    assert "SeatFailed" in [reason for reason, _ in r.seen.events]
    r.check()


async def test_a_driver_that_moves_nothing_is_not_asked_to(rig, proxy):
    r = rig(**QUICK)
    r.loop.inventory_reported(replace(INVENTORY, driver_version="570.86.10"))
    uids = [await r.seat(name, vram=60 * GIB, anywhere=True) for name in "abc"]
    p = proxy(r.loop)
    await r.until(uids[2], SeatState.ACTIVE)
    r.loop.operators.send_away(uids[1], "test")
    await asked(r, p, uids[0])
    assert on(r, uids[0]) == {A}  # c was parked for it though the other GPU is empty
    r.check()


async def test_a_running_tree_without_a_record_is_found_on_its_gpu(rig, proxy):
    r, _, (_, b, _) = await three(rig, proxy)
    r.node.seats[b].identity = replace(r.node.seats[b].identity, gpus=(A,))
    await r.loop.found.locate(r.node.seats[b])
    assert r.node.seats[b].identity.gpus == (B,)


LOST = replace(GPUS[1], healthy=False)


@pytest.mark.parametrize("gpus", [GPUS, (GPUS[0], LOST)], ids=["both there", "one lost"])
async def test_a_parked_tree_of_unknown_place_is_started_again(rig, proxy, gpus):
    """Any map would be a guess: it could come back on a GPU that is somebody else's."""
    r, _, (a, b, _) = await three(rig, proxy)
    r.loop.inventory_reported(replace(INVENTORY, gpus=gpus))
    before, r.machine.journal_damage = r.machine.inits[a], "1 of the journal's lines can't be read"
    again = rig(r.machine, lease_break_s=1.0, **QUICK)
    await again.recover()
    assert b in again.node.seats
    for _ in range(200):
        await asyncio.sleep(0.1)
        if not r.machine.procs[before].alive:
            r.machine.restart_container(a)
            break
    await again.until(a, SeatState.WAITING)
    told = [text for reason, text in again.seen.events if reason == "SeatFailed"]
    why = "it is parked, and no record says on which GPU it was"
    assert told == [f"{why}; the workload is started again"]


async def test_a_running_tree_without_a_record_may_be_on_a_gpu_that_is_lost(rig, proxy):
    """NVML shows it nowhere. On its own group's GPU it would be parked without its processes."""
    r, _, (_, b, _) = await three(rig, proxy)
    seat = r.node.seats[b]
    seat.identity = replace(seat.identity, gpus=(A,))
    seat.tree.uses(await r.loop.steps.find_cuda(seat))
    r.loop.inventory_reported(replace(INVENTORY, gpus=(GPUS[0], LOST)))
    with pytest.raises(Broken, match=f"none of the GPUs that are healthy; lost: {B}"):
        await r.loop.found.locate(seat)


async def moved(rig, proxy):
    """a began on A and is on B by now; c is active on A, b parked."""
    r, p, (a, b, c) = await three(rig, proxy)
    r.loop.operators.send_away(b, "test")
    await r.until(b, SeatState.PARKED)
    await asked(r, p, a)
    assert (on(r, a), on(r, c)) == ({B}, {A})
    return r, p, (a, b, c)


@pytest.mark.parametrize("when", ["before", "while it is frozen"])
async def test_what_began_where_a_seat_was_is_not_left_there_by_a_park(rig, proxy, when):
    """A's seat has all of its GPU, and a has ended with the reason."""
    r, _, (a, _, c) = await moved(rig, proxy)
    if when == "before":
        late = r.machine.add_worker(r.node.seats[a].tree.handle)
        assert late.memory.keys() == {A}
    else:
        r.machine.faults.add("worker-begins")
    r.loop.operators.send_away(a, "test")
    await r.until(a, SeatState.WAITING)
    assert SeatState.PARKED not in [state for uid, state in r.seen.states[-4:] if uid == a]
    assert (on(r, a), on(r, c)) == (set(), {A})
    (why,) = (text for reason, text in r.seen.events if reason == "SeatFailed")
    assert f"of it uses GPU {A}, and the seat is on {B}; " in why
    assert r.state(c) is SeatState.ACTIVE
    assert "ParkReverted" not in [reason for reason, _ in r.seen.events]
    r.check()


async def test_what_begins_late_where_the_seat_is_is_parked_with_it(rig, proxy):
    r, _, (_, _, c) = await three(rig, proxy)
    late = r.machine.add_worker(r.node.seats[c].tree.handle)
    r.loop.operators.send_away(c, "test")
    await r.until(c, SeatState.PARKED)
    assert late.cuda is ProcessState.CHECKPOINTED
    r.check()


async def test_a_lost_gpu_keeps_no_seat_of_others_from_its_park(rig, proxy):
    r, _, (a, _, _) = await moved(rig, proxy)
    r.machine.lost.add(A)
    r.loop.operators.send_away(a, "test")
    await asyncio.sleep(0.5)
    assert r.state(a) is SeatState.ACTIVE, "what it has there can't be told"
    r.loop.inventory_reported(replace(INVENTORY, gpus=(replace(GPUS[0], healthy=False), GPUS[1])))
    await r.until(a, SeatState.PARKED)
    assert [uid for uid, state in r.seen.states if state is SeatState.FAILED and uid == a] == []
    r.check()


async def test_a_running_tree_without_a_record_that_is_on_two_gpus_is_ended(rig, proxy):
    r, _, (a, _, _) = await moved(rig, proxy)
    seat = r.node.seats[a]
    r.machine.add_worker(seat.tree.handle)
    with pytest.raises(Broken, match=f"it may be on one GPU, and is on {A} and {B}"):
        await r.loop.found.locate(seat)


def swapping(rig, proxy, machine):
    async def first():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        r, p, (a, b, _) = await three(rig, proxy, machine)
        r.loop.operators.send_away(b, "test")
        await r.until(b, SeatState.PARKED)
        for uid in (a, b, a):
            await asked(r, p, uid)

    return first


def writes_of(rig, proxy):
    machine = Machine({A: 80 * GIB, B: 80 * GIB})
    run_virtual(swapping(rig, proxy, machine)())
    return machine.journal_writes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("back", range(1, 34))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_agent_killed_at_any_write_knows_where_its_seats_are(rig, proxy, back, after):
    machine = Machine({A: 80 * GIB, B: 80 * GIB})
    machine.crash_at, machine.crash_after = writes_of(rig, proxy) - back + 1, after
    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(swapping(rig, proxy, machine)())
    machine.crash_at = None
    gc.collect()
    alive = dict(machine.inits)

    async def second():
        r = rig(machine, lease_break_s=1.0, **QUICK)
        await r.recover()
        p = proxy(r.loop)
        await asyncio.sleep(10)
        for uid in map(PodUid, ("uid-a", "uid-b", "uid-c")):
            await asked(r, p, uid)
            assert on(r, uid) == set(r.node.seats[uid].identity.gpus)
        assert alive == machine.inits
        assert "SeatFailed" not in [reason for reason, _ in r.seen.events]
        r.check()

    run_virtual(second(), start=2000.0)
