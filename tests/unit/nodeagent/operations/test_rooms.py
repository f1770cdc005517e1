"""How much room NVMe has: all that is written, fetched or read there counts, sealed or not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kybernate.core.seat.operations import Kind, Progress
from kybernate.types import SeatState, Tier
from nodeagent.artifacts.awaited import Awaited
from nodeagent.operations.operations import Operations
from nodeagent.operations.placing import Placing
from nodeagent.operations.record import Ask
from tests.unit.nodeagent.conftest import G1
from tests.unit.nodeagent.offloading import ACTIVE, GIB, NVME, OBJECT, down, ended, two, when

ROOM = 100 * GIB
SIZE = 40 * GIB


async def rooms(r):
    """What fetches ahead, saves, placed copies and moves have left of NVMe."""
    offload = r.loop.offload
    placing = Placing(offload, None, SimpleNamespace(), None, lambda _: None)
    awaited = Awaited(r.node, None, None, offload.unsealed)
    return {offload.free(), await placing.room(), await awaited.room()}


def made(rig, room=ROOM):
    return rig(tiers={Tier.NVME: room, Tier.OBJECT: 1 << 62}, tier_residency_s=0.0)


async def test_what_was_fetched_takes_its_room_as_what_is_sealed_does(rig):
    r = made(rig)
    cold, _ = await two(r)
    assert await rooms(r) == {ROOM}
    await down(r, cold)
    assert await rooms(r) == {ROOM - SIZE}
    await down(r, cold, OBJECT)
    await when(lambda: r.node.seats[cold].saved.copies == {Tier.OBJECT})
    assert await rooms(r) == {ROOM}
    await down(r, cold, NVME)
    assert r.node.seats[cold].saved.copies == {Tier.OBJECT}
    assert await rooms(r) == {ROOM - SIZE}
    r.loop.operators.ask_for_tier(cold, Tier.RAM)
    await r.until(cold, SeatState.PARKED)
    assert await rooms(r) == {ROOM - SIZE}
    r.check()


@pytest.mark.parametrize("state", [NVME, OBJECT])
async def test_what_a_tree_that_runs_reads_from_takes_its_room_until_all_is_in(rig, proxy, state):
    r = made(rig)
    r.loop.offload.lazies.pays = lambda _: True
    cold, _ = await two(r)
    await down(r, cold, state)
    r.machine.faults.add("pages-late")
    proxy(r.loop).request(cold)
    await r.until(cold, ACTIVE)
    assert r.node.seats[cold].saved.paging
    assert r.loop.offload.free() == ROOM - SIZE
    assert r.loop.offload.others_in(Tier.NVME) == SIZE
    await when(lambda: not r.node.seats[cold].saved.paging)
    await when(lambda: not r.machine.vault)
    assert await rooms(r) == {ROOM}
    r.check()


async def test_a_dump_that_is_under_way_takes_its_room(rig):
    r = made(rig)
    cold, _ = await two(r)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await r.until(cold, SeatState.DUMPING)
    assert await rooms(r) == {ROOM - SIZE}


async def saving(r):
    """Operations, and two seats on GPUs of their own."""
    r.node.park_budget = 1000 * GIB
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    r.begin()
    some = {"delay": 0.0, "vram": SIZE}
    uids = await r.seat("a", **some), await r.seat("b", G1, **some)
    for uid in uids:
        await r.until(uid, ACTIVE)
    return operations, uids


def save(uid):
    return Ask(Kind.SAVE, f"save-{uid}", uid, by="ops", tier=Tier.NVME)


async def test_of_two_snapshots_that_begin_together_the_second_finds_the_room_taken(rig):
    r = made(rig, room=SIZE + 5 * GIB)
    operations, uids = await saving(r)
    one, two = [await operations.ask(save(uid)) for uid in uids]
    assert (await ended(one)).state is Progress.SUCCEEDED, one.sentence
    assert (await ended(two)).state is Progress.FAILED
    assert "NVMe has room for" in two.sentence
    r.check()


async def test_a_snapshot_takes_its_room_from_its_beginning_to_its_end(rig):
    r = made(rig)
    operations, (uid, _) = await saving(r)
    going, seen = await operations.ask(save(uid)), []

    def over():
        seen.append(r.loop.offload.free())
        assert seen[-1] < ROOM or r.state(uid) in (ACTIVE, SeatState.DRAINING)
        return going.ended

    await when(over)
    assert set(seen) == {ROOM, ROOM - SIZE}
    assert seen == sorted(seen, reverse=True), "it never counts twice, nor not at all"
    assert not r.loop.offload.saves
    r.check()


async def test_a_snapshot_that_is_cancelled_before_it_is_written_leaves_its_room(rig):
    r = made(rig)
    operations, (uid, _) = await saving(r)
    going = await operations.ask(save(uid))
    await when(lambda: r.loop.offload.saves)
    assert r.loop.offload.free() == ROOM - SIZE
    operations.cancel(going.name)
    await ended(going)
    assert not r.loop.offload.saves
    r.check()


async def test_what_is_sealed_and_not_noted_yet_counts_once(rig):
    r = made(rig)
    cold, _ = await two(r)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await when(lambda: cold in r.loop.custody.unnoted)
    assert await rooms(r) == {ROOM - SIZE}
    await r.until(cold, NVME)
    assert await rooms(r) == {ROOM - SIZE}
    r.check()


@pytest.mark.parametrize("state", [SeatState.DUMPING, NVME])
async def test_a_snapshot_that_keeps_what_is_there_asks_for_no_more_room(rig, state):
    r = made(rig, room=SIZE + 5 * GIB)
    uid, _ = await two(r)
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    r.loop.operators.ask_for_tier(uid, Tier.NVME)
    await r.until(uid, state)
    going = await operations.ask(save(uid))
    assert (await ended(going)).state is Progress.SUCCEEDED, going.sentence
    assert not r.loop.offload.saves
    r.check()
