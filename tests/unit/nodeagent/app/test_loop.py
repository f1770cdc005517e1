"""The agent's loop on a made-up machine: who gets the GPU, and what becomes of failures."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.ports import ImageCommand, ProcessState
from kybernate.types import PodUid, SeatState
from nodeagent.seat.leases import Demand
from tests.kit.clock import run_virtual
from tests.kit.machine import Machine

ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING


async def test_pods_of_one_group_start_one_after_the_other_in_order_of_their_bind(rig):
    r = rig()
    r.begin()
    uids = []
    for name in "abc":
        uids.append(await r.seat(name))
        await asyncio.sleep(0.01)
    for uid in uids:
        await r.until(uid, ACTIVE)
    assert [r.state(uid) for uid in uids] == [PARKED, PARKED, ACTIVE]
    assert [entry[1] for entry in r.machine.log if entry[0] == "go"] == uids
    r.check()


async def test_a_request_wakes_its_seat_and_parks_the_other(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    p = proxy(r.loop)
    began = r.clock.time()
    p.request(a)
    await r.until(a, ACTIVE, 1.0)
    assert r.clock.time() - began < 0.05
    assert r.state(b) is PARKED
    await asyncio.sleep(0.2)
    assert p.answered == {a: 1}
    assert r.machine.held(r.node.seats[a].identity.gpus[0]).keys() == {a}
    r.check()


async def test_two_busy_seats_take_turns_and_answer_everything(rig, proxy):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    p = proxy(r.loop)
    for _ in range(400):
        p.request(a)
        p.request(b)
        await asyncio.sleep(0.05)
    await asyncio.sleep(10)
    assert p.answered == {a: 400, b: 400}
    assert r.node.seats[a].history.wakes >= 5
    r.check()


async def test_a_seat_of_two_gpus_is_not_starved_by_seats_of_one(rig, proxy, groups):
    r = rig()
    r.begin()
    ones = [await r.seat(f"s{i}", groups[g]) for i, g in enumerate(["G0", "G0", "G1", "G1"])]
    both = await r.seat("both", groups["G01"])
    await r.until(both, ACTIVE)
    p = proxy(r.loop)
    for _ in range(600):
        for uid in (*ones, both):
            p.request(uid)
        await asyncio.sleep(0.05)
    await asyncio.sleep(20)
    assert p.answered == dict.fromkeys((*ones, both), 600)
    r.check()


async def test_a_cancelled_client_wakes_nobody(rig, proxy):
    r = rig(min_residency_s=5.0, idle_after_s=5.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    p = proxy(r.loop)
    p.request(a)
    p.cancel(a)
    await asyncio.sleep(30)
    assert (r.state(a), r.state(b)) == (PARKED, ACTIVE)
    assert b in p.leases


async def test_every_proxy_must_have_drained(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    one, two = proxy(r.loop, "one"), proxy(r.loop, "two", service=4.0)
    two.request(b)
    await asyncio.sleep(0.01)
    one.request(a)
    await asyncio.sleep(2)
    assert r.state(b) is SeatState.DRAINING
    await r.until(a, ACTIVE)
    assert two.answered == {b: 1}
    r.check()


async def test_a_seat_that_all_proxies_gave_back_is_not_asked_for(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    p = proxy(r.loop)
    asked = []
    p.drain = lambda *lease: asked.append(lease)
    p.request(a, gives_back=[b])
    await r.until(a, ACTIVE, 1.0)
    assert not asked
    assert p.leases.keys() == {a}
    r.check()


async def test_what_was_given_back_and_stays_is_granted_again_at_once(rig, proxy):
    r = rig(min_residency_s=5.0, idle_after_s=60.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    one, two = proxy(r.loop, "one"), proxy(r.loop, "two")
    one.request(a, gives_back=[b])
    await asyncio.sleep(0.01)
    assert r.state(b) is ACTIVE
    assert b in one.leases
    one.request(b)
    two.request(b)
    await asyncio.sleep(0.1)
    assert (one.answered, two.answered) == ({b: 1}, {b: 1})
    await r.until(a, ACTIVE, 10.0)
    r.check()


async def test_a_proxy_that_has_resigned_is_granted_nothing_again(rig, proxy):
    r = rig(min_residency_s=5.0, idle_after_s=60.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    leaving, other = proxy(r.loop, "leaving"), proxy(r.loop, "other")
    r.loop.proxies.proxy_drained("leaving", b, leaving.leases.pop(b))
    other.request(a, gives_back=[b])
    await asyncio.sleep(0.01)
    assert b in other.leases
    assert b not in leaving.leases


async def test_what_is_given_back_for_a_seat_that_is_gone_is_granted_again(rig, proxy):
    r = rig(min_residency_s=5.0, idle_after_s=60.0)
    r.begin()
    await r.seat("a")
    b = await r.seat("b")
    await r.until(b, ACTIVE)
    p = proxy(r.loop)
    p.request(PodUid("gone"), gives_back=[b])
    await asyncio.sleep(0.01)
    assert b in p.leases


async def test_a_lease_of_another_time_can_not_be_given_back(rig, proxy):
    r = rig(min_residency_s=5.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    p = proxy(r.loop)
    old = p.leases[b] - 1
    r.loop.proxies.proxy_demand(p.name, a, Demand(waiting=1), [(b, old), (PodUid("x"), 1)])
    await asyncio.sleep(0.01)
    assert not r.node.leases.drained(b)


async def test_requests_that_last_too_long_are_cut_off(rig, proxy):
    r = rig(min_residency_s=0.0, drain_limit_s=3.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    p = proxy(r.loop, service=100.0)
    p.request(b)
    await asyncio.sleep(0.01)
    p.request(a)
    await r.until(a, ACTIVE, 5.0)
    assert p.revoked == 1
    assert "Revoked" in [reason for reason, _ in r.seen.events]


async def test_a_broken_stream_keeps_its_lease_until_the_deadline(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0, lease_break_s=5.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    gone, here = proxy(r.loop, "gone", service=60.0), proxy(r.loop, "here")
    gone.request(b)
    await asyncio.sleep(0.01)
    gone.leave()
    here.request(a)
    await asyncio.sleep(4.9)
    assert r.state(b) is SeatState.DRAINING
    await r.until(a, ACTIVE, 0.5)
    r.check()


async def test_a_proxy_that_comes_back_holds_what_it_held(rig, proxy):
    r = rig(min_residency_s=0.0, idle_after_s=0.0, lease_break_s=5.0)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    first, other = proxy(r.loop, "one", service=1.0), proxy(r.loop, "two")
    first.request(b)
    await asyncio.sleep(0.01)
    other.request(a)
    await asyncio.sleep(0.1)
    first.leave()
    again = proxy(r.loop, "one")
    await r.until(a, ACTIVE, 1.0)
    assert a in again.leases
    r.check()


@pytest.mark.parametrize("fault", ["lock-timeout", "freeze-fails", "worker-begins"])
async def test_a_park_that_can_be_undone_is_and_is_tried_again(rig, proxy, fault):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    r.machine.faults.add(fault)
    p = proxy(r.loop)
    p.request(a)
    await r.until(a, ACTIVE)
    assert "ParkReverted" in [reason for reason, _ in r.seen.events]
    assert r.state(b) is PARKED
    r.check()


async def test_a_worker_that_ended_while_parked_does_not_cost_the_seat_its_state(rig, proxy):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    worker = r.machine.add_worker(r.node.seats[b].tree.handle)
    p = proxy(r.loop)
    p.request(a)
    await r.until(a, ACTIVE)
    assert worker.cuda is ProcessState.CHECKPOINTED
    worker.alive = False
    p.request(b)
    await r.until(b, ACTIVE)
    assert [reason for reason, _ in r.seen.events if reason == "SeatFailed"] == []
    r.check()


async def test_a_seat_is_not_called_active_because_nvml_fails_once_it_is_parked(rig, proxy):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    r.machine.faults.add("nvml-unsure")
    p = proxy(r.loop)
    p.request(a)
    await r.until(a, ACTIVE)
    assert r.machine.faults == set()
    assert r.state(b) is PARKED
    assert "ParkReverted" not in [reason for reason, _ in r.seen.events]
    p.request(b)
    await asyncio.sleep(5)
    assert p.answered == {a: 1, b: 1}
    r.check()


@pytest.mark.parametrize("parked", [0, 1])
async def test_nothing_is_begun_that_is_not_on_the_disk(rig, proxy, parked):
    r = rig()
    r.begin()
    uids = [await r.seat("a"), await r.seat("b")]
    await r.until(uids[1], ACTIVE)
    p = proxy(r.loop)
    if parked:
        await asyncio.sleep(2)
        r.machine.end_container(uids[1])
        await r.until(uids[1], WAITING)
    r.machine.faults.add("disk-full")
    p.request(uids[0])
    await r.until(uids[0], ACTIVE)
    assert p.answered == {}
    await asyncio.sleep(1)
    assert p.answered == {uids[0]: 1}
    assert "SeatFailed" not in [reason for reason, _ in r.seen.events]
    assert r.seen.events
    r.check()


@pytest.mark.parametrize("fault", ["checkpoint-fails", "park-hangs", "lock-sticks"])
async def test_a_park_that_breaks_a_seat_ends_in_a_cold_start(rig, proxy, fault):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    r.machine.faults.add(fault)
    p = proxy(r.loop)
    p.request(a)
    await r.until(a, ACTIVE, 200.0)
    assert "SeatFailed" in [reason for reason, _ in r.seen.events]
    assert r.state(b) is WAITING
    r.machine.restart_container(b)
    await r.until(b, ACTIVE)
    assert [entry[2] for entry in r.machine.log if entry[:2] == ("go", b)] == ["1", "2"]
    r.check()


@pytest.mark.parametrize("fault", ["restore-fails", "wake-hangs"])
async def test_a_wake_that_fails_ends_in_a_cold_start(rig, proxy, fault):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    r.machine.faults.add(fault)
    p = proxy(r.loop)
    p.request(a)
    await r.until(a, WAITING, 200.0)
    r.machine.restart_container(a)
    await r.until(a, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {a: 1}
    r.check()


async def test_a_gpu_that_somebody_else_fills_delays_the_wake(rig, proxy):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    thief = r.machine._new(PodUid("thief"))
    p = proxy(r.loop)
    await asyncio.sleep(2)
    thief.memory = {r.node.seats[a].identity.gpus[0]: 60 << 30}
    p.request(a)
    await asyncio.sleep(5)
    assert r.state(a) is not ACTIVE
    assert "bytes in use" in r.node.seats[a].history.reason or r.state(a) is SeatState.WAKING
    thief.alive = False
    await r.until(a, ACTIVE)
    assert "PutOff" in [reason for reason, _ in r.seen.events]


async def test_a_seat_of_the_whole_gpu_leaves_others_what_they_have(rig):
    r = rig()
    other = r.machine._new(PodUid("somebody"))
    r.begin()
    a = await r.seat("a")
    gpu = r.node.seats[a].identity.gpus[0]
    other.memory = {gpu: 8 << 30}
    r.node.foreign = {gpu: 8 << 30}
    await r.until(a, ACTIVE)


async def test_a_workload_that_listens_has_started_once_it_is_healthy(rig):
    r = rig()
    well = asyncio.Event()

    async def healthy(seat):
        return well.is_set()

    r.node.healthy = healthy
    r.begin()
    a = await r.seat("a")
    await asyncio.sleep(20)
    assert r.state(a) is SeatState.STARTING
    well.set()
    await r.until(a, ACTIVE)


async def test_a_seat_is_let_to_its_gpus_before_it_starts_or_it_does_not(rig):
    r = rig()
    r.begin()
    r.machine.faults.add("shut-devices")
    a = await r.seat("a")
    await r.until(a, ACTIVE)
    assert any("can't be let to its GPUs" in said for _, said in r.seen.events)
    assert r.node.world.specs.released == {r.machine.inits[a]}


async def test_a_pod_deleted_while_parked_is_thawed_and_forgotten(rig):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    assert r.machine.frozen
    r.loop.doors.on_term(a, 15)
    assert not r.machine.frozen
    assert ("ok", a) in r.machine.log
    await asyncio.sleep(2)
    assert r.machine.inits[a] not in [p.pid for p in r.machine._of(a)]
    r.loop.pod_gone(a)
    await asyncio.sleep(1)
    assert a not in r.node.seats
    assert a not in r.machine.open_doors
    assert r.state(b) is ACTIVE


async def test_a_parked_tree_that_was_killed_is_thawed_so_that_it_can_die(rig):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    r.machine.end_container(a)
    await r.until(a, WAITING, 5.0)
    assert not r.machine._of(a)


async def test_a_crashed_container_waits_for_its_turn_again(rig):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    r.machine.end_container(b)
    await r.until(b, WAITING, 5.0)
    r.machine.restart_container(b)
    await r.until(b, ACTIVE)
    assert r.state(a) is PARKED
    r.check()


async def test_a_new_container_waits_until_nothing_of_the_old_is_left(rig):
    r = rig()
    r.begin()
    a = await r.seat("a")
    await r.until(a, ACTIVE)
    old = r.machine._of(a)
    r.machine.start_container(a)
    await asyncio.sleep(1)
    assert r.state(a) is ACTIVE
    for process in old:
        process.signalled = True
    r.machine.reap_all()
    await asyncio.sleep(2)
    assert [entry[2] for entry in r.machine.log if entry[0] == "go"] == ["1", "2"]
    r.check()


async def test_a_workload_that_never_serves_is_started_anew(rig):
    r = rig(start_limit_s=10.0)
    r.begin()
    a = await r.seat("a", delay=1000.0)
    await r.until(a, WAITING, 20.0)
    await r.until(a, SeatState.STARTING, 20.0)
    await r.until(a, WAITING, 20.0)
    assert "SeatFailed" in [reason for reason, _ in r.seen.events]


async def test_a_start_has_the_limit_that_its_seat_has_of_its_own(rig, groups):
    r = rig(start_limit_s=1000.0)
    r.node.start_limit = lambda seat: 10.0 if seat.identity.model == "a" else None
    r.begin()
    a = await r.seat("a", delay=1e6)
    b = await r.seat("b", group=groups["G1"], delay=50.0)
    await r.until(a, SeatState.STARTING)
    await r.until(a, WAITING, 20.0)
    assert "does not serve 10 s after" in "".join(why for _, why in r.seen.events)
    await r.until(b, SeatState.ACTIVE, 60.0)


@pytest.mark.parametrize("every", [3.0, 0.5, 0.001])
async def test_a_start_has_its_limit_however_often_its_gate_is_asked_for(rig, every):
    r = rig(start_limit_s=10.0)
    r.begin()
    r.machine.go = lambda *_: None

    async def slowly(seat):
        await asyncio.sleep(0.01)

    r.loop.steps.lack_of_room = slowly  # so that the fastest never let it get any further
    a = await r.seat("a")
    await r.until(a, SeatState.STARTING)
    began = r.clock.time()
    while r.state(a) is SeatState.STARTING and r.clock.time() < began + 30:
        await asyncio.sleep(every)
        r.machine.hello(a)
    assert r.clock.time() - began == pytest.approx(10.0, abs=3.1)
    await r.until(a, WAITING, 20.0)
    (failed,) = [said for reason, said in r.seen.events if reason == "SeatFailed"]
    assert "does not serve 10 s after its start" in failed
    r.machine.restart_container(a)
    await r.until(a, SeatState.STARTING)
    await asyncio.sleep(8)
    assert r.state(a) is SeatState.STARTING


def test_a_start_has_its_limit_over_a_restart_of_the_agent(rig):
    machine = Machine({"GPU-0": 80 << 30, "GPU-1": 80 << 30})

    async def first():
        r = rig(machine, start_limit_s=100.0)
        r.begin()
        a = await r.seat("a", delay=1e6)
        await r.until(a, SeatState.STARTING)
        await asyncio.sleep(60)
        return a, r.clock.time()

    a, then = run_virtual(first())

    async def second():
        r = rig(machine, start_limit_s=100.0)
        await r.recover()
        await asyncio.sleep(35)
        assert r.state(a) is SeatState.STARTING
        await r.until(a, SeatState.WAITING, 10)

    run_virtual(second(), start=then)


async def test_a_pod_without_a_command_gets_its_images(rig):
    r = rig()
    r.machine.images["img"] = ImageCommand(("/bin/serve",), ("--all",))
    a = await r.seat("a")
    r.node.seats[a].contact.image_mode = True
    r.begin()
    await r.until(a, ACTIVE)
    assert ("go", a, "1", "/bin/serve", "--all") in r.machine.log


async def test_a_pod_without_any_command_is_refused_with_a_sentence(rig):
    r = rig()
    r.machine.images["img"] = ImageCommand((), ())
    a = await r.seat("a")
    r.node.seats[a].contact.image_mode = True
    r.begin()
    await asyncio.sleep(3)
    assert ("refuse", a) in [entry[:2] for entry in r.machine.log]


async def test_without_a_port_a_workload_has_started_when_it_holds_a_gpu(rig):
    r = rig()
    r.begin()
    a = await r.seat("a", port=None)
    await r.until(a, ACTIVE, 1.0)


async def test_probes_are_answered_for_a_parked_seat(rig):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    assert (r.loop.doors.on_probe(a), r.loop.doors.on_probe(b)) == ("alive", "run")
    assert r.loop.doors.on_status(a)[0] == "parked"
    assert r.loop.doors.on_probe(PodUid("x")) == "dead"
