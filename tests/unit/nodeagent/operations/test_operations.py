"""Operations: named, journalled, watched, cancelled, and judged by what the seats are."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kybernate.core.seat.operations import Kind, Progress, Verdict
from kybernate.errors import ConflictError, NotFoundError, RefusedError, RetryableError
from kybernate.types import PodUid, SeatState, Tier
from nodeagent.app.recover import recover
from nodeagent.operations.operations import Operations
from nodeagent.operations.record import OPERATION, Ask
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash
from tests.unit.nodeagent.conftest import GIB
from tests.unit.nodeagent.offloading import ended


async def begun(rig, *names, tell=lambda *_: None, **settings):
    r = rig(**settings)
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy, tell)
    r.node.observe(operations)
    r.begin()
    seats = []
    for name in names:
        seats.append(await r.seat(name, delay=0.0))
        await r.until(seats[-1], SeatState.ACTIVE)
    return r, operations, seats


def park(uid, name="p1", **more):
    return Ask(Kind.PARK, name, uid, **more)


async def test_a_park_is_carried_out_with_its_phases_and_the_seat_wakes_on_demand(rig, proxy):
    r, operations, (a,) = await begun(rig, "a")
    one = await ended(await operations.ask(park(a, why="a test", by="kyb-controller")))
    assert (one.state, r.state(a)) == (Progress.SUCCEEDED, SeatState.PARKED)
    assert {"freeze", "all"} <= set(one.phases)
    assert "wakes on its next request" in one.sentence
    assert "parked on request by kyb-controller: a test" in r.seen.events[-1][1]
    proxy(r.loop).request(a)
    await r.until(a, SeatState.ACTIVE)
    r.check()


async def test_who_waits_for_ends_is_told_of_each_when_it_is_known(rig):
    _, operations, (a,) = await begun(rig, "a")
    under_way = []
    operations.on_end(lambda: under_way.append(operations.under_way()))
    await ended(await operations.ask(park(a)))
    assert under_way == [{}]


async def test_the_same_name_is_the_same_operation_and_does_nothing_again(rig, proxy):
    r, operations, (a,) = await begun(rig, "a")
    one = await ended(await operations.ask(park(a)))
    proxy(r.loop).request(a)
    await r.until(a, SeatState.ACTIVE)
    assert await operations.ask(park(a)) is one
    await asyncio.sleep(5.0)
    assert r.state(a) is SeatState.ACTIVE
    with pytest.raises(ConflictError, match="choose another"):
        await operations.ask(Ask(Kind.WAKE, "p1", a))


async def test_wake_brings_a_seat_back_without_any_request(rig):
    r, operations, (a, b) = await begun(rig, "a", "b")
    one = await ended(await operations.ask(Ask(Kind.WAKE, uid=a)))
    assert (one.state, one.sentence) == (Progress.SUCCEEDED, "it is active")
    assert one.name.startswith("wake-")
    assert r.state(b) is SeatState.PARKED
    r.check()


async def test_a_wake_that_waits_says_for_whom(rig):
    r, operations, (a, b) = await begun(rig, "a", "b")
    r.loop.refusals = lambda seats: {b: "RAM is short"}
    one = await operations.ask(Ask(Kind.WAKE, uid=a, limit=3.0))
    await asyncio.sleep(1.0)
    assert f"seat {r.node.seats[b].identity.name} can't be parked" in one.sentence
    await ended(one)
    assert "can't be parked: RAM is short" in one.sentence


async def test_an_evicted_seat_says_what_is_saved_and_stays_away_until_a_wake(rig, proxy):
    r, operations, (a,) = await begun(rig, "a")
    one = await ended(await operations.ask(Ask(Kind.EVICT, "e1", a, limit=30.0)))
    assert (one.state, one.saved) == (Progress.SUCCEEDED, 40 << 30)
    assert "do not outlive the pod" in one.sentence
    proxy(r.loop).request(a)
    await asyncio.sleep(5.0)
    assert r.state(a) is SeatState.PARKED
    await ended(await operations.ask(Ask(Kind.WAKE, uid=a)))
    assert r.state(a) is SeatState.ACTIVE


async def test_an_eviction_that_is_not_done_in_time_fails_and_the_seat_goes_on(rig):
    r, operations, (a,) = await begun(rig, "a")
    r.loop.refusals = lambda seats: dict.fromkeys((s.uid for s in seats), "RAM is short")
    one = await operations.ask(Ask(Kind.EVICT, uid=a, limit=3.0))
    await asyncio.sleep(1.0)
    assert (one.state, "RAM is short" in one.sentence) == (Progress.PENDING, True)
    await ended(one)
    assert one.state is Progress.FAILED
    assert "not within 3 s" in one.sentence
    assert (r.state(a), r.node.seats[a].wishes.leave) == (SeatState.ACTIVE, "")


async def test_a_drain_parks_all_and_an_undrain_lets_them_wake(rig, proxy):
    told = []
    r, operations, (a, b) = await begun(
        rig, "a", "b", tell=lambda _kind, reason, sentence: told.append((reason, sentence))
    )
    one = await ended(await operations.ask(Ask(Kind.DRAIN, why="new driver")))
    assert [reason for reason, _ in told] == ["Draining", "DrainSucceeded"]
    assert "new driver" in told[0][1]
    assert (one.state, one.done, one.total) == (Progress.SUCCEEDED, 2, 2)
    proxy(r.loop).request(a)
    await asyncio.sleep(5.0)
    assert r.state(a) is SeatState.PARKED
    with_drain = await operations.ask(Ask(Kind.WAKE, uid=b))
    assert with_drain.state is Progress.FAILED
    assert "undrain it first" in with_drain.sentence
    assert (await operations.ask(Ask(Kind.UNDRAIN))).state is Progress.SUCCEEDED
    await r.until(a, SeatState.ACTIVE)


async def test_cancelling_takes_the_wish_back(rig):
    r, operations, (a,) = await begun(rig, "a")
    r.loop.refusals = lambda seats: dict.fromkeys((s.uid for s in seats), "RAM is short")
    one = await operations.ask(park(a))
    assert operations.cancel("p1") is one
    assert (one.state, r.node.seats[a].wishes.leave) == (Progress.CANCELLED, "")
    r.loop.refusals = lambda seats: {}
    r.loop.kick()
    await asyncio.sleep(5.0)
    assert r.state(a) is SeatState.ACTIVE
    assert operations.cancel("p1").state is Progress.CANCELLED
    drain = await operations.ask(Ask(Kind.DRAIN, "d1"))
    operations.cancel("d1")
    assert (drain.state, r.node.draining) == (Progress.CANCELLED, "")


async def test_one_operation_at_a_time_but_an_eviction_comes_first(rig):
    r, operations, (a,) = await begun(rig, "a")
    r.loop.refusals = lambda seats: dict.fromkeys((s.uid for s in seats), "RAM is short")
    one = await operations.ask(park(a))
    with pytest.raises(RefusedError, match="watch it or cancel it"):
        await operations.ask(Ask(Kind.WAKE, uid=a))
    two = await operations.ask(Ask(Kind.EVICT, uid=a))
    assert (one.state, two.state) == (Progress.CANCELLED, Progress.PENDING)
    assert "takes its place" in one.sentence
    with pytest.raises(NotFoundError, match="GetStatus lists"):
        await operations.ask(park(PodUid("nobody"), "p2"))


class Unyielding:
    """A carrier whose operations are never taken back, as a move's are once its tree is ended."""

    def why_refused(self, seat, ask):
        return ""

    def plan(self, seat, ask):
        return ()

    def begin(self, operation, *, again=False):
        pass

    def verdict(self, operation, seat):
        return Verdict(Progress.RUNNING, "it continues")

    def drop(self, operation):
        raise RefusedError("it can't be taken back")

    def ended(self, operation):
        pass

    def look(self):
        pass


async def test_what_must_give_way_to_one_that_can_not_be_taken_back_is_never_begun(rig):
    r, operations, (uid,) = await begun(rig, "a")
    operations.carry(Kind.MOVE, Unyielding())
    await operations.ask(Ask(Kind.MOVE, "m1", uid, successor="b"))
    with pytest.raises(RefusedError, match="taken back"):
        await operations.ask(Ask(Kind.EVICT, "e1", uid))
    assert [one.name for one in operations.known(ended_too=True)] == ["m1"]
    assert {key for key in r.machine.journal if "e1" in key} == set()


async def test_what_ends_while_an_eviction_is_written_has_ended_as_it_did(rig, monkeypatch):
    r, operations, (a,) = await begun(rig, "a")
    journal, put = r.node.world.journal, r.node.world.journal.put
    first = await operations.ask(park(a))
    assert not first.ended

    def slow(key, record, *, synced, late=False):
        written = put(key, record, synced=synced)
        return after(written, first) if key == OPERATION + "e1" and synced else written

    async def after(written, one):
        await written
        await ended(one)

    monkeypatch.setattr(journal, "put", slow)
    second = await operations.ask(Ask(Kind.EVICT, "e1", a))
    assert first.state is Progress.SUCCEEDED, first.sentence
    assert (await ended(second)).state is Progress.SUCCEEDED


async def test_a_seat_whose_pod_goes_ends_its_operation(rig):
    r, operations, (a,) = await begun(rig, "a")
    r.loop.refusals = lambda seats: dict.fromkeys((s.uid for s in seats), "RAM is short")
    one = await operations.ask(park(a))
    r.loop.pod_gone(a)
    r.machine.end_container(a)
    await ended(one)
    assert one.state is Progress.FAILED


async def test_a_dry_run_says_what_would_happen_and_does_nothing(rig):
    r, operations, (a, b) = await begun(rig, "a", "b")
    before = [r.state(a), r.state(b)]
    assert "moved into the host's RAM" in " ".join(operations.plan(park(b)))
    assert "default/b is active on its GPUs" in operations.plan(Ask(Kind.WAKE, uid=a))[0]
    assert any("default/b" in step for step in operations.plan(Ask(Kind.DRAIN)))
    await asyncio.sleep(5.0)
    assert [r.state(a), r.state(b)] == before
    assert operations.known(ended_too=True) == []


# The first agent is killed with coroutines that never began.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("after", [0.0, 0.005, 0.02, 0.1, 1.0])
def test_an_operation_goes_on_after_a_restart_of_the_agent(rig, after):
    """Whatever had become of it: pending ones are put again, others judged by the seat."""

    async def first():
        r, operations, (a,) = await begun(rig, "a")
        await operations.ask(park(a))
        await asyncio.sleep(after)
        return r.machine, a

    async def second(machine, a):
        r = rig(machine)
        operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
        r.node.observe(operations)
        machine.carry_on()
        operations.resume(await recover(r.loop))
        one = await ended(operations.get("p1"))
        assert (one.state, r.state(a)) == (Progress.SUCCEEDED, SeatState.PARKED)
        r.check()

    machine, a = run_virtual(first())
    run_virtual(second(machine, a))


async def test_what_has_ended_is_kept_up_to_a_number_also_in_the_journal(rig):
    r, operations, (a,) = await begun(rig, "a", operations_kept=2)
    for name in ("w1", "w2"):
        await ended(await operations.ask(Ask(Kind.WAKE, name, a)))
    await asyncio.sleep(60.0)
    await ended(await operations.ask(Ask(Kind.WAKE, "w3", a)))
    assert [one.name for one in operations.known(ended_too=True)] == ["w2", "w3"]
    kept = {key for key in r.machine.journal if key.startswith("operation/")}
    assert kept == {"operation/w2", "operation/w3"}
    with pytest.raises(NotFoundError, match="keeps the last 2"):
        operations.get("w1")


async def test_however_many_end_each_can_be_asked_for_until_its_controller_has_looked(rig):
    """Or one that asks for many has those of others end without anybody knowing how."""
    _, operations, (a,) = await begun(rig, "a", operations_kept=2)
    names = [f"w{number:02}" for number in range(20)]
    for name in names:
        await ended(await operations.ask(Ask(Kind.WAKE, name, a)))
    assert [one.name for one in operations.known(ended_too=True)] == names
    await asyncio.sleep(60.0)
    await ended(await operations.ask(Ask(Kind.WAKE, "x", a)))
    assert [one.name for one in operations.known(ended_too=True)] == ["w19", "x"]


async def test_without_a_journal_nothing_is_begun(rig):
    r, operations, (a,) = await begun(rig, "a")
    r.machine.faults.add("disk-full")
    with pytest.raises(RetryableError, match="journal can't be written"):
        await operations.ask(park(a))
    assert operations.known(ended_too=True) == []
    assert not any(key.startswith("operation/") for key in r.machine.journal)
    await asyncio.sleep(2.0)
    assert r.state(a) is SeatState.ACTIVE


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("written", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash_at", range(1, 9))
@pytest.mark.parametrize("kind", [Kind.PARK, Kind.EVICT, Kind.DRAIN])
def test_an_agent_killed_at_any_write_of_an_operation_goes_on(rig, kind, crash_at, written):
    """Answered means that it is carried out; not answered, that asking again is safe."""
    answered = []
    machine = None

    async def first():
        nonlocal machine
        # Tasks that die with the agent are nobody's concern.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        r, operations, (a,) = await begun(rig, "a")
        machine = r.machine
        machine.crash_at = machine.journal_writes + crash_at
        machine.crash_after = written
        uid = a if kind is not Kind.DRAIN else PodUid("")
        answered.append(await operations.ask(Ask(kind, "o1", uid)))
        await asyncio.sleep(10.0)

    async def second():
        r = rig(machine)
        operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
        r.node.observe(operations)
        machine.crash_at = None
        machine.carry_on()
        operations.resume(await recover(r.loop))
        if not answered:
            uid = PodUid("uid-a") if kind is not Kind.DRAIN else PodUid("")
            await operations.ask(Ask(kind, "o1", uid))
        one = await ended(operations.get("o1"))
        assert (one.state, r.state("uid-a")) == (Progress.SUCCEEDED, SeatState.PARKED)
        r.check()

    with contextlib.suppress(Crash, RuntimeError):  # the loop was stopped
        run_virtual(first())
    run_virtual(second(), start=1100.0)


async def test_a_wake_that_the_driver_refuses_elsewhere_is_judged_though_tiers_are_older(rig):
    """It was parked again, and RAM was judged by what had been when it was on its way."""
    r = rig(tiers={Tier.NVME: 1000 * GIB}, min_residency_s=0.1, idle_after_s=0.1)
    r.node.park_budget = 500 * GIB
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    failed = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failed.append(told))
    r.begin()
    a, b, c = [await r.seat(name, vram=60 * GIB, anywhere=True) for name in "abc"]
    await r.until(c, SeatState.ACTIVE)
    assert r.state(a) is SeatState.PARKED
    r.loop.operators.send_away(b, "a test")
    await r.until(b, SeatState.PARKED)
    await asyncio.sleep(10)
    r.node.park_budget = 130 * GIB
    r.node.ram_seen(free=25 * GIB, room=25 * GIB)
    r.machine.faults.add("remap-refused")
    await operations.ask(Ask(Kind.WAKE, "w1", a))
    await asyncio.sleep(1)
    assert "RemapRefused" in dict(r.seen.events)
    assert failed == []
