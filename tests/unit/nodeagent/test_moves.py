"""Moves: the workload goes on in one place, whoever dies when."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from dataclasses import replace

import pytest

from kybernate.core.operations import Kind, Progress
from kybernate.errors import ConflictError, NotFoundError, RefusedError, RetryableError
from kybernate.testing.clock import run_virtual
from kybernate.testing.machine import Crash, Machine
from kybernate.types import ArtifactId, NodeName, PodRef, PodUid, SeatState, Tier
from nodeagent.movejournal import MOVE, handed_over
from nodeagent.moves import Moves
from nodeagent.operation import OPERATION, Ask
from nodeagent.operations import Operations
from nodeagent.streams import Streams
from nodeagent.wire import operation_message
from tests.unit.nodeagent.below import when
from tests.unit.nodeagent.test_weights import weighing

GIB = 1 << 30
WRITES = 40
MEMORY = {"GPU-0": 80 * GIB, "GPU-1": 80 * GIB}
BOTH = {Tier.NVME: 1000 * GIB, Tier.OBJECT: 1 << 62}
ACTIVE, NVME = SeatState.ACTIVE, SeatState.PARKED_NVME
THERE = PodRef("default", "b", PodUid("uid-b"))


class There:
    """The other node: implements `ports.Peers`, and outlives agents here.

    `fails` maps a call's name to errors that it raises before it does anything, one each time.
    """

    def __init__(self) -> None:
        self.staged: list[str] = []
        self.followed = 0
        self.keeps: set[str] = set()
        self.taken = ""
        self.called_off = 0
        self.sizes: list[int] = []
        self.fails: dict[str, list[Exception]] = {}
        self.takes = 0.2

    async def _call(self, name: str) -> None:
        await asyncio.sleep(self.takes)
        if self.fails.get(name):
            raise self.fails[name].pop(0)

    async def find(self, namespace, name, deadline):
        await self._call("find")
        return THERE, NodeName("n2")

    async def expect(self, handover, deadline, *, size=0):
        self.sizes.append(size)
        await self._call("expect")
        assert handover.successor == THERE

    async def stage(self, handover, artifact, deadline):
        await self._call("stage")
        self.staged.append(artifact)
        return 1

    async def follow(self, handover, images, dumped, deadline):
        await dumped.wait()
        await self._call("follow")
        self.followed += 1
        return 1

    async def deliver(self, handover, artifact, deadline):
        await self._call("deliver")
        self.keeps.add(artifact)

    async def take_over(self, handover, artifact, deadline):
        await self._call("take_over")
        if artifact not in self.keeps:
            raise NotFoundError(f"{artifact} is not here")
        self.taken = artifact
        await asyncio.sleep(self.takes)

    async def call_off(self, handover, deadline):
        await self._call("call_off")
        self.called_off += 1
        if not self.taken:
            self.keeps.clear()


def with_moves(r, there):
    operations = Operations(r.loop)
    r.node.observers.append(operations)
    moves = Moves(r.loop, there, operations.advanced)
    operations.carry(Kind.MOVE, moves)
    return operations, moves


async def begun(rig, there, **more):
    r = rig(tiers=BOTH, **more)
    r.node.park_budget = 100 * GIB
    operations, _ = with_moves(r, there)
    r.begin()
    r.loop.life.aside(r.loop.reports.run())
    uid = await r.seat("a", delay=0.0)
    await r.until(uid, ACTIVE)
    return r, operations, uid


async def ended(operation, limit=120.0):
    end = asyncio.get_running_loop().time() + limit
    while not operation.ended:
        assert asyncio.get_running_loop().time() < end, operation
        await asyncio.sleep(0.01)
    return operation


def move(uid, name="m1", **more):
    return Ask(Kind.MOVE, name, uid, by="ops", successor="b", **more)


def test_a_seat_that_serves_goes_on_elsewhere_and_never_wakes_here(rig, proxy):
    async def main():
        there = There()
        r, operations, uid = await begun(rig, there)
        p = proxy(r.loop)
        done = await ended(await operations.ask(move(uid)))
        seat = r.node.seats[uid]
        assert done.state is Progress.SUCCEEDED, done.sentence
        assert there.taken in done.sentence
        assert there.taken == seat.artifact
        assert there.followed == 1
        assert operation_message(done).successor == "b"
        assert {"met", "staged", "sent", "delivered", "ended", "all"} <= done.phases.keys()
        p.request(uid)
        r.loop.call_for(uid, "a test")
        await asyncio.sleep(60)
        assert r.state(uid) is NVME
        for ask in (Ask(Kind.WAKE, "w1", uid), move(uid, "m2"), Ask(Kind.SAVE, "s1", uid)):
            with pytest.raises(RefusedError, match="goes on with its state"):
                await operations.ask(ask)
        assert not r.machine.gates, "old clients hear that it is gone"
        r.check()

    run_virtual(main())


def test_a_seat_that_forgot_while_it_woke_where_it_should_be_moves_all_the_same(rig):
    async def main():
        r, operations, uid = await begun(rig, There())
        operation = await operations.ask(move(uid))
        await when(lambda: r.state(uid) is SeatState.PARKING)
        r.node.seats[uid].tier_asked = ""
        assert (await ended(operation)).state is Progress.SUCCEEDED

    run_virtual(main())


def test_proxies_hear_no_more_of_a_seat_that_was_moved(rig):
    async def main():
        r, operations, uid = await begun(rig, There())
        streams, told = Streams(r.loop), []
        r.node.observers.append(streams)
        session = streams._join("p1")
        session.seat = lambda seat: told.append(seat.uid)
        session.gone = lambda uid: told.append(f"gone {uid}")
        await ended(await operations.ask(move(uid)))
        assert told[-1] == f"gone {uid}"
        assert not streams._join("p2")._seats
        assert uid in told

    run_virtual(main())


def test_a_seat_whose_successor_may_go_on_wakes_for_nobody(rig):
    async def main():
        there = There()
        there.fails = {"take_over": [RetryableError("no answer")] * 30}
        r, operations, uid = await begun(rig, there)
        operation = await operations.ask(move(uid))
        await r.until(uid, NVME)
        await asyncio.sleep(3)
        assert handed_over(r.machine.journal) == {uid}
        assert handed_over({MOVE + uid: r.machine.journal[MOVE + uid]}) == set()
        r.loop.let_stay(uid)
        r.loop.call_for(uid, "a test")
        while not operation.ended:
            assert r.state(uid) is NVME
            await asyncio.sleep(0.01)
        assert operation.state is Progress.SUCCEEDED

    run_virtual(main())


def test_an_overdue_move_whose_state_is_kept_there_still_comes_to_its_end(rig):
    async def main():
        there = There()
        there.fails = {"take_over": [RetryableError("no answer")] * 3}
        r, operations, uid = await begun(rig, there)
        await operations.ask(move(uid, limit=4.0))
        await r.until(uid, NVME)
        record = r.machine.journal[OPERATION + "m1"]
        assert record["due_at"] > r.node.world.wall() + 1e6

    run_virtual(main())


def test_a_state_of_before_goes_first(rig):
    async def main():
        there = There()
        r, operations, uid = await begun(rig, there)
        saved = await ended(await operations.ask(Ask(Kind.SAVE, "s1", uid, tier=Tier.NVME)))
        await r.until(uid, ACTIVE)
        await ended(await operations.ask(move(uid)))
        assert there.staged == [saved.artifact]
        assert there.taken != saved.artifact

    run_virtual(main())


def test_where_the_other_node_has_no_room_it_serves_on(rig):
    async def main():
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
        assert there.sizes[1:] == [r.node.seats[uid].saved]

    run_virtual(main())


def test_one_that_is_parked_below_ram_is_sent_as_it_lies(rig):
    async def main():
        there = There()
        r, operations, uid = await begun(rig, there)
        await ended(await operations.ask(Ask(Kind.PARK, "p1", uid, tier=Tier.NVME)))
        artifact = r.node.seats[uid].artifact
        done = await ended(await operations.ask(move(uid)))
        assert (done.state, there.taken) == (Progress.SUCCEEDED, artifact)
        assert there.followed == 0

    run_virtual(main())


def test_the_successor_is_waited_for(rig):
    async def main():
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

    run_virtual(main())


@pytest.mark.parametrize("call", ["expect", "deliver"])
def test_what_goes_wrong_before_the_end_leaves_it_here(rig, proxy, call):
    async def main():
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

    run_virtual(main())


def test_a_stream_that_breaks_only_takes_longer(rig):
    async def main():
        there = There()
        there.fails = {"stage": [RetryableError("lost")], "follow": [RetryableError("lost")]}
        _r, operations, uid = await begun(rig, there)
        assert (await ended(await operations.ask(move(uid)))).state is Progress.SUCCEEDED

    run_virtual(main())


def test_after_the_end_it_is_told_until_it_answers(rig):
    async def main():
        there = There()
        there.fails = {"take_over": [RetryableError("no answer")] * 5}
        r, operations, uid = await begun(rig, there)
        one = await operations.ask(move(uid, limit=5.0))
        await r.until(uid, NVME)
        await asyncio.sleep(4)
        with pytest.raises(RefusedError, match="can't be taken back"):
            operations.cancel("m1")
        there.keeps.clear()  # what it kept is lost there: it is sent again
        assert (await ended(one)).state is Progress.SUCCEEDED
        assert there.taken == r.node.seats[uid].artifact

    run_virtual(main())


def test_where_the_successor_says_no_for_good_it_goes_on_here(rig, proxy):
    async def main():
        there = There()
        there.fails = {"take_over": [RefusedError("its pod is ending")]}
        r, operations, uid = await begun(rig, there)
        p = proxy(r.loop)
        done = await ended(await operations.ask(move(uid)))
        assert done.state is Progress.FAILED
        assert "it goes on here" in done.sentence
        p.request(uid)
        await r.until(uid, ACTIVE)
        await asyncio.sleep(1)
        assert p.answered == {uid: 1}
        r.check()

    run_virtual(main())


def test_where_somebody_else_has_the_claim_it_goes_on_nowhere_else(rig):
    async def main():
        there = There()
        there.fails = {"take_over": [RefusedError("it runs already")]}
        r, operations, uid = await begun(rig, there)

        async def claim(*_):
            raise ConflictError("pod uid-b goes on with it")

        r.loop.registry.claim = claim
        done = await ended(await operations.ask(move(uid)))
        assert done.state is Progress.FAILED
        assert "can't go on here: pod uid-b" in done.sentence
        r.loop.call_for(uid, "a test")
        await asyncio.sleep(30)
        assert r.state(uid) is NVME

    run_virtual(main())


class SomethingElseError(Exception):
    """What no call is to raise."""


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), SomethingElseError("a bug")],
    ids=["disk", "bug"],
)
@pytest.mark.filterwarnings("ignore")
def test_once_the_successor_may_go_on_no_failure_has_it_go_on_here(rig, error):
    async def main():
        there = There()
        there.fails = {"take_over": [error]}
        r, operations, uid = await begun(rig, there)
        done = await ended(await operations.ask(move(uid)))
        assert done.state is Progress.SUCCEEDED, done.sentence
        assert there.taken == r.node.seats[uid].artifact
        r.loop.call_for(uid, "a test")
        await asyncio.sleep(30)
        assert r.state(uid) is NVME

    run_virtual(main())


def test_a_disk_that_is_full_when_a_move_is_done_has_it_go_on_in_one_place(rig):
    async def main():
        there = There()
        r, operations, uid = await begun(rig, there)
        one = await operations.ask(move(uid))
        while not there.taken:  # noqa: ASYNC110 - the machine's time is made up
            await asyncio.sleep(0.01)
        r.machine.faults.add("disk-full")
        assert (await ended(one)).state is Progress.SUCCEEDED, one.sentence
        assert r.machine.journal[MOVE + uid]["done"]
        r.loop.call_for(uid, "a test")
        await asyncio.sleep(30)
        assert r.state(uid) is NVME

    run_virtual(main())


@pytest.mark.parametrize("claimed", [False, True])
def test_a_successor_that_is_gone_before_it_answers_ends_the_move(rig, claimed):
    async def main():
        there = There()
        there.fails = {"take_over": [RetryableError("no seat of it is here")] * 1000}
        r, operations, uid = await begun(rig, there)
        r.node.world = replace(r.node.world, registry=r.loop.registry)
        one = await operations.ask(move(uid))
        await r.until(uid, NVME)
        await asyncio.sleep(5)
        assert not one.ended
        if claimed:
            artifact = ArtifactId(r.node.seats[uid].artifact)
            await r.loop.registry.claim("default", uid, artifact, THERE.uid, 1.0)
        there.fails["find"] = [RefusedError("pod default/b is on no node")]
        done = await ended(one)
        assert done.state is Progress.FAILED
        assert "is gone from node n2" in done.sentence
        r.loop.call_for(uid, "a test")
        await asyncio.sleep(30)
        assert r.state(uid) is (NVME if claimed else ACTIVE)
        r.check()

    run_virtual(main())


def test_a_seat_that_was_moved_stays_below_ram_whoever_calls_for_it(rig):
    async def main():
        r, operations, uid = await begun(rig, There())
        await ended(await operations.ask(move(uid)))
        r.loop.ask_for_tier(uid, None)
        r.loop.let_stay(uid)
        r.loop.call_for(uid, "a test")
        await asyncio.sleep(30)
        assert r.state(uid) is NVME

    run_virtual(main())


def test_what_went_by_the_object_store_outlives_its_pod_until_the_successor_has_it(rig):
    async def main():
        r, operations, uid = await begun(rig, There())
        await ended(await operations.ask(Ask(Kind.PARK, "p1", uid, tier=Tier.OBJECT)))
        artifact = r.node.seats[uid].artifact
        await ended(await operations.ask(move(uid)))
        r.loop.pod_gone(uid)
        r.machine.end_container(uid)
        while uid in r.node.seats:  # noqa: ASYNC110 - the machine's time is made up
            await asyncio.sleep(0.01)
        await asyncio.sleep(30)
        assert Tier.OBJECT in r.machine.vault[artifact].places

    run_virtual(main())


def test_a_move_that_is_cancelled_leaves_it_here(rig):
    async def main():
        there = There()
        r, operations, uid = await begun(rig, there)
        one = await operations.ask(move(uid))
        await r.until(uid, SeatState.DUMPING)
        operations.cancel("m1")
        assert one.state is Progress.CANCELLED
        await r.until(uid, ACTIVE)
        await asyncio.sleep(5)
        assert (there.taken, there.called_off) == ("", 1)
        assert not r.node.seats[uid].leave
        r.check()

    run_virtual(main())


def test_one_that_is_cancelled_while_the_successor_is_waited_for_is_called_off(rig):
    async def main():
        there = There()
        there.fails = {"expect": [RetryableError("not yet")] * 100}
        r, operations, uid = await begun(rig, there)
        await operations.ask(move(uid))
        await asyncio.sleep(3)
        operations.cancel("m1")
        await asyncio.sleep(3)
        assert (there.called_off, r.state(uid)) == (1, ACTIVE)

    run_virtual(main())


def test_what_can_not_be_dumped_is_not_moved(rig):
    async def main():
        there = There()
        r, operations, uid = await begun(rig, there)
        r.machine.refusals = {uid: "io_uring"}
        below = r.node.world.below

        async def check(*_):
            return ("it has io_uring",)

        below.dumper.check = check
        done = await ended(await operations.ask(move(uid)))
        assert done.state is Progress.FAILED
        assert "io_uring" in done.sentence
        await r.until(uid, ACTIVE)

    run_virtual(main())


def test_a_dry_run_says_what_would_happen(rig):
    async def main():
        r, operations, uid = await begun(rig, There())
        steps = operations.plan(move(uid))
        assert "restore-from: pod/uid-a" in steps[0]
        assert len(steps) == 7
        with pytest.raises(RefusedError, match="successor"):
            operations.plan(Ask(Kind.MOVE, "", uid))
        assert r.state(uid) is ACTIVE

    run_virtual(main())


# --- the agent dies ---------------------------------------------------------------------------


async def one_move(rig, machine, there):
    _r, operations, uid = await begun(rig, there, machine=machine)
    await ended(await operations.ask(move(uid)))


async def next_agent(rig, machine, there):
    r = rig(machine, tiers=BOTH)
    r.node.park_budget = 100 * GIB
    await r.recover()
    operations, moves = with_moves(r, there)
    records = r.node.world.journal.load()
    moves.resume(records)
    operations.resume(records)
    r.begin()
    r.loop.life.aside(r.loop.reports.run())
    return r, operations


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
            assert there.taken == r.node.seats[uid].artifact
            assert (p.answered, r.state(uid)) == ({}, NVME)
        else:
            assert not there.taken
            assert (p.answered, r.state(uid)) == ({uid: 1}, ACTIVE)
        r.check()

    run_virtual(second(), start=start)


def agent_dies_in_the_dump(rig, machine, there):
    """When it died."""
    ends: list[float] = []

    async def first():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        r, operations, uid = await begun(rig, there, machine=machine)
        await operations.ask(move(uid))
        await r.until(uid, SeatState.DUMPING)
        ends.append(loop.time())
        loop.stop()
        await asyncio.sleep(60)

    with contextlib.suppress(RuntimeError):  # the loop was stopped
        run_virtual(first())
    return ends[0]


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
        assert there.taken == r.node.seats[one.uid].artifact
        r.check()

    run_virtual(second(), start=died + 1.0)


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
