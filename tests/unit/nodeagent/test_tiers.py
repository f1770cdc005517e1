"""Seats parked below RAM: down to NVMe and the object store, and back, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kybernate.core.budget import HostMemory
from kybernate.ports import DumpState, ProcessState
from kybernate.testing.clock import run_virtual
from kybernate.testing.machine import Crash, Machine
from kybernate.types import SeatState, Tier
from nodeagent.seat import Seat
from tests.unit.nodeagent.watched import Watched

GIB = 1 << 30
MEMORY = {"GPU-0": 80 * GIB, "GPU-1": 80 * GIB}
ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING
NVME, OBJECT = SeatState.PARKED_NVME, SeatState.PARKED_OBJECT
TIERS = {Tier.NVME: 1000 * GIB, Tier.OBJECT: 10000 * GIB}


def reasons(r):
    return [reason for reason, _ in r.seen.events]


async def two(r):
    """A parked seat, and an active one that has its GPU."""
    r.node.park_budget = 1000 * GIB
    r.begin()
    cold, hot = await r.seat("cold"), await r.seat("hot")
    await r.until(hot, ACTIVE)
    assert r.state(cold) is PARKED
    return cold, hot


async def when(condition):
    """Look at every step of the loop."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0.0001)
    raise AssertionError("it never comes to that")


async def down(r, uid, state=NVME):
    """The seat goes to NVMe, as an operator asks."""
    r.loop.ask_for_tier(uid, Tier.NVME if state is NVME else Tier.OBJECT)
    await r.until(uid, state)


def app_of(r, uid):
    (process,) = (p for p in r.machine.procs.values() if p.uid == uid and p.alive and p.main)
    return process


def test_a_seat_goes_to_nvme_and_a_request_brings_it_back(rig, proxy):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        inner = app_of(r, cold).inner
        await down(r, cold)
        seat = r.node.seats[cold]
        assert not any(p.alive and p.handle == seat.handle for p in r.machine.procs.values())
        assert (seat.saved, seat.copies) == (40 * GIB, {Tier.NVME})
        assert r.machine.gates.keys() == {cold}
        p = proxy(r.loop)
        p.request(cold)
        await r.until(cold, ACTIVE)
        await asyncio.sleep(2)
        assert p.answered == {cold: 1}
        assert (app_of(r, cold).inner, app_of(r, cold).cuda) == (inner, ProcessState.RUNNING)
        assert seat.wakes == 1
        assert (r.machine.vault, r.machine.gates) == ({}, {})
        assert (seat.artifact, seat.copies, seat.tier_asked) == ("", frozenset(), "")
        r.check()

    run_virtual(main())


def test_what_arrives_at_its_pod_wakes_it(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        await down(r, cold)
        assert r.machine.arrive(cold)
        await r.until(cold, ACTIVE)
        r.check()

    run_virtual(main())


def test_a_seat_is_not_dumped_under_a_request_that_has_just_come(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        seat = r.node.seats[cold]
        await asyncio.sleep(0.1)
        r.loop.ask_for_tier(cold, Tier.NVME)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seat.state is SeatState.DUMPING
        r.arrivals.arrive(seat.handle)
        await r.until(cold, ACTIVE)
        assert r.machine.vault == {}
        assert "RestoreFailed" not in reasons(r)
        r.check()

    run_virtual(main())


def test_a_seat_that_is_called_for_while_it_is_dumped_stays_in_ram(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        r.loop.ask_for_tier(cold, Tier.NVME)
        await when(lambda: r.machine.dumps)
        assert r.machine.arrive(cold)
        await r.until(cold, ACTIVE)
        await asyncio.sleep(1)
        assert (r.machine.vault, r.machine.gates, r.machine.dumps) == ({}, {}, {})
        r.check()

    run_virtual(main())


def test_its_sockets_are_watched_again_when_it_stays_in_ram(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        r.machine.faults.add("dump-fails")
        r.loop.ask_for_tier(cold, Tier.NVME)
        await asyncio.sleep(1)
        assert r.state(cold) is PARKED
        assert r.node.seats[cold].handle in r.arrivals.watches
        assert r.machine.gates == {}
        r.arrivals.arrive(r.node.seats[cold].handle)
        await r.until(cold, ACTIVE)
        r.check()

    run_virtual(main())


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("undumpable", "io_uring"),
        ("dump-refused", "waits to be accepted"),
        ("dump-fails", "No space left"),
        ("dump-suspect", "criu was killed"),
        ("dump-hangs", "did not end"),
        ("begin-fails", "No space left"),
        ("seal-fails", "No space left"),
        ("seal-hangs", "did not sync"),
        ("shut-fails", "not permitted"),
        ("disk-full", "No space left"),
    ],
)
def test_what_can_not_be_dumped_stays_in_ram_and_is_told(rig, proxy, fault, words):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        r.machine.faults.add(fault)
        r.loop.ask_for_tier(cold, Tier.NVME)
        await asyncio.sleep(20 if "hangs" not in fault else 130)
        assert r.state(cold) is PARKED
        (told,) = [sentence for reason, sentence in r.seen.events if reason == "KeptInRam"]
        assert words in told
        assert (r.machine.vault, r.machine.gates, r.machine.dumps) == ({}, {}, {})
        assert "/dumps/uid-cold" not in r.machine.folders
        p = proxy(r.loop)
        p.request(cold)
        await r.until(cold, ACTIVE)
        await asyncio.sleep(1)
        assert p.answered == {cold: 1}
        r.check()

    run_virtual(main())


def test_what_was_refused_is_tried_again_after_a_while_only(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        r.machine.faults.add("dump-refused")
        r.loop.ask_for_tier(cold, Tier.NVME)
        await asyncio.sleep(50)
        assert reasons(r).count("KeptInRam") == 1
        await r.until(cold, NVME, 30)

    run_virtual(main())


def test_a_dump_that_leaves_it_unfit_ends_it_and_says_so(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        r.machine.faults |= {"dump-fails", "keep-fails"}
        r.loop.ask_for_tier(cold, Tier.NVME)
        await r.until(cold, WAITING)
        assert any("unfit to run" in sentence for _, sentence in r.seen.events)
        r.machine.restart_container(cold)
        r.loop.call_for(cold, "a test")
        await r.until(cold, ACTIVE)
        assert r.machine.gates == {}
        r.check()

    run_virtual(main())


@pytest.mark.parametrize("fault", ["end-hangs", "open-fails", "drop-fails"])
def test_what_does_not_work_at_once_works_in_the_end(rig, proxy, fault):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        r.machine.faults.add(fault)
        await down(r, cold)
        p = proxy(r.loop)
        p.request(cold)
        await r.until(cold, ACTIVE)
        await asyncio.sleep(3)
        assert p.answered == {cold: 1}
        assert (r.machine.faults, r.machine.vault, r.machine.gates) == (set(), {}, {})
        r.check()

    run_virtual(main())


@pytest.mark.parametrize("fault", ["restore-fails-criu", "restore-hangs"])
def test_a_restore_that_fails_is_tried_again_from_the_same_state(rig, proxy, fault):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        await down(r, cold)
        r.machine.faults.add(fault)
        p = proxy(r.loop)
        p.request(cold)
        await r.until(cold, ACTIVE, 300)
        await asyncio.sleep(1)
        assert p.answered == {cold: 1}
        assert "RestoreFailed" in reasons(r)
        r.check()

    run_virtual(main())


def test_a_state_that_can_not_be_restored_is_given_up_and_the_workload_starts_anew(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        await down(r, cold)
        r.machine.faults.add("corrupt")
        r.loop.call_for(cold, "a test")
        await r.until(cold, WAITING)
        assert any("is not what was written" in sentence for _, sentence in r.seen.events)
        r.machine.restart_container(cold)
        r.loop.call_for(cold, "a test")
        await r.until(cold, ACTIVE)
        await asyncio.sleep(1)
        assert (r.machine.vault, r.machine.gates) == ({}, {})
        r.check()

    run_virtual(main())


def test_it_goes_to_the_object_store_and_comes_back(rig, proxy):
    async def main():
        r = rig(tiers=TIERS, tier_residency_s=0.0)
        cold, _ = await two(r)
        await down(r, cold, OBJECT)
        await asyncio.sleep(1)
        seat = r.node.seats[cold]
        assert (seat.copies, [k.places for k in r.machine.vault.values()]) == (
            {Tier.OBJECT},
            [{Tier.OBJECT}],
        )
        r.machine.faults.add("store-down")
        p = proxy(r.loop)
        p.request(cold)
        await r.until(cold, ACTIVE)
        await asyncio.sleep(1)
        assert p.answered == {cold: 1}
        assert (r.machine.vault, r.machine.gates) == ({}, {})
        assert "TransferFailed" in reasons(r)
        r.check()

    run_virtual(main())


def test_when_ram_is_full_the_coldest_makes_room_instead_of_a_refusal(rig, proxy):
    async def main():
        r = rig(tiers=TIERS)
        Watched(r, budget=50 * GIB)
        r.begin()
        uids = [await r.seat(name, vram=40 * GIB) for name in "abc"]
        for uid in uids:
            r.loop.call_for(uid, "a test")
        await r.until(uids[2], ACTIVE)
        assert [r.state(uid) for uid in uids] == [NVME, PARKED, ACTIVE]
        p = proxy(r.loop)
        for turn in (0, 1, 2, 0):
            p.request(uids[turn])
            await r.until(uids[turn], ACTIVE)
            await asyncio.sleep(1)
        assert p.answered == {uids[0]: 2, uids[1]: 1, uids[2]: 1}
        assert "ParkRefused" not in reasons(r)
        assert r.node.parked_bytes() <= 50 * GIB
        r.check()

    run_virtual(main())


def test_without_room_for_two_they_take_turns_all_the_same(rig, proxy):
    """RAM has room for one of them: who is active must be parked and leave before the other comes
    up, and nobody may fill RAM meanwhile."""

    async def main():
        r = rig(tiers=TIERS, tier_residency_s=0.5)
        Watched(r, budget=41 * GIB)
        r.begin()
        uids = [await r.seat(name, vram=40 * GIB) for name in "abcd"]
        p = proxy(r.loop, service=0.2)
        for uid in uids:
            p.request(uid)
        await asyncio.sleep(30)
        assert p.answered == dict.fromkeys(uids, 1)
        for uid in reversed(uids):
            p.request(uid)
        await asyncio.sleep(60)
        assert p.answered == dict.fromkeys(uids, 2)
        r.check()

    run_virtual(main())


def test_a_seat_pinned_to_ram_is_not_dumped(rig):
    async def main():
        r = rig(tiers=TIERS)
        Watched(r, budget=50 * GIB)
        r.begin()
        uids = [await r.seat(name, vram=40 * GIB) for name in "ab"]
        await r.until(uids[1], ACTIVE)
        r.node.seats[uids[0]].park_tier = Tier.RAM.value
        third = await r.seat("c", vram=40 * GIB)
        r.loop.call_for(third, "a test")
        await asyncio.sleep(20)
        assert [r.state(uid) for uid in (*uids, third)] == [PARKED, ACTIVE, WAITING]
        assert "ParkRefused" in reasons(r)

    run_virtual(main())


@pytest.mark.parametrize("state", [NVME, OBJECT, SeatState.DUMPING, SeatState.RESTORING])
@pytest.mark.parametrize("how", ["term", "deleted", "killed"])
def test_a_seat_below_ram_ends_at_once(rig, state, how):
    async def main():
        r = rig(tiers=TIERS, tier_residency_s=0.0)
        cold, _ = await two(r)
        if state in (NVME, OBJECT):
            await down(r, cold, state)
        else:
            if state is SeatState.RESTORING:
                await down(r, cold)
                r.loop.call_for(cold, "a test")
            else:
                r.loop.ask_for_tier(cold, Tier.NVME)
            await when(lambda: r.state(cold) is state)
            await asyncio.sleep(0.003)
        if how == "term":
            r.loop.on_term(cold, 15)
            if r.machine.dumps.get(r.machine.inits[cold]) is DumpState.PARKED:
                r.machine.end_container(cold)
        elif how == "killed":
            r.machine.end_container(cold)
        else:
            r.loop.on_term(cold, 15)
            r.machine.end_container(cold)
            r.loop.pod_gone(cold)
        await asyncio.sleep(1.5)
        if how == "deleted":
            assert cold not in r.node.seats
        else:
            assert r.state(cold) is WAITING
            r.machine.restart_container(cold)
            r.loop.call_for(cold, "a test")
            await r.until(cold, ACTIVE)
            assert r.machine.gates == {}
        await asyncio.sleep(1)
        assert r.machine.vault == {}
        assert not [key for key in r.machine.journal if key.startswith("drop/")]
        r.check()

    run_virtual(main())


# --- the agent is killed --------------------------------------------------------------------------


def quiet():
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(1, 16))
@pytest.mark.parametrize("kind", ["dump", "restore"])
def test_killed_at_any_write_of_a_move_it_goes_on(rig, proxy, kind, write, after):
    machine = Machine(MEMORY)

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS)
        cold, _ = await two(r)
        if kind == "restore":
            await down(r, cold)
        machine.crash_at, machine.crash_after = machine.journal_writes + write, after
        if kind == "dump":
            r.loop.ask_for_tier(cold, Tier.NVME)
            await asyncio.sleep(3)
        r.loop.call_for(cold, "a test")
        await asyncio.sleep(20)

    with contextlib.suppress(Crash, RuntimeError):
        run_virtual(first())
    machine.crash_at = None

    async def second():
        r = rig(machine, tiers=TIERS)
        r.node.park_budget = 1000 * GIB
        await r.recover()
        r.begin()
        p = proxy(r.loop)
        await asyncio.sleep(2)
        for uid in ("uid-cold", "uid-hot", "uid-cold"):
            p.request(uid)
            await r.until(uid, ACTIVE)
            await asyncio.sleep(2)
        assert p.answered == {"uid-cold": 2, "uid-hot": 1}
        assert "SeatFailed" not in reasons(r)
        assert all(process.generation == 1 for process in r.node.seats.values())
        assert (machine.vault, machine.gates, machine.dumps) == ({}, {}, {})
        r.check()

    run_virtual(second(), 2000.0)


@pytest.mark.parametrize("state", [SeatState.DUMPING, SeatState.RESTORING])
@pytest.mark.parametrize("moment", range(12))
def test_killed_at_any_moment_of_a_move_it_goes_on(rig, proxy, state, moment):
    machine = Machine(MEMORY)

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS)
        cold, _ = await two(r)
        if state is SeatState.RESTORING:
            await down(r, cold)
            r.loop.call_for(cold, "a test")
        else:
            r.loop.ask_for_tier(cold, Tier.NVME)
        await when(lambda: r.state(cold) is state)
        await asyncio.sleep(moment * 0.002)
        machine.listener = None

    run_virtual(first())

    async def second():
        r = rig(machine, tiers=TIERS)
        r.node.park_budget = 1000 * GIB
        await r.recover()
        r.begin()
        p = proxy(r.loop)
        p.request("uid-cold")
        await r.until("uid-cold", ACTIVE)
        await asyncio.sleep(2)
        assert p.answered == {"uid-cold": 1}
        assert "SeatFailed" not in reasons(r)
        assert (machine.vault, machine.gates, machine.dumps) == ({}, {}, {})
        r.check()

    run_virtual(second(), 2000.0)


def test_an_agent_without_criu_says_that_it_can_not_wake_what_is_below_ram(rig):
    machine = Machine(MEMORY)

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS)
        await down(r, (await two(r))[0])

    run_virtual(first())

    async def second():
        r = rig(machine)
        await r.recover()
        r.begin()
        r.loop.call_for("uid-cold", "a test")
        await asyncio.sleep(3)
        assert r.state("uid-cold") is NVME
        assert "CannotWake" in reasons(r)
        assert len(machine.vault) == 1

    run_virtual(second(), 2000.0)


def test_with_the_journal_lost_a_seat_below_ram_starts_anew(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _ = await two(r)
        await down(r, cold)
        identity = r.node.seats.pop(cold).identity
        r.loop.add(Seat(identity, 0.0, 0.0))
        r.machine.hello(cold)
        await asyncio.sleep(2)
        assert r.state(cold) is WAITING
        assert any("without a record" in sentence for _, sentence in r.seen.events)
        r.machine.restart_container(cold)
        r.loop.call_for(cold, "a test")
        await r.until(cold, ACTIVE)

    run_virtual(main())


def test_less_host_memory_than_the_budget_also_makes_the_coldest_leave(rig):
    async def main():
        r = rig(tiers=TIERS)
        watched = Watched(r, budget=1000 * GIB)
        r.begin()
        uids = [await r.seat(name, vram=40 * GIB) for name in "ab"]
        await r.until(uids[1], ACTIVE)

        def host():
            freed = 40 if r.state(uids[0]) is NVME else 0
            return HostMemory(200 * GIB, (30 + freed) * GIB)

        watched.memory.host = host
        third = await r.seat("c", vram=40 * GIB)
        await r.until(third, ACTIVE)
        assert r.state(uids[0]) is NVME
        assert "ParkRefused" not in reasons(r)
        r.check()

    run_virtual(main())
