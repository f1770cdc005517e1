"""Copies that TierPlacements want: made by named operations, and let go when nothing wants them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kybernate.core.artifacts.placed import Placed
from kybernate.core.seat.operations import Kind, Progress
from kybernate.errors import ConflictError, RefusedError, RetryableError
from kybernate.types import SeatState, Tier
from nodeagent.artifacts.reports import Kind as Told
from nodeagent.operations.operations import Operations
from nodeagent.operations.placing import EVERY_S, Placing
from nodeagent.operations.record import Ask
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash, Machine
from tests.unit.nodeagent.offloading import ended

GIB = 1 << 30
MEMORY = {"GPU-0": 80 * GIB, "GPU-1": 80 * GIB}
BOTH = {Tier.NVME: 100 * GIB, Tier.OBJECT: 1 << 62}
FAR = "shop/birch@20260131T120000Z-00000001"
NEAR = "shop/birch@20260131T120000Z-00000002"


class Copies:
    """Implements `PlacedCopies` without a disk: what is on it outlives the agent."""

    def __init__(self, size=10 * GIB):
        self.there, self.size, self.fails, self.brought, self.swept = {}, size, None, [], 0
        self.cut = set()

    def bring(self, artifact, room, deadline, progress):
        deadline.check()
        self.brought.append(artifact)
        if self.fails is not None:
            raise self.fails
        if self.size > room:
            raise RetryableError(f"NVMe has room for {room} bytes")
        progress(self.size // 2, self.size)
        progress(self.size, self.size)
        self.there[artifact] = self.size

    def drop(self, artifacts):
        self.swept += 1
        self.cut.clear()
        for one in artifacts:
            self.there.pop(one, None)

    def here(self):
        return tuple(sorted(self.there))

    def used(self):
        return sum(self.there.values()) + len(self.cut) * self.size

    def cut_short(self):
        return tuple(sorted(self.cut))


class Wanted:
    """What TierPlacements want."""

    def __init__(self, *copies, namespace="shop"):
        self.unlisted = None
        self.namespace, self.copies, self.artifacts = namespace, {*copies}, {*copies}

    def _one(self):
        rows = frozenset((one, "n1") for one in self.copies)
        return Placed(self.namespace, frozenset(self.artifacts), rows)

    def named(self, artifact):
        return self._one().counts(artifact, 0.0)

    def wants(self, artifact, node):
        return self._one().wants(artifact, node, 0.0)


class Reports:
    def __init__(self):
        self.told = []

    def put(self, report):
        self.told.append((report.kind, report.artifact, report.tier))


def begun(rig, wanted, copies, machine=None, tiers=BOTH):
    r = rig(machine, tiers=tiers)
    r.node.park_budget = 100 * GIB
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    reports = Reports()
    placing = Placing(r.loop.offload, copies, wanted, reports, operations.advanced)
    operations.carry(Kind.PLACE, placing)
    r.node.observe(operations)
    return SimpleNamespace(
        rig=r, operations=operations, placing=placing, reports=reports, copies=copies
    )


def place(artifact=FAR, tier=Tier.NVME, name="tpl-1"):
    return Ask(Kind.PLACE, name, by="kyb-controller", tier=tier, artifact=artifact)


async def test_a_copy_comes_and_the_registry_is_told(rig):
    a = begun(rig, Wanted(FAR), Copies())
    a.rig.begin()
    done = await ended(await a.operations.ask(place()))
    assert done.state is Progress.SUCCEEDED, done.sentence
    assert (done.bytes_done, done.bytes_total) == (10 * GIB, 10 * GIB)
    assert a.copies.here() == (FAR,)
    assert a.reports.told == [(Told.COPIED, FAR, "nvme")]


async def test_what_no_tierplacement_wants_is_copied_for_nobody(rig):
    """Also not for a controller whose key somebody has got hold of."""
    a = begun(rig, Wanted(NEAR), Copies())
    a.rig.begin()
    for ask in (place(FAR), place(FAR, Tier.OBJECT), place("other/birch@1")):
        with pytest.raises(RetryableError, match="knows of no TierPlacement"):
            await a.operations.ask(ask)
        with pytest.raises(RetryableError, match="knows of no TierPlacement"):
            a.operations.plan(ask)
    a.operations.plan(place(NEAR))
    assert a.copies.brought == []


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (place(FAR, Tier.RAM), "nvme or object as its tier"),
        (place("", Tier.NVME), "name an artifact"),
    ],
)
async def test_what_can_not_be_is_refused(rig, ask, words):
    a = begun(rig, Wanted(FAR), Copies())
    a.rig.begin()
    with pytest.raises(RefusedError, match=words):
        await a.operations.ask(ask)


async def test_without_a_store_it_is_refused(rig):
    a = begun(rig, Wanted(FAR), None, tiers={Tier.NVME: GIB})
    a.rig.begin()
    with pytest.raises(RefusedError, match=r"no object store.*\(object_store\)"):
        await a.operations.ask(place())


async def test_one_of_a_name_is_found_and_another_of_it_is_a_conflict(rig):
    a = begun(rig, Wanted(FAR, NEAR), Copies())
    a.rig.begin()
    one = await a.operations.ask(place())
    assert await a.operations.ask(place()) is one
    with pytest.raises(ConflictError):
        await a.operations.ask(place(NEAR))
    await ended(one)
    assert a.copies.brought == [FAR]


async def test_what_fails_is_told_and_may_be_asked_for_again(rig):
    a = begun(rig, Wanted(FAR), Copies())
    a.rig.begin()
    a.copies.fails = OSError(28, "No space left on device")
    done = await ended(await a.operations.ask(place()))
    assert done.state is Progress.FAILED
    assert "No space left" in done.sentence
    assert a.reports.told == []
    a.copies.fails = None
    done = await ended(await a.operations.ask(place(name="tpl-2")))
    assert done.state is Progress.SUCCEEDED


async def test_several_that_are_asked_for_at_once_have_not_more_room_than_there_is(rig):
    a = begun(rig, Wanted(FAR, NEAR), Copies(size=60 * GIB))

    async def slow(call, _seconds):
        await asyncio.sleep(1.0)
        return call()

    a.rig.node.world = replace(a.rig.node.world, blocking=slow)
    a.rig.begin()
    both = [await a.operations.ask(place(FAR)), await a.operations.ask(place(NEAR, name="tpl-2"))]
    ended_so = [(await ended(one)).state for one in both]
    assert ended_so == [Progress.SUCCEEDED, Progress.FAILED]
    assert "has room for" in both[1].sentence
    assert a.copies.used() == 60 * GIB


@pytest.mark.parametrize("wanted", [True, False])
async def test_what_was_cut_short_goes_unless_it_is_to_be_continued(rig, wanted):
    a = begun(rig, Wanted(*([FAR] if wanted else [])), Copies(size=30 * GIB))
    a.rig.begin()
    await a.placing.tidy()
    a.copies.cut.add(FAR)
    await a.placing.tidy()
    assert a.copies.cut_short() == ((FAR,) if wanted else ())
    a.copies.cut.add(FAR)
    a.copies.size = 200 * GIB
    await a.placing.tidy()
    assert a.copies.cut_short() == (), "states of seats need its room"


async def test_it_takes_no_room_of_seats_states(rig):
    a = begun(rig, Wanted(FAR), Copies(size=70 * GIB))
    a.rig.begin()
    uid = await a.rig.seat("a", delay=0.0)
    await a.rig.until(uid, SeatState.ACTIVE)
    await ended(await a.operations.ask(Ask(Kind.PARK, "p", uid, tier=Tier.NVME)))
    done = await ended(await a.operations.ask(place()))
    assert done.state is Progress.FAILED
    assert "has room for" in done.sentence


async def test_it_goes_where_a_seats_state_needs_its_room(rig):
    a = begun(rig, Wanted(FAR), Copies(size=70 * GIB))
    a.rig.begin()
    uid = await a.rig.seat("a", delay=0.0)
    await a.rig.until(uid, SeatState.ACTIVE)
    await ended(await a.operations.ask(place()))
    await a.placing.tidy()
    assert a.copies.here() == (FAR,)
    await ended(await a.operations.ask(Ask(Kind.PARK, "p", uid, tier=Tier.NVME)))
    assert a.rig.state(uid) is SeatState.PARKED_NVME
    await a.placing.tidy()
    assert a.copies.here() == ()
    assert a.reports.told[-1] == (Told.DROPPED, FAR, "nvme")
    a.rig.check()


async def test_it_goes_when_nothing_wants_it_and_not_before_that_is_known(rig):
    wanted = Wanted(FAR)
    a = begun(rig, wanted, Copies())
    a.rig.begin()
    await ended(await a.operations.ask(place()))
    running = asyncio.ensure_future(a.placing.run())
    await asyncio.sleep(3 * EVERY_S)
    assert a.copies.here() == (FAR,)
    wanted.copies.clear()
    wanted.unlisted = "the list is under way"
    await asyncio.sleep(3 * EVERY_S)
    assert a.copies.here() == (FAR,)
    wanted.unlisted = None
    await asyncio.sleep(3 * EVERY_S)
    assert a.copies.here() == ()
    running.cancel()


async def test_what_this_node_has_goes_into_the_store_while_its_seat_rests(rig):
    wanted = Wanted(namespace="default")
    a = begun(rig, wanted, Copies())
    a.rig.begin()
    uid = await a.rig.seat("a", delay=0.0)
    await a.rig.until(uid, SeatState.ACTIVE)
    await ended(await a.operations.ask(Ask(Kind.PARK, "p", uid, tier=Tier.NVME)))
    artifact = a.rig.node.seats[uid].saved.artifact
    wanted.artifacts.add(artifact)
    done = await ended(await a.operations.ask(place(artifact, Tier.OBJECT)))
    assert done.state is Progress.SUCCEEDED, done.sentence
    assert Tier.OBJECT in a.rig.machine.vault[artifact].places
    assert done.bytes_done == done.bytes_total > 0
    a.rig.check()


WRITES = 5


async def one_copy(rig, machine, copies):
    a = begun(rig, Wanted(FAR), copies, machine)
    a.rig.begin()
    await ended(await a.operations.ask(place()))


def test_how_many_writes_a_copy_has(rig):
    machine = Machine(MEMORY)
    run_virtual(one_copy(rig, machine, Copies()))
    assert 2 <= machine.journal_writes <= WRITES


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash_at", range(1, WRITES))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_agent_killed_at_any_write_places_it_all_the_same(rig, crash_at, after):
    """Its controller asks for the same again."""
    machine, copies = Machine(MEMORY), Copies()
    machine.crash_at, machine.crash_after = crash_at, after

    async def first():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await one_copy(rig, machine, copies)

    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(first())
    machine.crash_at = None
    gc.collect()

    async def second():
        a = begun(rig, Wanted(FAR), copies, machine)
        await a.rig.recover()
        a.operations.resume(a.rig.node.world.journal.load())
        a.rig.begin()
        for one in a.operations.known(ended_too=True):
            await ended(one)
        done = await ended(await a.operations.ask(place()))
        assert done.state is Progress.SUCCEEDED, done.sentence
        assert len(a.operations.known(ended_too=True)) == 1
        await a.placing.tidy()
        assert copies.here() == (FAR,)
        assert copies.swept, "packs of a copy that never was whole go"

    run_virtual(second(), start=1000.0)
