"""Moves whose agent is killed, wherever it is: the workload goes on in one place."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from kybernate.core.seat.operations import Kind, Progress
from kybernate.types import SeatState
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash, Machine
from tests.unit.nodeagent.moving import (
    ACTIVE,
    MEMORY,
    NVME,
    There,
    begun,
    move,
    next_agent,
    one_move,
)
from tests.unit.nodeagent.offloading import ended

WRITES = 40


def go_on(rig, proxy, machine, there, start):
    """The next agent: the move comes to its end, and one place goes on."""
    gc.collect()

    async def second():
        r, operations = await next_agent(rig, machine, there)
        asked = [one for one in operations.known(ended_too=True) if one.kind is Kind.MOVE]
        for one in asked:
            await ended(one)
            assert one.state is Progress.SUCCEEDED, one.sentence
        uid = next(iter(r.node.seats))
        p = proxy(r.loop)
        p.request(uid)
        await asyncio.sleep(20)
        if asked:
            assert there.taken == r.node.seats[uid].saved.artifact
            assert (p.answered, r.state(uid)) == ({}, NVME)
        else:
            assert not there.taken
            assert (p.answered, r.state(uid)) == ({uid: 1}, ACTIVE)
        r.check()

    run_virtual(second(), start=start)


def test_how_many_writes_a_move_has(rig):
    machine = Machine(MEMORY)
    run_virtual(one_move(rig, machine, There()))
    assert WRITES * 0.7 < machine.journal_writes < WRITES * 1.2, machine.journal_writes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash_at", range(6, WRITES))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_agent_killed_at_any_write(rig, proxy, crash_at, after):
    machine, there = Machine(MEMORY), There()
    machine.crash_at, machine.crash_after = crash_at, after
    ends: list[float] = []

    async def first():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        try:
            await one_move(rig, machine, there)
        finally:
            ends.append(asyncio.get_running_loop().time())

    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(first())
    machine.crash_at = None
    go_on(rig, proxy, machine, there, ends[0] + 1.0)


@pytest.mark.parametrize("steps", range(40))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_agent_killed_between_two_calls(rig, proxy, steps):
    machine, there = Machine(MEMORY), There()
    ends: list[float] = []

    async def first():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        r, operations, uid = await begun(rig, there, machine=machine)
        await operations.ask(move(uid))
        await r.until(uid, SeatState.DUMPING)
        ends.append(loop.time() + steps * 0.1)
        loop.call_at(ends[0], loop.stop)
        await asyncio.sleep(60)

    with contextlib.suppress(RuntimeError):  # the loop was stopped
        run_virtual(first())
    go_on(rig, proxy, machine, there, ends[0] + 1.0)
