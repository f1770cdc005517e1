"""What goes wrong beside the driver: lost GPUs, lost records, ignored signals, late helpers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.core.swap import Action, ActionKind
from kybernate.errors import DeadlineError, RefusedError
from kybernate.ports import ProcessState
from kybernate.testing.clock import run_virtual
from kybernate.testing.machine import FakeHelper, Machine
from kybernate.types import Group, SeatState

ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING
MEMORY = {"GPU-0": 80 << 30, "GPU-1": 80 << 30}


def with_lost(inventory, *lost):
    gpus = tuple(replace(gpu, healthy=gpu.uuid not in lost) for gpu in inventory.gpus)
    return replace(inventory, gpus=gpus)


def reasons(r):
    return [reason for reason, _ in r.seen.events]


def test_a_lost_gpu_ends_its_active_seat_and_touches_no_other(rig, proxy, groups):
    async def main():
        r = rig()
        r.begin()
        parked, active = await r.seat("a"), await r.seat("b")
        other = await r.seat("other", groups["G1"])
        await r.until(active, ACTIVE)
        await r.until(other, ACTIVE)
        whole = r.node.inventory
        r.machine.lost.add("GPU-0")
        r.loop.inventory_reported(with_lost(whole, "GPU-0"))
        await r.until(active, WAITING, 5.0)
        assert ("GpuLost", "GPU GPU-0 is lost or unhealthy; the workload is started anew") in (
            r.seen.events
        )
        r.machine.restart_container(active)
        p = proxy(r.loop)
        p.request(parked)
        p.request(other)
        await asyncio.sleep(30)
        assert [r.state(uid) for uid in (parked, active, other)] == [PARKED, WAITING, ACTIVE]
        assert p.answered == {other: 1}
        r.machine.lost.clear()
        r.loop.inventory_reported(whole)
        await r.until(parked, ACTIVE, 10.0)
        assert [entry[2] for entry in r.machine.log if entry[:2] == ("go", active)] == ["1", "2"]
        r.check()

    run_virtual(main())


@pytest.mark.parametrize("state", [SeatState.PARKING, SeatState.WAKING, SeatState.STARTING])
def test_a_gpu_lost_half_way_ends_the_seat(rig, proxy, state):
    async def main():
        r = rig()
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        if state is SeatState.STARTING:
            at_work = a
        else:
            await r.until(b, ACTIVE)
            proxy(r.loop).request(a)
            at_work = b if state is SeatState.PARKING else a
        while r.state(at_work) is not state:  # noqa: ASYNC110 - states have no event here
            await asyncio.sleep(0.001)
        r.machine.lost.add("GPU-0")
        r.loop.inventory_reported(with_lost(r.node.inventory, "GPU-0"))
        await r.until(at_work, WAITING, 5.0)
        assert "GpuLost" in reasons(r)
        assert not r.machine.locked()

    run_virtual(main())


def test_a_held_group_keeps_its_gpus_whatever_the_plugin_says(rig):
    async def main():
        r = rig()
        r.begin()
        a = await r.seat("a")
        await r.until(a, ACTIVE)
        before = r.node.inventory
        groups = tuple(replace(g, gpus=("GPU-1",)) if g.name == "G0" else g for g in before.groups)
        with pytest.raises(RefusedError, match="group G0 is held by pod default/a with GPUs GPU-0"):
            r.loop.inventory_reported(replace(before, groups=groups))
        assert r.node.inventory == before
        fewer = replace(with_lost(before, "GPU-1"), groups=())
        with pytest.raises(RefusedError, match="can't be changed to no GPU"):
            r.loop.inventory_reported(fewer)
        assert r.node.inventory.groups == before.groups
        assert r.node.inventory.memory().keys() == {"GPU-0"}
        assert r.state(a) is ACTIVE

    run_virtual(main())


def test_one_action_that_fails_unexpectedly_holds_up_neither_the_others_nor_the_clock(rig, proxy):
    async def main():
        r = rig()
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        await r.until(b, ACTIVE)
        nobody = Action(ActionKind.WAKE, "uid-nobody", "a bug")
        assert not r.loop._carry_out(nobody)
        r.node.refusals = Once()
        p = proxy(r.loop)
        p.request(a)
        await r.until(a, ACTIVE, 10.0)
        assert r.state(b) is PARKED

    run_virtual(main())


class Once:
    """A judge that breaks at the one moment when the loop asks it again, for a park."""

    def __init__(self):
        self.calls = 0

    def __call__(self, seats):
        if any(seat.state is SeatState.DRAINING for seat in seats):
            self.calls += 1
            if self.calls == 2:
                raise ValueError("a bug")
        return {}


def test_a_workload_that_ignores_sigterm_is_in_service_again_after_its_grace(rig, proxy):
    async def main():
        r = rig()
        r.begin()
        a = await r.seat("a")
        await r.until(a, ACTIVE)
        p = proxy(r.loop)
        r.loop.on_term(a, 15)
        p.request(a)
        await asyncio.sleep(34)
        assert p.answered == {}
        await asyncio.sleep(3)
        assert (r.state(a), p.answered) == (ACTIVE, {a: 1})
        assert "TermIgnored" in reasons(r)

    run_virtual(main())


def test_a_pod_that_is_being_deleted_is_not_in_service_again_however_long_it_takes(rig, prepared):
    async def main():
        r, _, pods = prepared(rig)
        r.begin()
        a = await r.seat("a")
        await r.until(a, ACTIVE)
        pods.create("a", group="G0", token="a-token")
        pod = pods.pods["default", "a"]
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
        pods.cache.event("MODIFIED", pod)
        await asyncio.sleep(300)
        assert r.node.seats[a].ending
        assert "TermIgnored" not in reasons(r)

    run_virtual(main())


def test_a_parked_seat_whose_pod_is_deleted_does_not_wait_for_a_signal(rig, prepared):
    async def main():
        r, _, pods = prepared(rig)
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        await r.until(b, ACTIVE)
        pods.create("a", group="G0", token="a-token")
        pod = pods.pods["default", "a"]
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
        pods.cache.event("MODIFIED", pod)
        await r.until(a, WAITING, 3.0)
        assert not r.machine._of(a)

    run_virtual(main())


def test_a_helper_that_starts_while_its_seat_ends_is_ended_too(rig):
    async def main():
        r = rig()
        r.begin()
        a = await r.seat("a")
        await r.until(a, ACTIVE)
        await asyncio.sleep(0.1)
        seat = r.node.seats[a]
        r.loop.steps.drop_helper(seat)
        started: list[FakeHelper] = []

        class Slow:
            async def start(self, uid):
                await asyncio.sleep(1)
                started.append(FakeHelper(r.machine))
                return started[-1]

        object.__setattr__(r.node.world, "helpers", Slow())
        late = asyncio.create_task(r.loop.steps.helper(seat))
        await asyncio.sleep(0.1)
        r.loop.steps.drop_helper(seat)
        with pytest.raises(DeadlineError, match="ended while its helper was started"):
            await late
        assert [helper.killed for helper in started] == [True]
        again = await r.loop.steps.helper(seat)
        assert not again.killed

    run_virtual(main())


def test_a_parked_tree_that_was_only_half_frozen_is_frozen_after_a_restart(rig):
    machine = Machine(MEMORY)

    async def first():
        r = rig(machine)
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        await r.until(b, ACTIVE)
        return a, r.node.seats[a].handle

    a, handle = run_virtual(first())
    machine.frozen.discard(handle)
    machine.freezing.add(handle)

    async def second():
        r = rig(machine)
        await r.recover()
        await asyncio.sleep(0.1)
        assert r.state(a) is PARKED
        assert handle in machine.frozen

    run_virtual(second(), start=5000.0)


# --- a lost journal ------------------------------------------------------------------------------


def two_on_one_gpu(rig):
    """A parked and an active seat on GPU-0, and what the agent knew of them."""
    machine = Machine(MEMORY)

    async def first():
        r = rig(machine)
        r.begin()
        parked, active = await r.seat("a"), await r.seat("b")
        await r.until(active, ACTIVE)
        return [r.node.seats[uid].record() for uid in (parked, active)]

    return machine, run_virtual(first())


def forget(machine, *records):
    """The journal knows the pods, and nothing of what was done with them."""
    for record in records:
        nothing = {"state": "waiting", "init": None, "tree": None, "handle": "", "cuda": []}
        machine.journal[f"seat/{record['uid']}"] = record | nothing


def test_seats_without_a_record_are_found_parked_and_active_as_they_are(rig, proxy):
    machine, (parked, active) = two_on_one_gpu(rig)
    forget(machine, parked, active)

    async def second():
        r = rig(machine)
        await r.recover()
        await r.until(active["uid"], ACTIVE, 5.0)
        await r.until(parked["uid"], PARKED, 5.0)
        assert machine.frozen == {parked["handle"]}
        p = proxy(r.loop)
        p.request(parked["uid"])
        await asyncio.sleep(10)
        assert p.answered == {parked["uid"]: 1}
        assert "SeatFailed" not in reasons(r)
        r.check()

    run_virtual(second(), start=5000.0)


def test_without_an_inventory_a_tree_without_a_record_stands_apart(rig):
    machine, (parked, active) = two_on_one_gpu(rig)
    forget(machine, parked, active)
    del machine.journal["inventory"]

    async def second():
        r = rig(machine)
        await r.recover()
        await asyncio.sleep(20)
        assert [r.state(one["uid"]) for one in (parked, active)] == [WAITING, WAITING]
        r.begin()
        await r.until(active["uid"], ACTIVE, 5.0)
        await r.until(parked["uid"], PARKED, 5.0)
        r.check()

    run_virtual(second(), start=5000.0)


@pytest.mark.parametrize(
    ("fault", "end"), [(None, PARKED), ("lock-timeout", PARKED), ("checkpoint-fails", WAITING)]
)
def test_a_running_tree_without_room_is_parked_or_killed(rig, fault, end):
    """Both of one GPU's seats run: the one that the journal doesn't know has no right to it."""
    machine, (stray, active) = two_on_one_gpu(rig)
    forget(machine, stray)
    machine.thaw(stray["handle"])
    for process in machine.procs.values():
        if process.handle == stray["handle"] and process.memory:
            process.cuda, process.memory = ProcessState.RUNNING, {"GPU-0": 1 << 30}

    async def second():
        r = rig(machine)
        machine.faults |= {fault} if fault else set()
        await r.recover()
        await asyncio.sleep(2)
        assert [r.state(active["uid"]), r.state(stray["uid"])] == [ACTIVE, end]
        assert ("SeatFailed" in reasons(r)) == (end is WAITING)
        assert machine.held("GPU-0").keys() == {active["uid"]}
        assert not machine.locked()
        r.check()

    run_virtual(second(), start=5000.0)


def test_a_tree_without_a_record_that_the_driver_calls_failed_is_killed(rig):
    machine, (stray, _) = two_on_one_gpu(rig)
    forget(machine, stray)
    for process in machine.procs.values():
        if process.handle == stray["handle"] and process.memory:
            process.cuda = ProcessState.FAILED

    async def second():
        r = rig(machine)
        await r.recover()
        await asyncio.sleep(2)
        assert "SeatFailed" in reasons(r)
        assert r.state(stray["uid"]) is WAITING
        assert not machine._of(stray["uid"])

    run_virtual(second(), start=5000.0)


# --- several small models at once ----------------------------------------------------------------

SHARED = Group("G0", "kyb.ai/gpu-1x-seat", ("GPU-0",), 4, active_slots=2)


def test_small_models_are_active_together_as_far_as_slots_and_memory_go(rig, proxy):
    async def main():
        r = rig()
        r.begin()
        groups = (SHARED, *r.node.inventory.groups[1:])
        r.loop.inventory_reported(replace(r.node.inventory, groups=groups))
        gib = 1 << 30
        sizes = {"a": 20, "b": 30, "c": 40}
        uids = [
            await r.seat(name, SHARED, size=size * gib, vram=size * gib)
            for name, size in sizes.items()
        ]
        await r.until(uids[2], ACTIVE)
        p = proxy(r.loop)
        for _ in range(200):
            for uid in uids:
                p.request(uid)
            await asyncio.sleep(0.05)
        await asyncio.sleep(10)
        assert p.answered == dict.fromkeys(uids, 200)
        assert [r.state(uid) for uid in uids].count(ACTIVE) == 2
        large = await r.seat("large", SHARED, size=70 * gib, vram=70 * gib)
        await r.until(large, ACTIVE)
        assert [r.state(uid) for uid in uids] == [PARKED] * 3
        r.check()

    run_virtual(main())


# --- what storms found ---------------------------------------------------------------------------


def test_a_start_that_an_agent_left_undone_looks_for_room_again(rig):
    machine = Machine(MEMORY)

    thief = machine._new("thief")
    thief.memory = {"GPU-0": 60 << 30}

    async def first():
        r = rig(machine)
        r.begin()
        a = await r.seat("a")
        await asyncio.sleep(0.1)
        return r.node.seats[a].record()

    record = run_virtual(first())
    uid = record["uid"]
    machine.journal[f"seat/{uid}"] = record | {"state": "starting"}

    async def second():
        r = rig(machine)
        await r.recover()
        await asyncio.sleep(5)
        assert r.state(uid) is not ACTIVE
        assert "PutOff" in reasons(r)
        thief.alive = False
        await r.until(uid, ACTIVE, 5.0)

    run_virtual(second(), start=1000.1)


def test_a_park_that_keeps_failing_does_not_keep_the_agent_busy(rig):
    async def main():
        r = rig(min_residency_s=0.0, idle_after_s=0.0)
        r.begin()
        a = await r.seat("a")
        await r.until(a, ACTIVE)
        r.machine.fault = lambda name: name == "nvml-list"
        before = r.machine.journal_writes
        r.loop.send_away(a, "an operator parks it")
        await asyncio.sleep(10)
        assert r.machine.journal_writes - before < 60
        r.machine.fault = lambda name: False
        await r.until(a, PARKED, 3.0)

    run_virtual(main())


def test_a_kill_that_fails_at_first_is_tried_until_the_parked_tree_is_gone(rig):
    async def main():
        r = rig()
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        await r.until(b, ACTIVE)
        r.machine.faults.add("kill-fails")
        r.loop.on_term(a, 15)
        await r.until(a, WAITING, 5.0)
        assert not r.machine._of(a)
        assert "KillIncomplete" in reasons(r)

    run_virtual(main())


def test_a_seat_that_was_gone_is_not_taken_up_again(rig):
    machine, (record, _) = two_on_one_gpu(rig)
    machine.journal[f"seat/{record['uid']}"] = record | {"state": "gone"}

    async def second():
        r = rig(machine)
        await r.recover()
        assert record["uid"] not in r.node.seats
        assert f"seat/{record['uid']}" not in machine.journal

    run_virtual(second(), start=5000.0)


def test_demand_that_came_before_its_seat_was_known_again_is_served(rig, proxy):
    async def main():
        r = rig()
        r.begin()
        b = await r.seat("b")
        await r.until(b, ACTIVE)
        p = proxy(r.loop)
        r.machine.apps["uid-a"] = r.machine.apps[b]
        p.request("uid-a")
        a = await r.seat("a")
        await r.until(a, ACTIVE, 10.0)
        await asyncio.sleep(1)
        assert p.answered == {a: 1}

    run_virtual(main())


@pytest.mark.parametrize("state", [PARKED, SeatState.WAKING])
def test_what_began_to_use_a_gpu_while_no_agent_looked_is_not_frozen_with_it(rig, state):
    """Its tree was thawed, and then the agent was killed."""
    machine, (record, active) = two_on_one_gpu(rig)
    machine.journal[f"seat/{record['uid']}"] = record | {"state": state.value}
    machine.thaw(record["handle"])
    if state is SeatState.WAKING:
        machine.listener = None
        machine.end_container(active["uid"])

    async def second():
        r = rig(machine)
        machine.faults.add("worker-begins")
        await r.recover()
        await asyncio.sleep(3)
        found = r.state(record["uid"])
        assert found is (WAITING if state is PARKED else ACTIVE)
        assert not machine.locked()
        r.check()

    run_virtual(second(), start=5000.0)


def test_a_tree_without_a_record_is_not_restored_where_there_is_no_room(rig):
    """Half of its ranks are parked, and somebody else has the memory."""
    machine, (stray, active) = two_on_one_gpu(rig)
    forget(machine, stray)
    machine.thaw(stray["handle"])
    machine.add_worker(stray["handle"])

    async def second():
        r = rig(machine)
        machine.faults.add("freeze-fails")
        await r.recover()
        await asyncio.sleep(3)
        assert r.state(active["uid"]) is ACTIVE
        assert "SeatFailed" in reasons(r)
        assert not machine._of(stray["uid"])
        r.check()

    run_virtual(second(), start=5000.0)


@pytest.mark.parametrize(
    ("fault", "event", "end"),
    [
        ("lock-timeout", "ParkReverted", PARKED),
        ("checkpoint-refused", "ParkReverted", PARKED),
        ("lock-sticks", "SeatFailed", WAITING),
        ("lock-kills", "ParkReverted", PARKED),
        ("checkpoint-fails", "SeatFailed", WAITING),
        ("park-hangs", "SeatFailed", WAITING),
        ("helper-dies", "ParkReverted", PARKED),
    ],
)
def test_every_failure_of_a_park_ends_as_it_should(rig, proxy, fault, event, end):
    async def main():
        r = rig()
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        r.machine.apps[b].ranks = 2
        await r.until(b, ACTIVE)
        await asyncio.sleep(0.1)
        r.machine.faults.add(fault)
        p = proxy(r.loop)
        p.request(a)
        await r.until(a, ACTIVE, 200.0)
        assert r.state(b) is end
        assert event in reasons(r)
        assert r.machine.faults == set()
        assert not r.machine.locked()
        assert r.machine.held("GPU-0").keys() == {a}
        r.check()

    run_virtual(main())


@pytest.mark.parametrize(
    ("fault", "end"),
    [("restore-fails", WAITING), ("wake-hangs", WAITING), ("helper-dies", ACTIVE)],
)
def test_every_failure_of_a_wake_ends_as_it_should(rig, proxy, fault, end):
    async def main():
        r = rig()
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        await r.until(b, ACTIVE)
        p = proxy(r.loop)
        r.loop.send_away(b, "a test")
        await r.until(b, PARKED)
        r.machine.faults.add(fault)
        p.request(a)
        await r.until(a, end, 200.0)
        assert not r.machine.locked()
        assert (r.machine.held("GPU-0").keys() == {a}) is (end is ACTIVE)
        p.request(b)
        await r.until(b, ACTIVE, 10.0)
        r.check()

    run_virtual(main())
