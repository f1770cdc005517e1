"""Processes that use a GPU without their turn, on the made-up machine."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.errors import DriverError
from kybernate.ports import ProcessState
from kybernate.types import PodUid, SeatState
from nodeagent import metrics
from tests.unit.nodeagent.conftest import INVENTORY
from tests.unit.nodeagent.watched import Watched

ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING
GIB = 1 << 30


async def two_seats(rig, **settings):
    """a parked, b active on the same GPU."""
    r = rig(**settings)
    g = Watched(r)
    r.begin()
    a, b = await r.seat("a", size=30 * GIB), await r.seat("b", size=30 * GIB)
    await r.until(b, ACTIVE)
    return r, g, a, b


def stray(r, pod, size=GIB, handle=""):
    """A process that holds memory of the first GPU; `pod` None: outside of Kubernetes."""
    process = r.machine._new(pod)
    process.memory = {next(iter(r.machine.memory)): size}
    process.cuda = ProcessState.RUNNING
    process.handle = handle
    return process


async def test_a_parked_seat_that_comes_back_to_the_gpu_is_parked_again(rig, proxy):
    r, g, a, b = await two_seats(rig)
    async with g.running():
        await asyncio.sleep(3)
        assert g.events("Intruder") == []
        handle = r.node.seats[a].tree.handle
        r.machine.frozen.discard(handle)
        worker = r.machine.add_worker(handle)
        worker.memory = dict.fromkeys(worker.memory, 5 * GIB)
        await asyncio.sleep(1.0)
        assert worker.cuda is ProcessState.RUNNING
        await asyncio.sleep(1.5)
        assert worker.cuda is ProcessState.CHECKPOINTED
        assert handle in r.machine.frozen
        assert (r.state(a), r.state(b)) == (PARKED, ACTIVE)
        assert "while the seat is parked" in g.events("Intruder")[0]
        assert len(g.events("ParkedAgain")) == 1
        proxy(r.loop).request(a)
        await r.until(a, ACTIVE)
        assert worker.cuda is ProcessState.RUNNING
        await asyncio.sleep(5)
        assert len(g.events("Intruder")) == 1
        r.check()


async def test_two_processes_of_a_seat_are_parked_again_together(rig, proxy):
    r, g, a, _ = await two_seats(rig)
    async with g.running():
        handle = r.node.seats[a].tree.handle
        r.machine.frozen.discard(handle)
        workers = [r.machine.add_worker(handle) for _ in range(2)]
        await asyncio.sleep(3)
        assert [one.cuda for one in workers] == [ProcessState.CHECKPOINTED] * 2
        assert len(g.events("Intruder")) == 1, "told of the pod, not of each"
        assert len(g.events("ParkedAgain")) == 1
        proxy(r.loop).request(a)
        await r.until(a, ACTIVE, 5)


# What is dropped before it begins was never awaited.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_second_park_that_is_dropped_before_it_begins_leaves_nothing_behind(rig, proxy):
    r, g, a, _ = await two_seats(rig)
    seat, enforcer = r.node.seats[a], g.warden.enforcer
    enforcer._park_again(seat)
    seat.tasks.work.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert enforcer.parking_again == set()
    proxy(r.loop).request(a)
    await r.until(a, ACTIVE, 5)


async def test_one_that_cannot_be_parked_again_is_ended(rig):
    r, g, a, _ = await two_seats(rig)
    async with g.running():
        handle = r.node.seats[a].tree.handle
        r.machine.frozen.discard(handle)
        r.machine.add_worker(handle)
        r.machine.faults.add("lock-timeout")
        await r.until(a, WAITING, 6)
        assert r.machine._of(a) == []
        assert "could not be parked" in g.events("SeatFailed")[0]


async def test_a_wake_does_not_meet_the_second_park(rig, proxy):
    r, g, a, b = await two_seats(rig, min_residency_s=0.0)
    async with g.running():
        p = proxy(r.loop)
        handle = r.node.seats[a].tree.handle
        r.machine.frozen.discard(handle)
        r.machine.add_worker(handle)
        for _ in range(60):
            p.request(a)
            p.request(b)
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        assert p.answered == {a: 60, b: 60}
        assert g.events("SeatFailed") == []
        r.check()


async def test_an_execed_process_is_reported_once_and_lives_where_the_policy_says_so(rig):
    r, g, a, _ = await two_seats(rig, intruder="report")
    async with g.running():
        process = stray(r, a)
        await asyncio.sleep(10)
        assert process.alive
        assert len(g.events("Intruder")) == 1
        assert "did not start" in g.events("Intruder")[0]
        gpu = next(iter(r.machine.memory))
        assert r.node.foreign == {gpu: GIB}
        # What is active there, and the process: what is parked has left it.
        assert metrics.GPU_USED_BYTES.labels(gpu)._value.get() == 31 * GIB


@pytest.mark.parametrize("settings", [{}, {"intruder": "kill"}])
async def test_an_execed_process_is_killed(rig, settings):
    r, g, a, b = await two_seats(rig, **settings)
    async with g.running():
        of_parked, of_active = stray(r, a), stray(r, b)
        await asyncio.sleep(3)
        assert g.culprits.killed == [of_parked.pid]
        assert of_active.alive
        assert (r.state(a), r.state(b)) == (PARKED, ACTIVE)


async def test_processes_with_short_lives_are_judged_by_their_pod(rig):
    """None of them is there at two looks."""

    r, g, a, b = await two_seats(rig)
    async with g.running():
        for _ in range(8):
            one = stray(r, a)
            await asyncio.sleep(0.6)
            one.memory, one.alive = {}, False
            await asyncio.sleep(0.5)
        last = stray(r, a)
        await asyncio.sleep(1.5)
        assert g.culprits.killed[-1] == last.pid, "at the first look at it"
        assert (r.state(a), r.state(b)) == (PARKED, ACTIVE)


@pytest.mark.parametrize("rule", ["report", "park", "kill"])
async def test_a_pod_whose_kyb_init_never_calls_is_judged_once_it_could_have(rig, rule):
    r, g, _, b = await two_seats(rig, intruder=rule)
    r.machine.start_container = lambda uid: None
    async with g.running():
        c = await r.seat("c")
        process = stray(r, c)
        await asyncio.sleep(29)
        assert g.events("Intruder") == []
        await asyncio.sleep(4)
        (said,) = g.events("Intruder")
        assert "did not start" in said
        assert "while the seat is waiting" in said
        assert process.alive is (rule == "report")
        assert r.state(b) is ACTIVE


async def test_a_seat_without_its_turn_is_ended_where_the_policy_says_kill(rig):
    r, g, a, b = await two_seats(rig, intruder="kill")
    async with g.running():
        r.machine.frozen.discard(r.node.seats[a].tree.handle)
        r.machine.add_worker(r.node.seats[a].tree.handle)
        await r.until(a, WAITING, 5)
        assert r.state(b) is ACTIVE
        assert len(g.events("Intruder")) == 1


async def sharing(rig, **settings):
    """a, which declares too little, and b, which keeps to it: both active on one GPU."""
    r = rig(**settings)
    g = Watched(r)
    groups = tuple(replace(group, active_slots=2) for group in INVENTORY.groups)
    r.loop.inventory_reported(replace(INVENTORY, groups=groups))
    a = await r.seat("a", size=30 * GIB, vram=20 * GIB)
    b = await r.seat("b", size=20 * GIB, vram=20 * GIB)
    await r.until(a, ACTIVE)
    await r.until(b, ACTIVE)
    return r, g, a, b


async def test_a_seat_over_what_it_declares_is_parked_for_those_beside_it(rig, proxy):
    r, g, a, b = await sharing(rig)
    async with g.running():
        assert g.events("OverDeclared") == []
        await r.until(a, PARKED, 4)
        assert r.state(b) is ACTIVE
        (said,) = g.events("OverDeclared")
        assert "30.0 GiB of GPU-0 and declares 20.0" in said
        assert "kyb.ai/vram: 30Gi" in said
        proxy(r.loop).request(a)
        await r.until(a, ACTIVE)
        await r.until(a, PARKED, 4)
        assert r.state(b) is ACTIVE
        assert g.events("SeatFailed") == []
        r.check()


async def test_one_that_takes_turns_stays_parked_for_its_excess_and_is_told_how_it_wakes(rig):
    r, g, a, b = await sharing(rig)
    r.node.seats[a].wishes.weight = 1.0
    async with g.running():
        await r.until(a, PARKED, 4)
        await asyncio.sleep(60)
        assert (r.state(a), r.state(b)) == (PARKED, ACTIVE)
        (said,) = g.events("OverDeclared")
        assert said.endswith(f"kybernate agent wake {r.node.seats[a].identity.pod}")
        r.loop.operators.request_wake(a, "an operator asked")
        await r.until(a, ACTIVE)
        r.check()


async def test_a_seat_over_what_it_declares_makes_room_that_another_has_on_paper(rig):
    r = rig()
    g = Watched(r)
    groups = tuple(replace(group, active_slots=2) for group in INVENTORY.groups)
    r.loop.inventory_reported(replace(INVENTORY, groups=groups))
    a = await r.seat("a", size=60 * GIB, vram=20 * GIB)
    await r.until(a, ACTIVE)
    b = await r.seat("b", size=30 * GIB, vram=30 * GIB)
    await asyncio.sleep(20)
    assert (r.state(a), r.state(b)) == (ACTIVE, WAITING)
    async with g.running():
        await r.until(b, ACTIVE, 10)
        assert r.state(a) is PARKED
        assert "seat G0-seat-b needs that GPU" in g.events("OverDeclared")[0]
        r.check()


async def test_seats_that_take_turns_are_only_told_of_their_excess(rig, proxy):
    r = rig()
    g = Watched(r)
    r.begin()
    a = await r.seat("a", size=30 * GIB, vram=20 * GIB)
    b = await r.seat("b", size=20 * GIB, vram=20 * GIB)
    await r.until(b, ACTIVE)
    async with g.running():
        p = proxy(r.loop, service=4.0)
        for _ in range(30):
            p.request(a)
            p.request(b)
            await asyncio.sleep(1.0)
        assert g.events("OverDeclared")
        assert all(said.endswith("pod template") for said in g.events("OverDeclared"))


@pytest.mark.parametrize("rule", ["kill", "report"])
async def test_the_policy_says_what_becomes_of_a_seat_over_what_it_declares(rig, rule):
    r, g, a, b = await sharing(rig, intruder=rule)
    generation = r.node.seats[a].history.generation
    async with g.running():
        await asyncio.sleep(3)
        assert len(g.events("OverDeclared")) == 1
        assert r.state(b) is ACTIVE
        assert (r.state(a) is ACTIVE) is (rule == "report")
        assert len(g.events("SeatFailed")) == (rule == "kill")
        assert r.node.seats[a].history.generation == generation


@pytest.mark.parametrize("rule", ["park", "kill", "report"])
async def test_alone_on_its_gpu_it_is_told_once_what_to_declare(rig, rule):
    r = rig(intruder=rule)
    g = Watched(r)
    r.begin()
    a = await r.seat("a", size=30 * GIB, vram=20 * GIB)
    async with g.running():
        await r.until(a, ACTIVE)
        await asyncio.sleep(10)
        assert r.state(a) is ACTIVE
        assert len(g.events("OverDeclared")) == 1


async def test_an_operators_park_is_not_taken_back_by_its_excess(rig):
    r, g, a, _ = await sharing(rig)
    r.loop.refusals = lambda seats: {a: "the host is full"}
    r.loop.operators.send_away(a, "maintenance", stays_away=True)
    async with g.running():
        await asyncio.sleep(4)
        assert len(g.events("OverDeclared")) == 1
        seat = r.node.seats[a]
        assert (seat.wishes.leave, seat.wishes.stays_away) == ("maintenance", True)


async def test_a_process_outside_kubernetes_is_reported_once_and_its_memory_respected(rig, proxy):
    r, g, a, _ = await two_seats(rig)
    async with g.running():
        process = stray(r, None, 60 * GIB)
        await asyncio.sleep(5)
        ((reason, sentence),) = g.announcer.node
        assert reason == "ForeignProcess"
        assert "outside of Kubernetes" in sentence
        assert process.alive
        assert r.node.foreign == {next(iter(r.machine.memory)): 60 * GIB}
        notice = r.node.notices["ExclusiveGpus"]
        assert not notice.ok
        assert str(process.pid) in notice.message
        p = proxy(r.loop)
        r.node.seats[a].tree.held = dict.fromkeys(r.node.seats[a].identity.gpus, 30 * GIB)
        p.request(a)
        await asyncio.sleep(5)
        assert p.answered == {}
        process.alive = False
        await r.until(a, ACTIVE, 10)
        await asyncio.sleep(2)
        assert r.node.foreign == {}
        assert r.node.notices["ExclusiveGpus"].ok
        assert len(g.announcer.node) == 1
        r.check()


@pytest.mark.parametrize("rule", ["report", "park", "kill"])
async def test_a_pod_without_a_seat_is_told_by_its_name(rig, rule):
    r, g, _, _ = await two_seats(rig, intruder=rule)
    meta = {"namespace": "x", "name": "thief", "uid": "uid-t"}
    g.roster.event("ADDED", {"metadata": meta})
    g.pods_known = False
    async with g.running():
        process = stray(r, PodUid("uid-t"))
        await asyncio.sleep(5)
        assert g.announcer.pods == []
        g.pods_known = True
        await asyncio.sleep(3)
        ((pod, reason, sentence),) = g.announcer.pods
        assert (pod, reason) == ("x/thief", "Intruder")
        assert "without a seat" in sentence
        assert process.alive is (rule == "report")


async def test_swaps_under_its_eyes_are_no_intrusions(rig, proxy):
    r, g, a, b = await two_seats(rig, min_residency_s=0.0, guard_interval_s=0.003)
    async with g.running():
        p = proxy(r.loop, service=0.01)
        for _ in range(200):
            p.request(a)
            p.request(b)
            await asyncio.sleep(0.02)
        await asyncio.sleep(5)
        assert p.answered == {a: 200, b: 200}
        assert g.events("Intruder") == []
        assert g.announcer.node == []
        r.check()


async def test_a_gpu_that_does_not_answer_keeps_what_was_known_of_it(rig):
    class Deaf:
        def __init__(self, real, gpu):
            self.real, self.gpu = real, gpu

        def used(self, gpu):
            return self.real.used(gpu)

        def processes(self, gpu):
            if gpu == self.gpu:
                raise DriverError("nvmlDeviceGetComputeRunningProcesses", 15, "GPU_IS_LOST")
            return self.real.processes(gpu)

    r, g, _, _ = await two_seats(rig)
    first, second = r.machine.memory
    async with g.running():
        stray(r, None, 2 * GIB)
        await asyncio.sleep(3)
        r.node.world = replace(r.node.world, gpus=Deaf(r.node.world.gpus, first))
        other = stray(r, None, GIB)
        other.memory = {second: GIB}
        await asyncio.sleep(3)
        assert r.node.foreign == {first: 2 * GIB, second: GIB}
