"""The beginning of a move: its successor is met, while the workload serves on."""

from __future__ import annotations

import asyncio
import gc

from kybernate.core.seat.operations import Kind, Progress
from kybernate.errors import NotFoundError, RefusedError, RetryableError
from kybernate.types import Tier
from nodeagent.operations.record import Ask
from tests.kit.clock import run_virtual
from tests.kit.machine import Machine
from tests.unit.nodeagent.moving import (
    ACTIVE,
    GIB,
    MEMORY,
    There,
    agent_dies_in_the_dump,
    begun,
    move,
    next_agent,
)
from tests.unit.nodeagent.offloading import ended, when
from tests.unit.nodeagent.seat.test_weights import weighing


async def test_a_state_of_before_goes_first(rig):
    there = There()
    r, operations, uid = await begun(rig, there)
    saved = await ended(await operations.ask(Ask(Kind.SAVE, "s1", uid, tier=Tier.NVME)))
    await r.until(uid, ACTIVE)
    await ended(await operations.ask(move(uid)))
    assert there.staged == [saved.artifact]
    assert there.taken != saved.artifact


async def test_where_the_other_node_has_no_room_it_serves_on(rig):
    there = There()
    there.fails = {"expect": [RefusedError("NVMe of node n2 has room for 7 bytes")]}
    r, operations, uid = await begun(rig, there)
    weighing(r, 3 * GIB)
    done = await ended(await operations.ask(move(uid)))
    assert (done.state, r.state(uid)) == (Progress.FAILED, ACTIVE)
    assert "has room for 7 bytes" in done.sentence
    # Its own memory, and that of its GPU.
    assert there.sizes == [3 * GIB + r.node.park_size(r.node.seats[uid])]
    assert r.machine.dumps == {}
    await ended(await operations.ask(Ask(Kind.PARK, "p1", uid, tier=Tier.NVME)))
    await ended(await operations.ask(move(uid, "m2")))
    assert there.sizes[1:] == [r.node.seats[uid].saved.size]


async def test_the_successor_is_waited_for(rig):
    there = There()
    there.fails = {
        "find": [NotFoundError("no pod b")],
        "expect": [RetryableError("not yet")] * 3,
    }
    r, operations, uid = await begun(rig, there)
    one = await operations.ask(move(uid))
    await asyncio.sleep(0.5)
    assert "no pod b; trying again" in one.sentence
    assert r.state(uid) is ACTIVE
    assert (await ended(one)).state is Progress.SUCCEEDED


async def test_one_that_is_cancelled_while_the_successor_is_waited_for_is_called_off(rig):
    there = There()
    there.fails = {"expect": [RetryableError("not yet")] * 100}
    r, operations, uid = await begun(rig, there)
    await operations.ask(move(uid))
    await asyncio.sleep(3)
    operations.cancel("m1")
    await asyncio.sleep(3)
    assert (there.called_off, r.state(uid)) == (1, ACTIVE)


def test_a_successor_that_says_no_to_the_next_agent_hears_that_it_is_off(rig, proxy):
    machine, there = Machine(MEMORY), There()
    died = agent_dies_in_the_dump(rig, machine, there)
    assert there.called_off == 0
    there.fails = {"expect": [RefusedError("it runs already")]}
    gc.collect()

    async def second():
        r, operations = await next_agent(rig, machine, there)
        (one,) = operations.known(ended_too=True)
        assert "it runs already" in (await ended(one)).sentence
        assert there.called_off == 1
        p = proxy(r.loop)
        p.request(one.uid)
        await r.until(one.uid, ACTIVE)
        r.check()

    run_virtual(second(), start=died + 1.0)


def test_while_the_next_agent_waits_for_the_successor_requests_are_answered_here(rig, proxy):
    machine, there = Machine(MEMORY), There()
    died = agent_dies_in_the_dump(rig, machine, there)
    there.fails = {"expect": [RetryableError("its agent is away")] * 100}
    gc.collect()

    async def second():
        r, operations = await next_agent(rig, machine, there)
        (one,) = operations.known(ended_too=True)
        p = proxy(r.loop)
        p.request(one.uid)
        await when(lambda: p.answered == {one.uid: 1})
        assert not one.ended
        there.fails = {}
        assert (await ended(one)).state is Progress.SUCCEEDED, one.sentence
        assert there.taken == r.node.seats[one.uid].saved.artifact
        r.check()

    run_virtual(second(), start=died + 1.0)
