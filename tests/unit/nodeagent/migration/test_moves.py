"""Moves: the workload goes on in one place, whoever dies when."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.core.seat.operations import Kind, Progress
from kybernate.errors import DeadlineError, RefusedError, RetryableError
from kybernate.types import SeatState, Tier
from nodeagent.api.streams import Streams
from nodeagent.migration.journal import MOVE
from nodeagent.operations.record import Ask
from nodeagent.operations.wire import operation_message
from tests.unit.nodeagent.moving import ACTIVE, NVME, There, begun, move
from tests.unit.nodeagent.offloading import ended, when


async def test_a_seat_that_serves_goes_on_elsewhere_and_never_wakes_here(rig, proxy):
    there = There()
    r, operations, uid = await begun(rig, there)
    p = proxy(r.loop)
    done = await ended(await operations.ask(move(uid)))
    seat = r.node.seats[uid]
    assert done.state is Progress.SUCCEEDED, done.sentence
    assert there.taken in done.sentence
    assert there.taken == seat.saved.artifact
    assert there.followed == 1
    assert operation_message(done).successor == "b"
    assert {"met", "staged", "sent", "delivered", "ended", "all"} <= done.phases.keys()
    p.request(uid)
    r.loop.operators.request_wake(uid, "a test")
    await asyncio.sleep(60)
    assert r.state(uid) is NVME
    other = Ask(Kind.MOVE, "m2", uid, by="ops", successor="c")
    for ask in (Ask(Kind.WAKE, "w1", uid), other, Ask(Kind.SAVE, "s1", uid)):
        with pytest.raises(RefusedError, match="continues with its state"):
            await operations.ask(ask)
    assert not r.machine.gates, "old clients hear that it is gone"
    r.check()


async def test_a_seat_that_forgot_while_it_woke_where_it_should_be_moves_all_the_same(rig):
    r, operations, uid = await begun(rig, There())
    operation = await operations.ask(move(uid))
    await when(lambda: r.state(uid) is SeatState.PARKING)
    r.node.seats[uid].wishes.tier_asked = ""
    assert (await ended(operation)).state is Progress.SUCCEEDED


async def test_proxies_hear_no_more_of_a_seat_that_was_moved(rig):
    r, operations, uid = await begun(rig, There())
    streams, told = Streams(r.loop.proxies, r.loop.offload.departures), []
    r.node.observe(streams)
    session = streams._join("p1")
    session.seat = lambda seat, _within: told.append(seat.uid)
    session.gone = lambda uid: told.append(f"gone {uid}")
    await ended(await operations.ask(move(uid)))
    assert told[-1] == f"gone {uid}"
    assert not streams._join("p2")._seats
    assert uid in told


async def test_one_that_is_parked_below_ram_is_sent_as_it_lies(rig):
    there = There()
    r, operations, uid = await begun(rig, there)
    await ended(await operations.ask(Ask(Kind.PARK, "p1", uid, tier=Tier.NVME)))
    artifact = r.node.seats[uid].saved.artifact
    done = await ended(await operations.ask(move(uid)))
    assert (done.state, there.taken) == (Progress.SUCCEEDED, artifact)
    assert there.followed == 0


@pytest.mark.parametrize("call", ["expect", "deliver"])
async def test_what_goes_wrong_before_the_end_leaves_it_here(rig, proxy, call):
    there = There()
    there.fails = {call: [RefusedError("it does not wait")]}
    r, operations, uid = await begun(rig, there)
    p = proxy(r.loop)
    done = await ended(await operations.ask(move(uid)))
    assert done.state is Progress.FAILED
    assert "it does not wait" in done.sentence
    await r.until(uid, ACTIVE)
    p.request(uid)
    await asyncio.sleep(1)
    assert p.answered == {uid: 1}
    assert not there.taken
    assert MOVE + uid not in r.machine.journal
    again = await ended(await operations.ask(move(uid, "m2")))
    assert again.state is Progress.SUCCEEDED, again.sentence
    r.check()


async def test_a_stream_that_breaks_only_takes_longer(rig):
    there = There()
    there.fails = {"stage": [RetryableError("lost")], "follow": [RetryableError("lost")]}
    _r, operations, uid = await begun(rig, there)
    assert (await ended(await operations.ask(move(uid)))).state is Progress.SUCCEEDED


async def test_what_went_by_the_object_store_outlives_its_pod_until_the_successor_has_it(rig):
    r, operations, uid = await begun(rig, There())
    await ended(await operations.ask(Ask(Kind.PARK, "p1", uid, tier=Tier.OBJECT)))
    artifact = r.node.seats[uid].saved.artifact
    await ended(await operations.ask(move(uid)))
    r.loop.pod_gone(uid)
    r.machine.end_container(uid)
    while uid in r.node.seats:  # noqa: ASYNC110 - the machine's time is made up
        await asyncio.sleep(0.01)
    await asyncio.sleep(30)
    assert Tier.OBJECT in r.machine.vault[artifact].places


async def test_a_move_that_is_cancelled_leaves_it_here(rig):
    there = There()
    r, operations, uid = await begun(rig, there)
    one = await operations.ask(move(uid))
    await r.until(uid, SeatState.DUMPING)
    operations.cancel("m1")
    assert one.state is Progress.CANCELLED
    await r.until(uid, ACTIVE)
    await asyncio.sleep(5)
    assert (there.taken, there.called_off) == ("", 1)
    assert not r.node.seats[uid].wishes.leave
    r.check()


async def test_what_can_not_be_dumped_is_not_moved(rig):
    there = There()
    r, operations, uid = await begun(rig, there)
    r.machine.refusals = {uid: "io_uring"}
    offloading = r.node.world.offloading

    async def check(*_):
        return ("it has io_uring",)

    offloading.dumper.check = check
    done = await ended(await operations.ask(move(uid)))
    assert done.state is Progress.FAILED
    assert "io_uring" in done.sentence
    await r.until(uid, ACTIVE)


async def test_a_dry_run_says_what_would_happen(rig):
    r, operations, uid = await begun(rig, There())
    steps = operations.plan(move(uid))
    assert "restore-from: pod/uid-a" in steps[0]
    assert len(steps) == 7
    with pytest.raises(RefusedError, match="successor"):
        operations.plan(Ask(Kind.MOVE, "", uid))
    assert r.state(uid) is ACTIVE


async def test_a_dump_that_comes_to_nothing_after_its_delivery_is_repeated(rig):
    there = There()
    r, operations, uid = await begun(rig, there, dump_retry_s=1.0)
    vault, sizes = r.node.world.offloading.vault, []
    manifest = vault.manifest

    async def unread(artifact, deadline):
        sizes.append(artifact)
        if len(sizes) == 1:
            raise DeadlineError("the disk is slow")
        return await manifest(artifact, deadline)

    vault.manifest = unread
    done = await ended(await operations.ask(move(uid)))
    assert done.state is Progress.SUCCEEDED, done.sentence
    assert len(there.keeps) == 2
    assert there.taken == r.node.seats[uid].saved.artifact
    assert there.taken != sizes[0]
    r.check()
