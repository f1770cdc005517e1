"""Moves from group to group of one node: nothing is sent, and one of the two pods goes on."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.core.artifacts.holds import ARRIVED
from kybernate.core.artifacts.restores import RestoreWish
from kybernate.core.seat.operations import Kind, Progress
from kybernate.errors import DeadlineError, RefusedError
from kybernate.types import SeatState, Tier
from nodeagent.migration.journal import MOVE
from nodeagent.operations.record import Ask
from tests.kit.clock import run_virtual
from tests.kit.machine import Machine
from tests.unit.nodeagent.moving import ACTIVE, GIB, MEMORY, NVME, move
from tests.unit.nodeagent.offloading import app_of, ended, when
from tests.unit.nodeagent.within import A, B, begun, holders, inline, next_agent

LEFT_NOTHING = (ARRIVED, "calloff/", "drop/", "left/", "outlived/")


@pytest.fixture(autouse=True)
def no_threads(monkeypatch):
    monkeypatch.setattr(asyncio, "to_thread", inline)


def rest(r):
    """Records that should be gone by the end."""
    return [key for key in r.machine.journal if key.startswith(LEFT_NOTHING)]


async def test_a_seat_goes_on_on_other_gpus_of_its_node(rig, proxy, groups):
    r, operations, _ = await begun(rig, groups)
    p, inner = proxy(r.loop), app_of(r, A).inner
    done = await ended(await operations.ask(move(A)))
    assert done.state is Progress.SUCCEEDED, done.sentence
    assert "pod default/b on node n1 continues with its state" in done.sentence
    await r.until(B, ACTIVE)
    assert (app_of(r, B).inner, holders(r)) == (inner, {"GPU-0": [], "GPU-1": [B]})
    p.request(A)
    p.request(B)
    r.loop.operators.request_wake(A, "a test")
    await asyncio.sleep(60)
    assert (r.state(A), r.state(B), p.answered) == (NVME, ACTIVE, {B: 1})
    left = r.node.seats[A]
    assert (left.saved.artifact, left.saved.copies, left.saved.size) == ("", frozenset(), 0)
    assert (list(r.machine.vault), rest(r)) == ([], [])
    assert not r.machine.gates, "old clients hear that it is gone"
    r.check()


@pytest.mark.parametrize("tier", [Tier.NVME, Tier.OBJECT])
async def test_one_that_is_parked_below_ram_is_handed_on_as_it_lies(rig, groups, tier):
    r, operations, _ = await begun(rig, groups)
    inner = app_of(r, A).inner
    await ended(await operations.ask(Ask(Kind.PARK, "p1", A, tier=tier)))
    assert (await ended(await operations.ask(move(A)))).state is Progress.SUCCEEDED
    await r.until(B, ACTIVE)
    assert app_of(r, B).inner == inner
    await asyncio.sleep(30)
    assert (list(r.machine.vault), rest(r)) == ([], [])
    r.check()


async def test_the_state_outlives_the_pod_that_left_it(rig, groups):
    """Also where the node keeps nothing of pods that are gone."""

    r, operations, _ = await begun(rig, groups, keep_left_s=0.0)
    inner = app_of(r, A).inner
    await operations.ask(move(A))
    await when(lambda: any(key.startswith(ARRIVED) for key in r.machine.journal))
    await when(lambda: r.state(A) is NVME)
    r.loop.pod_gone(A)
    r.machine.end_container(A)
    await r.until(B, ACTIVE)
    assert app_of(r, B).inner == inner
    await asyncio.sleep(30)
    assert (list(r.machine.vault), rest(r)) == ([], [])
    r.check()


async def test_the_pod_that_left_it_is_deleted_while_the_successor_waits_for_its_gpu(rig, groups):
    r, operations, _ = await begun(rig, groups, keep_left_s=0.0)
    inner = app_of(r, A).inner
    r.loop.operators.drain_node("a test")
    done = await ended(await operations.ask(move(A)))
    assert done.state is Progress.SUCCEEDED, done.sentence
    r.loop.pod_gone(A)
    r.machine.end_container(A)
    await asyncio.sleep(60)
    assert (A in r.node.seats, r.state(B) is ACTIVE) == (False, False)
    r.loop.operators.undrain_node()
    await r.until(B, ACTIVE)
    assert app_of(r, B).inner == inner
    r.check()


async def test_a_successor_that_goes_leaves_the_workload_where_it_was(rig, groups):
    r, operations, beyond = await begun(rig, groups)
    inner = app_of(r, A).inner
    operation = await operations.ask(move(A))
    await when(lambda: r.state(A) is SeatState.DUMPING and r.node.seats[A].saved.artifact)
    beyond.gone.add("b")
    r.loop.pod_gone(B)
    r.machine.end_container(B)
    assert (await ended(operation)).state is Progress.FAILED
    assert "is gone" in operation.sentence
    await r.until(A, ACTIVE)
    assert app_of(r, A).inner == inner
    await asyncio.sleep(700)
    assert (list(r.machine.vault), rest(r)) == ([], [])
    assert MOVE + A not in r.machine.journal
    r.check()


async def test_a_move_that_is_cancelled_leaves_nothing_to_go_on_from(rig, groups):
    """The state that it made is older than the workload by then."""

    r, operations, _ = await begun(rig, groups)
    await operations.ask(move(A))
    await r.until(A, SeatState.DUMPING)
    operations.cancel("m1")
    await r.until(A, ACTIVE)
    r.loop.pod_gone(A)
    r.machine.end_container(A)
    await asyncio.sleep(30)
    assert r.state(B) is SeatState.WAITING
    assert (list(r.machine.vault), rest(r)) == ([], [])
    r.check()


async def test_a_state_of_one_whose_move_came_to_nothing_goes_with_the_next_wake(rig, groups):
    r, operations, _ = await begun(rig, groups)
    await ended(await operations.ask(Ask(Kind.PARK, "p1", A, tier=Tier.NVME)))

    async def away(deadline):
        assert any(key.startswith(ARRIVED) for key in r.machine.journal)
        raise DeadlineError("the registry does not answer")

    r.loop.reports.flush = away
    assert (await ended(await operations.ask(move(A)))).state is Progress.FAILED
    r.loop.operators.request_wake(A, "a test")
    await r.until(A, ACTIVE)
    r.loop.pod_gone(A)
    r.machine.end_container(A)
    await asyncio.sleep(30)
    assert r.state(B) is SeatState.WAITING, "what it could continue from is older"
    assert (list(r.machine.vault), rest(r)) == ([], [])
    r.check()


async def test_two_moves_in_a_row_and_back(rig, groups):
    r, operations, _ = await begun(rig, groups)
    inner = app_of(r, A).inner
    assert (await ended(await operations.ask(move(A)))).state is Progress.SUCCEEDED
    await r.until(B, ACTIVE)
    back = await r.seat("c", groups["G0"], delay=0.0, restore=RestoreWish(uid=B, waits=True))
    ask = Ask(Kind.MOVE, "m2", B, by="ops", successor="c")
    assert (await ended(await operations.ask(ask))).state is Progress.SUCCEEDED
    await r.until(back, ACTIVE)
    assert (app_of(r, back).inner, holders(r)["GPU-0"]) == (inner, [back])
    r.check()


def test_who_asks_again_hears_that_it_is_done(rig, groups):
    """Also of the next agent, and by another name: whoever carries out a plan may have died."""
    machine = Machine(MEMORY)

    async def first():
        r, operations, _ = await begun(rig, groups, machine=machine)
        done = await ended(await operations.ask(move(A)))
        await r.until(B, ACTIVE)
        writes = machine.journal_writes
        plan = operations.plan(move(A, "m2"))
        assert plan == ("pod default/b on node n1 continues with its state: nothing is moved.",)
        again = await ended(await operations.ask(move(A, "m2")))
        assert again.state is Progress.SUCCEEDED
        assert again.sentence in done.sentence
        assert machine.journal_writes <= writes + 4

    async def second():
        r, operations, _ = await next_agent(rig, machine)
        again = await ended(await operations.ask(move(A, "m3")))
        assert (again.state, r.state(B)) == (Progress.SUCCEEDED, ACTIVE)
        with pytest.raises(RefusedError, match="continues with its state"):
            await operations.ask(Ask(Kind.MOVE, "m4", A, by="ops", successor="c"))
        r.check()

    run_virtual(first())
    run_virtual(second(), start=1000.0)


async def test_it_is_no_successor_of_itself(rig, groups):
    r, operations, _ = await begun(rig, groups)
    ask = Ask(Kind.MOVE, "m1", A, by="ops", successor="a")
    done = await ended(await operations.ask(ask))
    assert (done.state, r.state(A)) == (Progress.FAILED, ACTIVE)
    assert "name another as successor" in done.sentence
    with pytest.raises(RefusedError, match="successor"):
        await operations.ask(Ask(Kind.MOVE, "m2", A))


async def test_nobody_is_parked_where_its_state_has_no_room(rig, groups):
    r, operations, _ = await begun(rig, groups, room=10 * GIB)
    done = await ended(await operations.ask(move(A)))
    assert (done.state, r.state(A)) == (Progress.FAILED, ACTIVE)
    assert "has room for" in done.sentence
    assert SeatState.PARKING not in [state for _, state in r.seen.states]


@pytest.mark.parametrize("end", ["gone", "cancelled"])
async def test_a_move_that_ends_while_the_registry_is_not_told_yet_leaves_the_workload(
    rig, groups, end
):
    """The state is sealed and handed over, and no record of the seat's names it: it is not dropped
    below the dump that is under way."""

    r, operations, beyond = await begun(rig, groups, keep_left_s=1.0)
    inner, flush = app_of(r, A).inner, r.loop.reports.flush

    async def slow(deadline, of):
        await asyncio.sleep(9.0)
        await flush(deadline, of)

    r.loop.reports.flush = slow
    operation = await operations.ask(move(A))
    await when(lambda: any(key.startswith(ARRIVED) for key in r.machine.journal))
    if end == "gone":
        beyond.gone.add("b")
        r.loop.pod_gone(B)
        r.machine.end_container(B)
    else:
        operations.cancel("m1")
    await ended(operation)
    await r.until(A, ACTIVE)
    assert app_of(r, A).inner == inner
    await asyncio.sleep(60)
    assert (list(r.machine.vault), rest(r)) == ([], [])
    r.check()
