"""Moves that an agent began and another one finds: what the first has noted may be no more."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.core.seat.operations import Progress
from kybernate.errors import RetryableError
from kybernate.types import SeatState
from nodeagent.migration.journal import MOVE
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash, FakeJournal, Machine
from tests.unit.nodeagent.moving import MEMORY, There, begun, killed, move, next_agent
from tests.unit.nodeagent.offloading import ended, when

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_what_was_kept_there_is_nobodys_once_the_workload_has_gone_on_here(rig, proxy, monkeypatch):
    machine, there = Machine(MEMORY), There()
    put = FakeJournal.put

    def last(self, key, record, *, synced, late=False):
        done = put(self, key, record, synced=synced)
        if key.startswith(MOVE) and record["artifact"]:
            asyncio.get_running_loop().stop()
            raise Crash
        return done

    async def first():
        _, operations, uid = await begun(rig, there, machine=machine)
        monkeypatch.setattr(FakeJournal, "put", last)
        await ended(await operations.ask(move(uid)))

    async def second():
        r, operations = await next_agent(rig, machine, there)
        (one,) = operations.known(ended_too=True)
        p = proxy(r.loop)
        p.request(one.uid)
        await when(lambda: p.answered == {one.uid: 1})
        r.machine.end_container(one.uid)
        await r.until(one.uid, SeatState.WAITING)

    async def third():
        r, operations = await next_agent(rig, machine, there)
        assert len(operations.known(ended_too=False)) == 1
        await asyncio.sleep(30)
        assert not there.taken, "the workload has continued since, and that is lost"
        r.check()

    died = killed(first)
    monkeypatch.setattr(FakeJournal, "put", put)
    there.fails = {"expect": [RetryableError("its agent is away")] * 1000}
    died = killed(second, died + 1.0)
    run_virtual(third(), start=died + 1.0)


def test_one_that_is_overdue_when_the_next_agent_comes_lets_the_seat_go_on(rig, proxy):
    machine, there = Machine(MEMORY), There()

    async def first():
        r, operations, uid = await begun(rig, there, machine=machine)
        await operations.ask(move(uid, limit=30.0))
        await r.until(uid, SeatState.DUMPING)

    async def second():
        r, operations = await next_agent(rig, machine, there)
        (one,) = operations.known(ended_too=True)
        assert one.state is Progress.FAILED, one.sentence
        p = proxy(r.loop)
        p.request(one.uid)
        await r.until(one.uid, SeatState.ACTIVE)
        await when(lambda: there.called_off == 1)
        r.check()

    died = killed(first)
    run_virtual(second(), start=died + 60.0)


async def test_one_that_is_asked_for_anew_waits_for_the_end_of_what_was_cancelled(rig, monkeypatch):
    put = FakeJournal.put

    async def slowly(done):
        await asyncio.sleep(5)
        await done

    def on_a_slow_disk(self, key, record, *, synced, late=False):
        done = put(self, key, record, synced=synced)
        return asyncio.ensure_future(slowly(done)) if synced and key.startswith(MOVE) else done

    there = There()
    r, operations, uid = await begun(rig, there)
    first = await operations.ask(move(uid))
    await r.until(uid, SeatState.DUMPING)
    monkeypatch.setattr(FakeJournal, "put", on_a_slow_disk)
    operations.cancel(first.name)
    done = await ended(await operations.ask(move(uid, "m2")))
    assert done.state is Progress.SUCCEEDED, done.sentence
    assert there.taken == r.node.seats[uid].saved.artifact
    assert not there.called_off or there.taken in there.keeps
    r.check()
