"""A seat that is to be evicted is copied while it serves, before it goes away."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from kybernate.core.artifacts.holds import SAVED
from kybernate.core.seat.operations import Kind, Progress
from kybernate.core.seat.saves import is_precopied
from kybernate.types import SeatState, Tier
from nodeagent.operations.operations import Operations
from nodeagent.operations.record import Ask
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash, Machine
from tests.unit.nodeagent.offloading import ended, quiet, when

GIB, MIB = 1 << 30, 1 << 20
WRITES = 66
MEMORY = {"GPU-0": 80 * GIB, "GPU-1": 80 * GIB}
BOTH = {Tier.NVME: 1000 * GIB, Tier.OBJECT: 1 << 62}
ACTIVE, AWAY = SeatState.ACTIVE, SeatState.PARKED_OBJECT


async def begun(rig, **more):
    r = rig(tiers=BOTH, keep_left_s=100.0, **more)
    r.node.park_budget = 100 * GIB
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    r.begin()
    uid = await r.seat("a", delay=0.0)
    await r.until(uid, ACTIVE)
    return r, operations, uid


def evict(uid, **more):
    asked = {"tier": Tier.OBJECT, "precopy": True, "limit": 7200.0, **more}
    return Ask(Kind.EVICT, "e1", uid, **asked)


def states(r, uid):
    return [state for one, state in r.seen.states if one == uid]


def kept(r):
    return {key for key in r.node.world.journal.load() if key.startswith(SAVED)}


async def only_its_own(r, uid):
    """Nothing but the seat's own artifact is there once all has been dropped."""
    await asyncio.sleep(30)
    assert r.machine.vault.keys() == {r.node.seats[uid].saved.artifact}
    assert kept(r) == set()


async def test_it_is_copied_while_it_serves_and_then_goes_away(rig, proxy):
    r, operations, uid = await begun(rig)
    p = proxy(r.loop)
    r.machine.faults.add("store-down")
    one = await operations.ask(evict(uid))
    (copy,) = (each for each in operations.known(ended_too=False) if each is not one)
    await when(lambda: "is copied to object" in one.sentence)
    await r.until(uid, ACTIVE)
    p.request(uid)
    await when(lambda: p.answered == {uid: 1})
    assert (copy.state, one.state) == (Progress.RUNNING, Progress.RUNNING)
    assert operations.under_way() == {uid: "evict"}
    assert (one.bytes_total, copy.bytes_total > 0) == (0, True), "no copy of the eviction's stalls"
    await ended(one)
    assert (one.state, copy.state, r.state(uid)) == (Progress.SUCCEEDED, Progress.SUCCEEDED, AWAY)
    assert copy.artifact != r.node.seats[uid].saved.artifact
    await only_its_own(r, uid)
    r.check()


@pytest.mark.parametrize(
    "more",
    [
        {"precopy": False},
        {"tier": Tier.NVME},
        {"tier": None},
        {"limit": 60.0},
    ],
)
async def test_it_goes_at_once_if_nobody_waits_for_it_or_nothing_is_sent(rig, more):
    _, operations, uid = await begun(rig)
    one = await operations.ask(evict(uid, **more))
    assert operations.known(ended_too=True) == [one]
    assert (await ended(one)).state is Progress.SUCCEEDED


async def test_it_goes_at_once_if_another_would_have_its_gpus_meanwhile(rig):
    r, operations, uid = await begun(rig)
    other = await r.seat("b", delay=0.0)
    await r.until(other, ACTIVE)
    assert r.state(uid) is SeatState.PARKED
    r.loop.operators.request_wake(uid, "test")
    one = await operations.ask(evict(other))
    assert operations.known(ended_too=True) == [one]


@pytest.mark.parametrize(
    ("size", "left", "others", "worth"),
    [
        (255, 600.0, False, False),
        (256, 600.0, False, True),
        (256, 600.0, True, False),
        (13 << 10, 600.0, False, True),
        (14 << 10, 600.0, False, False),
    ],
)
async def test_only_what_takes_long_to_send_and_has_time_for_it_twice_is_copied(
    rig, size, left, others, worth
):
    _, operations, uid = await begun(rig)
    facts = operations._facts(operations._node.seats[uid])
    assert is_precopied(facts, size * MIB, left, others=others) is worth


@pytest.mark.parametrize("fault", ["dump-fails", "begin-fails", "seal-fails"])
async def test_without_a_copy_it_goes_all_the_same(rig, fault):
    r, operations, uid = await begun(rig)
    r.machine.faults.add(fault)
    one = await operations.ask(evict(uid))
    (copy,) = (each for each in operations.known(ended_too=False) if each is not one)
    await ended(copy)
    assert copy.state is Progress.FAILED
    r.machine.faults.discard(fault)
    await ended(one)
    assert (one.state, r.state(uid)) == (Progress.SUCCEEDED, AWAY)
    await only_its_own(r, uid)
    r.check()


async def test_a_copy_that_is_given_up_is_sent_no_further_beside_its_eviction(rig):
    """As one that has used up its time."""
    r, operations, uid = await begun(rig)
    r.machine.faults.add("store-slow")
    one = await operations.ask(evict(uid))
    await when(lambda: any(kept.packing for kept in r.machine.vault.values()))
    operations.cancel("e1_precopy")
    await when(lambda: r.state(uid) is SeatState.DUMPING)
    assert not any(kept.packing for kept in r.machine.vault.values())
    r.machine.faults.discard("store-slow")
    await ended(one)
    assert (one.state, r.state(uid)) == (Progress.SUCCEEDED, AWAY)
    await only_its_own(r, uid)
    r.check()


async def test_a_copy_that_is_cancelled_has_it_go_at_once(rig):
    r, operations, uid = await begun(rig)
    one = await operations.ask(evict(uid))
    operations.cancel("e1_precopy")
    await ended(one)
    assert (one.state, r.state(uid)) == (Progress.SUCCEEDED, AWAY)
    await only_its_own(r, uid)


@pytest.mark.parametrize(
    "word", ["", "is parking", "written down", "being sealed", "is copied", "dumping"]
)
async def test_an_eviction_that_is_cancelled_leaves_no_copy_and_the_seat_serves(rig, proxy, word):
    r, operations, uid = await begun(rig)
    r.machine.faults.add("store-down")
    one = await operations.ask(evict(uid))
    await when(lambda: word in one.sentence)
    operations.cancel("e1")
    p = proxy(r.loop)
    p.request(uid)
    await asyncio.sleep(60)
    assert (p.answered, r.state(uid), r.node.seats[uid].wishes.leave) == ({uid: 1}, ACTIVE, "")
    assert (r.machine.vault, r.machine.folders, kept(r)) == ({}, {}, set())
    assert operations.known(ended_too=False) == []
    r.check()


async def test_what_else_is_asked_for_the_seat_meets_the_eviction(rig):
    _, operations, uid = await begun(rig)
    await operations.ask(evict(uid))
    for kind in (Kind.SAVE, Kind.PARK, Kind.EVICT):
        with pytest.raises(Exception, match=r"^e1 \(evict of .* is under way for this seat"):
            await operations.ask(Ask(kind, "other", uid))


async def one_eviction(rig, machine):
    _, operations, uid = await begun(rig, machine=machine)
    await ended(await operations.ask(evict(uid)))
    await asyncio.sleep(30)


def test_how_many_writes_it_has(rig):
    machine = Machine(MEMORY)
    run_virtual(one_eviction(rig, machine))
    assert WRITES * 0.7 < machine.journal_writes < WRITES * 1.2


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash_at", range(6, WRITES, 2))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_agent_killed_at_any_write_evicts_all_the_same(rig, crash_at, after):
    machine = Machine(MEMORY)
    machine.crash_at, machine.crash_after = crash_at, after
    ends: list[float] = []

    async def first():
        quiet()
        try:
            await one_eviction(rig, machine)
        finally:
            ends.append(asyncio.get_running_loop().time())

    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(first())
    machine.crash_at = None
    gc.collect()

    async def second():
        r = rig(machine, tiers=BOTH, keep_left_s=100.0)
        r.node.park_budget = 100 * GIB
        await r.recover()
        operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
        r.node.observe(operations)
        operations.resume(r.node.world.journal.load())
        r.begin()
        uid = next(iter(r.node.seats))
        for one in operations.known(ended_too=True):
            await ended(one)
        if not operations.known(ended_too=True):  # its record was not written: nobody was told
            return
        assert operations.get("e1").state is Progress.SUCCEEDED
        assert r.state(uid) is AWAY
        await only_its_own(r, uid)
        r.check()

    run_virtual(second(), start=ends[0] + 1.0)
