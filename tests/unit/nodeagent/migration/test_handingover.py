"""The end of a move: the successor goes on, or the seat does, and never both."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.core.seat.operations import Kind, Progress
from kybernate.errors import ConflictError, RefusedError, RetryableError
from kybernate.types import ArtifactId, PodUid, SeatState, Tier
from nodeagent.migration.journal import MOVE, may_be_elsewhere
from nodeagent.operations.record import OPERATION, Ask
from tests.kit.clock import run_virtual
from tests.kit.machine import Machine
from tests.unit.nodeagent.moving import (
    ACTIVE,
    BOTH,
    GIB,
    MEMORY,
    NVME,
    THERE,
    There,
    begun,
    move,
    next_agent,
)
from tests.unit.nodeagent.offloading import ended, when


async def test_a_seat_whose_successor_may_go_on_wakes_for_nobody(rig):
    there = There()
    there.fails = {"let_continue": [RetryableError("no answer")] * 30}
    r, operations, uid = await begun(rig, there)
    operation = await operations.ask(move(uid))
    await r.until(uid, NVME)
    await asyncio.sleep(3)
    assert may_be_elsewhere(r.machine.journal) == {uid}
    assert may_be_elsewhere({MOVE + uid: r.machine.journal[MOVE + uid]}) == set()
    r.loop.operators.let_stay(uid)
    r.loop.operators.request_wake(uid, "a test")
    while not operation.ended:
        assert r.state(uid) is NVME
        await asyncio.sleep(0.01)
    assert operation.state is Progress.SUCCEEDED


async def test_an_overdue_move_whose_state_is_kept_there_still_comes_to_its_end(rig):
    there = There()
    there.fails = {"let_continue": [RetryableError("no answer")] * 3}
    r, operations, uid = await begun(rig, there)
    await operations.ask(move(uid, limit=4.0))
    await r.until(uid, NVME)
    record = r.machine.journal[OPERATION + "m1"]
    assert record["due_at"] > r.node.world.wall() + 1e6


async def test_after_the_end_it_is_told_until_it_answers(rig):
    there = There()
    there.fails = {"let_continue": [RetryableError("no answer")] * 5}
    r, operations, uid = await begun(rig, there)
    one = await operations.ask(move(uid, limit=5.0))
    await r.until(uid, NVME)
    await asyncio.sleep(4)
    with pytest.raises(RefusedError, match="can't be taken back"):
        operations.cancel("m1")
    there.keeps.clear()  # what it kept is lost there: it is sent again
    assert (await ended(one)).state is Progress.SUCCEEDED
    assert there.taken == r.node.seats[uid].saved.artifact


async def test_where_the_successor_says_no_for_good_it_goes_on_here(rig, proxy):
    there = There()
    there.fails = {"let_continue": [RefusedError("its pod is ending")]}
    r, operations, uid = await begun(rig, there)
    p = proxy(r.loop)
    done = await ended(await operations.ask(move(uid)))
    assert done.state is Progress.FAILED
    assert "it continues here" in done.sentence
    p.request(uid)
    await r.until(uid, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {uid: 1}
    r.check()


async def test_where_its_container_ended_meanwhile_the_next_one_begins_here(rig):
    """By a claim of its own, though the registry may know its state no more: nobody else goes on,
    and what it saves from now on counts."""

    there = There()
    there.fails = {"let_continue": [RetryableError("no answer")] * 4 + [RefusedError("no")]}
    r, operations, uid = await begun(rig, there)
    one = await operations.ask(move(uid))
    await r.until(uid, NVME)
    r.machine.end_container(uid)
    r.machine.restart_container(uid)
    done = await ended(one)
    assert done.state is Progress.FAILED
    assert "it continues here" in done.sentence
    await r.until(uid, ACTIVE)
    line = await r.loop.registry.line("default", uid, 1.0)
    assert line.successor == uid


def test_where_somebody_else_has_the_claim_it_goes_on_nowhere_else(rig):
    machine = Machine(MEMORY)

    async def main():
        there = There()
        there.fails = {"let_continue": [RefusedError("it runs already")]}
        r, operations, uid = await begun(rig, there, machine=machine)

        async def claim(*_):
            raise ConflictError("pod uid-b continues with it")

        r.loop.registry.claim = claim
        done = await ended(await operations.ask(move(uid)))
        assert done.state is Progress.FAILED
        assert "can't continue here: pod uid-b" in done.sentence
        r.loop.operators.request_wake(uid, "a test")
        await asyncio.sleep(30)
        assert r.state(uid) is NVME

    async def later():
        """The next agent says so, too, and not that another goes on."""
        _r, operations = await next_agent(rig, machine, There())
        for successor in ("b", "c"):
            ask = Ask(Kind.MOVE, f"m-{successor}", PodUid("uid-a"), successor=successor)
            with pytest.raises(RefusedError, match="can't continue here: pod uid-b"):
                await operations.ask(ask)

    run_virtual(main())
    run_virtual(later(), start=1000.0)


def test_an_agent_that_dies_before_it_ends_a_lost_move_has_it_go_on_nowhere(rig):
    """Nor with any agent after the next."""

    machine = Machine(MEMORY)

    async def main():
        there = There()
        there.fails = {"let_continue": [RefusedError("it runs already")]}
        r, operations, uid = await begun(rig, there, machine=machine)

        async def claim(*_):
            raise ConflictError("pod uid-b continues with it")

        r.loop.registry.claim = claim
        one = await operations.ask(move(uid))
        await r.until(uid, NVME)
        running = machine.journal[OPERATION + "m1"]
        await ended(one)
        machine.journal[OPERATION + "m1"] = running

    async def later():
        there = There()
        there.fails = {"expect": [RefusedError("it runs already")]}
        r, operations = await next_agent(rig, machine, there)
        (one,) = operations.known(ended_too=True)
        assert (await ended(one)).state is Progress.FAILED
        assert "can't continue here: pod uid-b" in one.sentence
        r.loop.operators.request_wake(PodUid("uid-a"), "a test")
        await asyncio.sleep(30)
        assert r.state(PodUid("uid-a")) is NVME

    run_virtual(main())
    run_virtual(later(), start=1000.0)
    run_virtual(later(), start=2000.0)


def test_an_agent_that_dies_before_it_ends_a_move_whose_pod_is_gone_calls_nothing_off(rig):
    machine, there = Machine(MEMORY), There()

    async def main():
        r, operations, uid = await begun(rig, there, machine=machine)
        one = await operations.ask(move(uid))
        await r.until(uid, NVME)
        running = machine.journal[OPERATION + "m1"]
        await ended(one)
        done = machine.journal[MOVE + uid]
        r.loop.pod_gone(uid)
        machine.end_container(uid)
        while uid in r.node.seats:  # noqa: ASYNC110 - the machine's time is made up
            await asyncio.sleep(0.01)
        # Neither was written any more: the note goes after the operation's end.
        machine.journal |= {OPERATION + "m1": running, MOVE + uid: done}

    async def later():
        there.fails = {"expect": [RefusedError("it runs already")]}
        _r, operations = await next_agent(rig, machine, there)
        (one,) = operations.known(ended_too=True)
        assert (await ended(one)).state is Progress.SUCCEEDED, one.sentence
        assert "pod default/b on node n2 continues" in one.sentence
        await asyncio.sleep(30)
        assert not there.called_off

    run_virtual(main())
    run_virtual(later(), start=1000.0)


class SomethingElseError(Exception):
    """What no call is to raise."""


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), SomethingElseError("a bug")],
    ids=["disk", "bug"],
)
@pytest.mark.filterwarnings("ignore")
async def test_once_the_successor_may_go_on_no_failure_has_it_go_on_here(rig, error):
    there = There()
    there.fails = {"let_continue": [error]}
    r, operations, uid = await begun(rig, there)
    done = await ended(await operations.ask(move(uid)))
    assert done.state is Progress.SUCCEEDED, done.sentence
    assert there.taken == r.node.seats[uid].saved.artifact
    r.loop.operators.request_wake(uid, "a test")
    await asyncio.sleep(30)
    assert r.state(uid) is NVME


async def test_a_disk_that_is_full_when_a_move_is_done_has_it_go_on_in_one_place(rig):
    there = There()
    r, operations, uid = await begun(rig, there)
    one = await operations.ask(move(uid))
    while not there.taken:  # noqa: ASYNC110 - the machine's time is made up
        await asyncio.sleep(0.01)
    r.machine.faults.add("disk-full")
    assert (await ended(one)).state is Progress.SUCCEEDED, one.sentence
    assert r.machine.journal[MOVE + uid]["done"]
    r.loop.operators.request_wake(uid, "a test")
    await asyncio.sleep(30)
    assert r.state(uid) is NVME


@pytest.mark.parametrize("claimed", [False, True])
async def test_a_successor_that_is_gone_before_it_answers_ends_the_move(rig, claimed):
    there = There()
    there.fails = {"let_continue": [RetryableError("no seat of it is here")] * 1000}
    r, operations, uid = await begun(rig, there)
    r.node.world = replace(r.node.world, registry=r.loop.registry)
    one = await operations.ask(move(uid))
    await r.until(uid, NVME)
    await asyncio.sleep(5)
    assert not one.ended
    if claimed:
        artifact = ArtifactId(r.node.seats[uid].saved.artifact)
        await r.loop.registry.claim("default", uid, artifact, THERE.uid, 1.0)
    there.fails["find"] = [RefusedError("pod default/b is on no node")]
    done = await ended(one)
    assert done.state is Progress.FAILED
    assert "is gone from node n2" in done.sentence
    r.loop.operators.request_wake(uid, "a test")
    await asyncio.sleep(30)
    assert r.state(uid) is (NVME if claimed else ACTIVE)
    r.check()


async def test_a_seat_that_was_moved_stays_below_ram_whoever_calls_for_it(rig):
    r, operations, uid = await begun(rig, There())
    await ended(await operations.ask(move(uid)))
    r.loop.operators.ask_for_tier(uid, None)
    r.loop.operators.let_stay(uid)
    r.loop.operators.request_wake(uid, "a test")
    await asyncio.sleep(30)
    assert r.state(uid) is NVME


class At:
    """Calls `then` at once when a seat comes to the state. Implements `node.Observer`."""

    def __init__(self, state, then):
        self.state, self.then = state, then

    def seat_changed(self, seat):
        if seat.state is self.state:
            asyncio.get_running_loop().call_soon(self.then)
            self.state = None

    def seat_gone(self, seat):
        """Nothing more comes of it."""

    def told(self, *_):
        """Nobody reads it."""


@pytest.mark.parametrize("keep", [3600.0, 0.0], ids=["left", "not-left"])
@pytest.mark.parametrize("goes", ["while it is ended", "once it is ended"])
@pytest.mark.parametrize("gone", [True, False], ids=["pod", "container"])
async def test_what_the_target_keeps_goes_on_there_though_its_pod_goes(rig, goes, keep, gone):
    there = There()
    r, operations, uid = await begun(rig, there, keep_left_s=keep)
    saved = r.node.seats[uid].saved

    def go():
        if gone:
            r.loop.pod_gone(uid)
        else:
            r.loop.life.end(r.node.seats[uid])
        r.machine.end_container(uid)

    if goes == "once it is ended":
        r.node.observers.insert(0, At(NVME, go))
    else:
        r.machine.faults.add("end-hangs")
    operation = await operations.ask(move(uid))
    await when(lambda: saved.artifact)
    artifact = saved.artifact
    if goes == "while it is ended":
        await when(lambda: not r.loop.custody.unnoted)
        assert r.state(uid) is SeatState.DUMPING
        go()
    assert (await ended(operation)).state is Progress.SUCCEEDED, operation.sentence
    assert (there.taken, there.called_off) == (artifact, 0)
    assert artifact in there.keeps
    assert (uid in r.node.seats) is not gone
    assert (artifact in r.machine.vault) is (keep > 0)
    await asyncio.sleep(1)
    assert (MOVE + uid in r.machine.journal) is not gone
    r.check()


async def test_what_is_noted_outlives_a_pod_that_goes_before_its_tree_is_ended(rig):
    r = rig(tiers=BOTH, keep_left_s=100.0)
    r.node.park_budget = 100 * GIB
    r.begin()
    uid = await r.seat("a", delay=0.0)
    await r.until(uid, ACTIVE)
    r.machine.faults.add("end-hangs")
    r.loop.operators.send_away(uid, "a test")
    r.loop.operators.ask_for_tier(uid, Tier.NVME)
    await when(lambda: r.node.seats[uid].saved.artifact and not r.loop.custody.unnoted)
    assert r.state(uid) is SeatState.DUMPING
    artifact = r.node.seats[uid].saved.artifact
    r.loop.pod_gone(uid)
    r.machine.end_container(uid)
    await when(lambda: uid not in r.node.seats)
    await asyncio.sleep(50)
    assert artifact in r.machine.vault
    await asyncio.sleep(100)
    assert artifact not in r.machine.vault, "nobody came in time"


async def test_what_a_pod_left_is_for_others_where_its_successor_never_goes_on(rig):
    there = There()
    there.fails = {"let_continue": [RefusedError("its pod is ending")]}
    r, operations, uid = await begun(rig, there)
    r.machine.faults.add("end-hangs")
    operation = await operations.ask(move(uid))
    await when(lambda: r.node.seats[uid].saved.artifact and not r.loop.custody.unnoted)
    artifact = r.node.seats[uid].saved.artifact
    await goes(r, uid)
    assert (await ended(operation)).state is Progress.FAILED
    assert "another successor may come" in operation.sentence
    line = await r.loop.registry.line("default", uid, 1.0)
    assert (line.successor, bool(line.stopped)) == ("", True)
    assert artifact in r.machine.vault
    await when(lambda: there.called_off == 1)
    await when(lambda: not [key for key in r.machine.journal if key.startswith(MOVE)])


async def goes(r, uid):
    """Its pod is deleted, and all that is left of it is gone."""
    r.loop.pod_gone(uid)
    r.machine.end_container(uid)
    await when(lambda: uid not in r.node.seats)


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_a_move_that_is_done_is_noted_as_long_as_its_pod_is_there(rig, over_a_restart):
    machine, there, uid = Machine(MEMORY), There(), PodUid("uid-a")

    async def first():
        r, operations, _ = await begun(rig, there, machine=machine)
        assert (await ended(await operations.ask(move(uid)))).state is Progress.SUCCEEDED
        await asyncio.sleep(1)
        assert machine.journal[MOVE + uid]["done"]
        if not over_a_restart:
            await goes(r, uid)

    async def second():
        r, _ = await next_agent(rig, machine, there)
        await asyncio.sleep(1)
        assert machine.journal[MOVE + uid]["done"]
        await goes(r, uid)

    run_virtual(first())
    if over_a_restart:
        run_virtual(second(), start=100.0)
    assert MOVE + uid not in machine.journal
