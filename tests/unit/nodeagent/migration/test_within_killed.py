"""Moves within a node whose agent is killed, wherever it is: one of the two pods goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from kybernate.core.artifacts.holds import ARRIVED
from kybernate.core.seat.operations import Kind, Progress
from kybernate.types import SeatState
from nodeagent.migration.journal import MOVE
from nodeagent.offload.dumps import Dumps
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash, FakeJournal, Machine
from tests.unit.nodeagent.moving import ACTIVE, MEMORY, move
from tests.unit.nodeagent.offloading import app_of, ended, when
from tests.unit.nodeagent.within import (
    A,
    B,
    begun,
    holders,
    inline,
    named,
    next_agent,
    one_move,
)

BEGUN, WRITES = 13, 41
"""Writes before the move is asked for, and up to its end."""

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def no_threads(monkeypatch):
    monkeypatch.setattr(asyncio, "to_thread", inline)


def go_on(rig, proxy, machine, start):
    """The next agent: the move comes to its end, and its successor alone goes on."""
    gc.collect()

    async def second():
        r, operations, _ = await next_agent(rig, machine)
        asked = [one for one in operations.known(ended_too=True) if one.kind is Kind.MOVE]
        for one in asked:
            await ended(one)
            assert one.state is Progress.SUCCEEDED, one.sentence
        p = proxy(r.loop)
        goes_on, other, gpu = (B, A, "GPU-1") if asked else (A, B, "GPU-0")
        p.request(goes_on)
        await r.until(goes_on, ACTIVE)
        p.request(other)
        await asyncio.sleep(20)
        assert (p.answered, r.state(goes_on)) == ({goes_on: 1}, ACTIVE)
        assert holders(r)[gpu] == [goes_on]
        assert app_of(r, goes_on).inner == machine.inner
        assert r.state(other) in (SeatState.PARKED_NVME, SeatState.WAITING)
        assert not named(r), "nobody names what the successor has continued from"
        await asyncio.sleep(700)
        assert not machine.vault, "nor is it kept for anybody"
        assert not [key for key in machine.journal if key.startswith((ARRIVED, "drop/"))]
        r.check()

    run_virtual(second(), start=start)


def killed_in(main, machine):
    """When it was."""
    ends: list[float] = []

    async def first():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        try:
            await main()
        finally:
            ends.append(loop.time())

    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(first())
    machine.crash_at = None
    return ends[0] + 1.0


async def test_how_many_writes_a_move_has(rig, groups):
    machine = Machine(MEMORY)

    _, operations, _ = await begun(rig, groups, machine=machine)
    before = machine.journal_writes
    await ended(await operations.ask(move(A)))
    assert before <= BEGUN
    assert WRITES - 3 <= machine.journal_writes <= WRITES


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash_at", range(BEGUN, WRITES + 1))
def test_an_agent_killed_at_any_write(rig, proxy, groups, crash_at, after):
    machine = Machine(MEMORY)
    machine.crash_at, machine.crash_after = crash_at, after
    start = killed_in(lambda: one_move(rig, groups, machine), machine)
    go_on(rig, proxy, machine, start)


def kept_then(monkeypatch, do):
    """Once the journal says that the successor may go on, before the seat's record does."""
    put = FakeJournal.put

    def noted(self, key, record, *, synced, late=False):
        done = put(self, key, record, synced=synced)
        if key.startswith(MOVE) and record["artifact"] and not record["done"]:
            do()
        return done

    monkeypatch.setattr(FakeJournal, "put", noted)
    return put


def test_what_was_handed_over_is_nobodys_once_the_workload_has_gone_on(
    rig, proxy, groups, monkeypatch
):
    machine = Machine(MEMORY)

    def die():
        asyncio.get_running_loop().stop()
        raise Crash

    put = kept_then(monkeypatch, die)
    start = killed_in(lambda: one_move(rig, groups, machine), machine)
    monkeypatch.setattr(FakeJournal, "put", put)
    gc.collect()

    async def second():
        r, operations, beyond = await next_agent(rig, machine)
        beyond.away = True
        p = proxy(r.loop)
        p.request(A)
        await when(lambda: p.answered == {A: 1})
        r.loop.pod_gone(A)
        machine.end_container(A)
        beyond.away = False
        (one,) = operations.known(ended_too=True)
        assert (await ended(one)).state is Progress.FAILED
        await asyncio.sleep(60)
        assert r.state(B) is SeatState.WAITING, "what it could continue from is older"
        assert not machine.vault
        r.check()

    run_virtual(second(), start=start)


def ends_when_kept(rig, groups, monkeypatch, later):
    """Its container, and the agent so many writes later; how the move ends."""
    machine, ended_as = Machine(MEMORY), []

    def end_container():
        machine.end_container(A)
        machine.crash_at = machine.journal_writes + 1 + later

    put = kept_then(monkeypatch, end_container)
    start = killed_in(lambda: one_move(rig, groups, machine), machine)
    monkeypatch.setattr(FakeJournal, "put", put)
    gc.collect()

    async def second():
        r, operations, _ = await next_agent(rig, machine)
        (one,) = operations.known(ended_too=True)
        await ended(one)
        await asyncio.sleep(60)
        succeeded = one.state is Progress.SUCCEEDED
        assert (r.state(B) is ACTIVE) is succeeded, one.sentence
        assert not succeeded or app_of(r, B).inner == machine.inner
        assert not machine.vault
        r.check()
        ended_as.append(one.state)

    run_virtual(second(), start=start)
    return ended_as[0]


def test_a_container_that_ends_when_its_state_is_handed_over(rig, groups, monkeypatch):
    """Its last state is the successor's, whether the agent dies, and when: nothing of it ran on."""
    found = {ends_when_kept(rig, groups, monkeypatch, later) for later in range(12)}
    assert found == {Progress.SUCCEEDED}


def test_the_same_while_the_disk_takes_its_time_for_the_seats_record(rig, groups, monkeypatch):
    async def slow(self, dump):
        await asyncio.sleep(5)
        raise AssertionError("its container has ended meanwhile")

    monkeypatch.setattr(Dumps, "_note", slow)
    found = [ends_when_kept(rig, groups, monkeypatch, later) for later in range(8)]
    assert Progress.SUCCEEDED in found
