"""Save games: a seat's state is kept, and the seat goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
from dataclasses import asdict, replace

import pytest

from kybernate.core.artifacts.holds import SAVED
from kybernate.core.seat.operations import Kind, Progress
from kybernate.errors import RefusedError
from kybernate.types import SeatState, Tier
from nodeagent.operations.operations import Operations
from nodeagent.operations.record import Ask, from_record
from nodeagent.operations.wire import operation_message
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash, Machine
from tests.unit.nodeagent.offloading import ended

GIB = 1 << 30
WRITES = 36
MEMORY = {"GPU-0": 80 * GIB, "GPU-1": 80 * GIB}
NVME = {Tier.NVME: 1000 * GIB}
BOTH = {**NVME, Tier.OBJECT: 1 << 62}
ACTIVE, PARKED, BELOW = SeatState.ACTIVE, SeatState.PARKED, SeatState.PARKED_NVME


async def begun(rig, tiers=NVME, **more):
    r = rig(tiers=tiers, **more)
    r.node.park_budget = 100 * GIB
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    r.begin()
    uid = await r.seat("a", delay=0.0)
    await r.until(uid, ACTIVE)
    return r, operations, uid


def save(uid, name="s1", **more):
    return Ask(Kind.SAVE, name, uid, by="ops", **more)


def kept(r):
    return {key.removeprefix(SAVED) for key in r.node.world.journal.load() if key.startswith(SAVED)}


async def test_a_seat_that_serves_is_saved_and_serves_on(rig):
    r, operations, uid = await begun(rig)
    done = await ended(await operations.ask(save(uid)))
    assert done.state is Progress.SUCCEEDED, done.sentence
    assert done.artifact in done.sentence
    assert kept(r) == {done.artifact} == r.machine.vault.keys()
    await r.until(uid, ACTIVE)
    states = [state for one, state in r.seen.states if one == uid]
    assert BELOW not in states, "its processes are never ended"
    message = operation_message(done)
    assert (message.artifact, message.saved.tier) == (done.artifact, "nvme")
    assert (message.saved.outlives_pod, message.saved.bytes) == (True, 40 * GIB)
    assert {"check", "gate", "dump", "seal"} <= done.phases.keys()
    assert (r.machine.gates, r.machine.dumps) == ({}, {})
    assert not r.node.seats[uid].wishes.leave
    assert ("Saved", f"saved by ops: {done.sentence}") in r.seen.events
    r.check()


async def test_a_request_that_comes_while_it_is_saved_is_answered_after_it(rig, proxy):
    r, operations, uid = await begun(rig)
    p = proxy(r.loop)
    one = await operations.ask(save(uid))
    await r.until(uid, SeatState.DUMPING)
    p.request(uid)
    await ended(one)
    await r.until(uid, ACTIVE)
    await asyncio.sleep(1)
    assert one.state is Progress.SUCCEEDED
    assert p.answered == {uid: 1}
    r.check()


async def test_a_parked_seat_is_saved_and_stays_parked(rig):
    r, operations, uid = await begun(rig)
    await ended(await operations.ask(Ask(Kind.PARK, "p1", uid)))
    done = await ended(await operations.ask(save(uid)))
    assert (done.state, r.state(uid)) == (Progress.SUCCEEDED, PARKED)
    await asyncio.sleep(60)
    assert r.state(uid) is PARKED
    r.check()


async def test_an_evicted_seat_stays_evicted(rig, proxy):
    r, operations, uid = await begun(rig)
    await ended(await operations.ask(Ask(Kind.EVICT, "e1", uid)))
    done = await ended(await operations.ask(save(uid)))
    assert done.state is Progress.SUCCEEDED
    proxy(r.loop).request(uid)
    await asyncio.sleep(5)
    assert (r.state(uid), r.node.seats[uid].wishes.stays_away) == (PARKED, True)


async def test_the_state_of_a_seat_below_ram_is_kept_as_it_is_there(rig, proxy):
    r, operations, uid = await begun(rig)
    await ended(await operations.ask(Ask(Kind.PARK, "p1", uid, tier=Tier.NVME)))
    artifact = r.node.seats[uid].saved.artifact
    done = await ended(await operations.ask(save(uid)))
    assert (done.artifact, r.state(uid)) == (artifact, BELOW)
    proxy(r.loop).request(uid)
    await r.until(uid, ACTIVE)
    await asyncio.sleep(5)
    assert r.machine.vault.keys() == {artifact}, "it outlives the wake that it was made for"
    r.check()


async def test_with_an_object_store_it_is_kept_there_and_leaves_the_node(rig):
    r, operations, uid = await begun(rig, BOTH)
    r.machine.faults.add("store-down")
    done = await ended(await operations.ask(save(uid)))
    assert "store-down" not in r.machine.faults, "it was tried before"
    assert done.state is Progress.SUCCEEDED
    assert r.machine.vault[done.artifact].places == {Tier.OBJECT}
    assert "in the object store" in done.sentence
    assert r.loop.custody.bytes_in(Tier.NVME) == 0
    near = await ended(await operations.ask(save(uid, "s2", tier=Tier.NVME)))
    assert r.machine.vault[near.artifact].places == {Tier.NVME}
    r.check()


async def test_that_it_is_kept_in_the_object_store_is_told_to_the_registry(rig):
    r, operations, uid = await begun(rig, BOTH)
    r.node.world = replace(r.node.world, registry=r.loop.registry)

    def told():
        return [one.artifact for one in r.loop.reports._queue.values() if one.person_hold]

    await ended(await operations.ask(save(uid, "s0", tier=Tier.NVME)))
    assert told() == []
    one = await ended(await operations.ask(save(uid)))
    await ended(await operations.ask(Ask(Kind.PARK, "p1", uid, tier=Tier.OBJECT)))
    parked = await ended(await operations.ask(save(uid, "s2")))
    assert told() == [one.artifact, parked.artifact]


async def test_how_much_is_in_the_object_store_is_told(rig):
    r, operations, uid = await begun(rig, BOTH)
    operation, told = await operations.ask(save(uid)), []
    while not operation.ended:
        message = operation_message(operation)
        told.append((message.bytes_done, message.bytes_total))
        await asyncio.sleep(0.005)
    size = operation.saved
    assert told[0] == (0, 0), "nothing is sealed yet"
    assert (size // 2, size) in told
    assert operation_message(operation).bytes_done == size
    assert from_record(asdict(operation)) == operation
    older = {name: one for name, one in asdict(operation).items() if "bytes" not in name}
    assert from_record(older).bytes_total == 0
    r.check()


async def test_what_is_kept_takes_its_room_on_nvme_until_it_is_deleted(rig):
    r, operations, uid = await begun(rig, {Tier.NVME: 120 * GIB})
    r.node.seen = dict.fromkeys(r.node.seats, 40 * GIB)
    for number in range(2):
        done = await ended(await operations.ask(save(uid, f"s{number}")))
        assert done.state is Progress.SUCCEEDED, done.sentence
        await r.until(uid, ACTIVE)
    r.node.seen = dict.fromkeys(r.node.seats, 41 * GIB)
    full = await ended(await operations.ask(save(uid, "s2")))
    assert full.state is Progress.FAILED
    assert "delete artifacts (kybernate artifacts rm)" in full.sentence
    assert r.state(uid) is ACTIVE, "it was not even parked for that"
    assert "42949672960 bytes, and it takes 44023414784" in full.sentence
    del r.machine.vault[done.artifact]
    done = await ended(await operations.ask(save(uid, "s3")))
    assert done.state is Progress.SUCCEEDED
    assert len(kept(r)) == 2
    r.check()


async def test_what_is_forgotten_by_its_operation_goes_and_nothing_else_does(rig):
    r, operations, uid = await begun(rig, BOTH)
    first = await ended(await operations.ask(save(uid)))
    second = await ended(await operations.ask(save(uid, "s2")))
    assert kept(r) == {first.artifact, second.artifact} == r.machine.vault.keys()
    assert operations.forget("s1", "one of many") == first.artifact
    await asyncio.sleep(5)
    assert kept(r) == {second.artifact} == r.machine.vault.keys()
    assert operations.forget("s1", "one of many") == "", "asked again it does nothing"
    assert operations.forget("nobody", "x") == ""
    await ended(await operations.ask(Ask(Kind.PARK, "p1", uid, tier=Tier.NVME)))
    await asyncio.sleep(5)
    assert second.artifact in r.machine.vault
    assert r.state(uid) is BELOW
    r.check()


async def test_what_a_seat_itself_lies_in_stays_for_it(rig, proxy):
    r, operations, uid = await begun(rig)
    await ended(await operations.ask(Ask(Kind.PARK, "p1", uid, tier=Tier.NVME)))
    done = await ended(await operations.ask(save(uid)))
    assert operations.forget("s1", "one of many") == done.artifact
    await asyncio.sleep(30)
    assert r.machine.vault.keys() == {done.artifact}
    proxy(r.loop).request(uid)
    await r.until(uid, ACTIVE)
    await asyncio.sleep(5)
    assert r.machine.vault == {}
    r.check()


async def test_a_deleted_pod_leaves_what_was_saved_of_it(rig):
    r, operations, uid = await begun(rig)
    done = await ended(await operations.ask(save(uid)))
    await r.until(uid, ACTIVE)
    r.loop.pod_gone(uid)
    r.machine.end_container(uid)
    await asyncio.sleep(30)
    assert uid not in r.node.seats
    assert r.machine.vault.keys() == {done.artifact}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("undumpable", "io_uring"),
        ("dump-refused", "a connection waits to be accepted"),
        ("dump-fails", "No space left"),
        ("begin-fails", "No space left"),
        ("seal-fails", "could not be sealed: .*No space left"),
    ],
)
async def test_what_goes_wrong_is_told_and_the_seat_serves_on(rig, proxy, fault, words):
    r, operations, uid = await begun(rig)
    r.machine.faults.add(fault)
    done = await ended(await operations.ask(save(uid)))
    assert done.state is Progress.FAILED
    assert re.search(words, done.sentence)
    r.machine.faults.discard(fault)
    await r.until(uid, ACTIVE)
    await asyncio.sleep(5)
    assert (r.machine.vault, r.machine.folders, r.machine.gates) == ({}, {}, {})
    p = proxy(r.loop)
    p.request(uid)
    await asyncio.sleep(5)
    assert p.answered == {uid: 1}
    done = await ended(await operations.ask(save(uid, "s2")))
    assert done.state is Progress.SUCCEEDED
    r.check()


async def test_a_workload_that_ends_while_it_is_written_is_told(rig):
    r, operations, uid = await begun(rig)
    one = await operations.ask(save(uid))
    await r.until(uid, SeatState.DUMPING)
    r.machine.end_container(uid)
    done = await ended(one)
    assert done.state is Progress.FAILED
    assert "ended" in done.sentence
    assert r.machine.vault == {}


@pytest.mark.parametrize("state", [SeatState.PARKING, SeatState.DUMPING, None])
async def test_a_save_that_is_cancelled_leaves_nothing_and_the_seat_serves(rig, state):
    r, operations, uid = await begun(rig)
    one = await operations.ask(save(uid))
    for _ in range(10_000):
        if state in (None, r.state(uid)):
            break
        await asyncio.sleep(0.0001)
    operations.cancel("s1")
    await r.until(uid, ACTIVE)
    await asyncio.sleep(5)
    assert one.state is Progress.CANCELLED
    assert (r.state(uid), r.node.seats[uid].wishes.leave) == (ACTIVE, "")
    assert (r.machine.vault, r.machine.folders, kept(r)) == ({}, {}, set())
    r.check()


@pytest.mark.parametrize(
    ("tiers", "pin", "tier", "words"),
    [
        (None, Tier.OBJECT, None, r"no tier nvme, only ram; give its agent one \(criu\)"),
        (NVME, Tier.OBJECT, Tier.OBJECT, r"no tier object.*\(object_store\)"),
        (NVME, Tier.OBJECT, Tier.RAM, r"keep it in nvme or object"),
        (NVME, Tier.RAM, None, r"no deeper than ram \(kyb.ai/park-tier\)"),
    ],
)
async def test_what_can_not_be_kept_is_refused_at_once(rig, tiers, pin, tier, words):
    r, operations, uid = await begun(rig, tiers)
    r.node.seats[uid].wishes.park_tier = pin.value
    with pytest.raises(RefusedError, match=words):
        await operations.ask(save(uid, tier=tier))
    with pytest.raises(RefusedError, match=words):
        operations.plan(save(uid, tier=tier))


async def test_a_dry_run_says_what_would_happen(rig):
    r, operations, uid = await begun(rig, BOTH)
    steps = operations.plan(save(uid))
    assert "let end" in steps[0]
    assert "woken at once" in steps[2]
    assert "copied to the object store" in steps[3]
    await ended(await operations.ask(Ask(Kind.PARK, "p1", uid, tier=Tier.NVME)))
    assert "has there is kept" in operations.plan(save(uid))[0]
    assert r.machine.vault.keys() == {r.node.seats[uid].saved.artifact}


async def one_save(rig, machine):
    """A seat that serves is saved, and serves on."""
    r, operations, uid = await begun(rig, BOTH, machine=machine)
    await ended(await operations.ask(save(uid)))
    await r.until(uid, ACTIVE)


def go_on(rig, proxy, machine, start):
    """The next agent: the save ends well, once, and nothing else of it is left."""
    gc.collect()
    alive = dict(machine.inits)

    async def second():
        r = rig(machine, tiers=BOTH)
        r.node.park_budget = 100 * GIB
        await r.recover()
        operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
        r.node.observe(operations)
        operations.resume(r.node.world.journal.load())
        r.begin()
        uid = next(iter(r.node.seats))
        asked = operations.known(ended_too=True)
        for one in asked:
            await ended(one)
            assert one.state is Progress.SUCCEEDED, one.sentence
        p = proxy(r.loop)
        p.request(uid)
        await asyncio.sleep(20)
        assert p.answered == {uid: 1}
        assert (machine.inits, r.state(uid), r.node.seats[uid].wishes.leave) == (alive, ACTIVE, "")
        assert {one.artifact for one in asked} == machine.vault.keys() == kept(r)
        assert all(one.places == {Tier.OBJECT} for one in machine.vault.values())
        assert (machine.dumps, machine.gates) == ({}, {})
        r.check()

    run_virtual(second(), start=start)


def test_how_many_writes_a_save_has(rig):
    machine = Machine(MEMORY)
    run_virtual(one_save(rig, machine))
    assert WRITES * 0.7 < machine.journal_writes < WRITES * 1.2


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash_at", range(6, WRITES))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_agent_killed_at_any_write_saves_all_the_same(rig, proxy, crash_at, after):
    machine = Machine(MEMORY)
    machine.crash_at, machine.crash_after = crash_at, after
    ends: list[float] = []

    async def first():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        try:
            await one_save(rig, machine)
        finally:
            ends.append(asyncio.get_running_loop().time())

    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(first())
    machine.crash_at = None
    go_on(rig, proxy, machine, ends[0] + 1.0)


@pytest.mark.parametrize("steps", range(40))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_agent_killed_between_two_calls_saves_all_the_same(rig, proxy, steps):
    machine = Machine(MEMORY)
    ends: list[float] = []

    async def first():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        r, operations, uid = await begun(rig, BOTH, machine=machine)
        await operations.ask(save(uid))
        await r.until(uid, SeatState.DUMPING)
        ends.append(loop.time() + steps * machine.step() / 3)
        loop.call_at(ends[0], loop.stop)
        await asyncio.sleep(60)

    with contextlib.suppress(RuntimeError):  # the loop was stopped
        run_virtual(first())
    go_on(rig, proxy, machine, ends[0] + 1.0)
