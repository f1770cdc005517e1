"""A move that came to nothing is called off at the other node, however long that one is away."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.core.seat.operations import Progress
from kybernate.errors import NotFoundError, RefusedError, RetryableError
from kybernate.types import SeatState
from nodeagent.migration.cancel import CALL_OFF
from nodeagent.migration.journal import MOVE
from tests.kit.clock import run_virtual
from tests.kit.machine import Machine
from tests.unit.nodeagent.moving import MEMORY, There, begun, killed, move, next_agent
from tests.unit.nodeagent.offloading import ended, when

AWAY = RetryableError("its agent is away")

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def owed(machine):
    return [key for key in machine.journal if key.startswith((CALL_OFF, MOVE))]


async def failed(rig, there, **more):
    """A move whose last step over there fails, when the other agent has gone away."""
    r, operations, uid = await begun(rig, there, **more)
    there.fails = {"deliver": [RefusedError("a test")], "call_off": [AWAY] * 3}
    done = await ended(await operations.ask(move(uid)))
    assert done.state is Progress.FAILED
    assert not there.called_off
    return r, operations, uid


async def test_an_agent_that_is_away_is_told_when_it_is_back(rig):
    there = There()
    r, _, uid = await failed(rig, there)
    assert r.state(uid) is not SeatState.PARKED_NVME
    await when(lambda: there.called_off == 1)
    await when(lambda: not owed(r.machine))
    await asyncio.sleep(300)
    assert there.called_off == 1


def test_the_next_agent_tells_it(rig):
    machine, there = Machine(MEMORY), There()

    async def first():
        await failed(rig, there, machine=machine)

    async def second():
        await next_agent(rig, machine, there)
        await when(lambda: there.called_off == 1)
        await when(lambda: not owed(machine))

    died = killed(first)
    assert [key[: len(CALL_OFF)] for key in owed(machine)] == [CALL_OFF]
    run_virtual(second(), start=died + 1.0)


def test_one_that_was_cancelled_when_its_agent_died_is_called_off_by_the_next(rig):
    machine, there = Machine(MEMORY), There()

    async def first():
        r, operations, uid = await begun(rig, there, machine=machine)
        one = await operations.ask(move(uid))
        await r.until(uid, SeatState.DUMPING)
        operations.cancel(one.name)

    async def second():
        await next_agent(rig, machine, there)
        await when(lambda: there.called_off == 1)
        await when(lambda: not owed(machine))

    died = killed(first)
    assert not there.called_off
    run_virtual(second(), start=died + 1.0)


async def test_a_new_move_to_the_same_successor_is_not_called_off(rig):
    there = There()
    r, operations, uid = await failed(rig, there)
    there.fails = {"call_off": [AWAY] * 5}
    done = await ended(await operations.ask(move(uid, "m2")))
    assert done.state is Progress.SUCCEEDED, done.sentence
    await asyncio.sleep(300)
    assert not there.called_off
    assert there.taken in there.keeps
    r.check()


@pytest.mark.parametrize(
    "fails",
    [{"call_off": [NotFoundError("no such node")]}, {"find": [NotFoundError("no such pod")]}],
    ids=["node", "pod"],
)
async def test_nobody_is_told_where_nobody_can_hear(rig, fails):
    there = There()
    r, _, _ = await failed(rig, there)
    there.fails = {"call_off": [AWAY] * 10} | fails
    await when(lambda: not owed(r.machine))
    assert not there.called_off


async def test_what_is_delivered_after_a_cancel_is_not_noted(rig):
    there = There()
    r, operations, uid = await begun(rig, there)
    delivering = asyncio.Event()
    deliver = there.deliver

    async def slow(*args):
        delivering.set()
        await asyncio.sleep(3)
        await deliver(*args)

    there.deliver = slow
    await operations.ask(move(uid))
    await delivering.wait()
    operations.cancel("m1")
    await asyncio.sleep(10)
    assert not [key for key in r.machine.journal if key.startswith(MOVE)]
    await r.until(uid, SeatState.ACTIVE)
    r.check()
