"""What goes wrong beside the driver: lost GPUs, lost records, ignored signals, late helpers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.core.swap.swap import Action, ActionKind
from kybernate.errors import DeadlineError, RefusedError
from kybernate.types import Group, SeatState
from tests.kit.clock import run_virtual
from tests.kit.machine import FakeHelper, Machine

ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING
MEMORY = {"GPU-0": 80 << 30, "GPU-1": 80 << 30}


def with_lost(inventory, *lost):
    gpus = tuple(replace(gpu, healthy=gpu.uuid not in lost) for gpu in inventory.gpus)
    return replace(inventory, gpus=gpus)


def reasons(r):
    return [reason for reason, _ in r.seen.events]


async def test_a_lost_gpu_ends_its_active_seat_and_touches_no_other(rig, proxy, groups):
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
    assert ("GpuLost", "GPU GPU-0 is lost or unhealthy; the workload is started again") in (
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


@pytest.mark.parametrize("state", [SeatState.PARKING, SeatState.WAKING, SeatState.STARTING])
async def test_a_gpu_lost_half_way_ends_the_seat(rig, proxy, state):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    if state is SeatState.STARTING:
        at_work = a
    else:
        await r.until(b, ACTIVE)
        proxy(r.loop).request(a)
        at_work = b if state is SeatState.PARKING else a
    await begun(r, at_work, state)
    r.machine.lost.add("GPU-0")
    r.loop.inventory_reported(with_lost(r.node.inventory, "GPU-0"))
    await r.until(at_work, WAITING, 5.0)
    assert "GpuLost" in reasons(r)
    assert not r.machine.locked()


async def begun(r, uid, state):
    """Until it is in this state and its command has begun."""
    began = ("go", uid, "1")
    while r.state(uid) is not state or began not in r.machine.log:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.001)


async def test_a_seat_at_the_gate_waits_while_its_gpu_is_lost(rig, monkeypatch):
    """Found by the fault matrix: it was started again, though nothing of it had begun."""
    r = rig()
    r.begin()
    whole, asked, answered = r.node.inventory, asyncio.Event(), asyncio.Event()

    async def lack_of_room(_seat):
        asked.set()
        await answered.wait()

    monkeypatch.setattr(r.loop.steps, "lack_of_room", lack_of_room)
    a = await r.seat("a")
    await asked.wait()
    r.machine.lost.add("GPU-0")
    r.loop.inventory_reported(with_lost(whole, "GPU-0"))
    answered.set()
    await r.until(a, WAITING, 5.0)
    await asyncio.sleep(5)
    assert r.state(a) is WAITING
    assert "GpuLost" not in reasons(r)
    monkeypatch.undo()
    r.machine.lost.clear()
    r.loop.inventory_reported(whole)
    await r.until(a, ACTIVE, 10.0)
    assert [entry[:2] for entry in r.machine.log if entry[:1] == ("go",)] == [("go", a)]
    r.check()


def test_a_seat_at_the_gate_waits_though_the_agent_was_restarted_as_well(rig, monkeypatch):
    """A kyb-init connects again a moment after an agent's start: until then nothing has begun."""
    machine = Machine(MEMORY)

    async def first():
        r = rig(machine)
        r.begin()
        asked = asyncio.Event()

        async def lack_of_room(_seat):
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(r.loop.steps, "lack_of_room", lack_of_room)
        a = await r.seat("a")
        await asked.wait()
        machine.lost.add("GPU-0")
        r.loop.inventory_reported(with_lost(r.node.inventory, "GPU-0"))
        await asyncio.sleep(0.01)
        assert r.state(a) is SeatState.STARTING
        return a, r.node.inventory

    a, broken = run_virtual(first())

    async def second():
        r = late(rig(machine))
        await r.recover()
        r.loop.inventory_reported(broken)
        await r.until(a, WAITING, 5.0)
        await asyncio.sleep(5)
        assert "GpuLost" not in reasons(r), r.seen.events
        machine.lost.clear()
        r.loop.inventory_reported(with_lost(broken))
        await r.until(a, ACTIVE, 10.0)

    run_virtual(second(), start=20.0)


def test_what_runs_on_a_lost_gpu_is_ended_as_soon_as_its_kyb_init_is_heard(rig):
    machine = Machine(MEMORY)

    async def first():
        r = rig(machine)
        r.begin()
        a = await r.seat("a")
        await begun(r, a, SeatState.STARTING)
        machine.lost.add("GPU-0")
        return a, with_lost(r.node.inventory, "GPU-0")

    a, broken = run_virtual(first())

    async def second():
        r = late(rig(machine))
        await r.recover()
        r.loop.inventory_reported(broken)
        assert "GpuLost" not in reasons(r), "nobody knows yet"
        await r.until(a, WAITING, 5.0)
        assert "GpuLost" in reasons(r)

    run_virtual(second(), start=20.0)


def late(r):
    """Its kyb-inits say hello a moment after its start, as real ones do."""
    hello = r.machine.hello
    r.machine.hello = lambda uid: asyncio.get_running_loop().call_later(0.1, hello, uid)
    return r


async def test_a_held_group_keeps_its_gpus_whatever_the_plugin_says(rig):
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


async def test_one_action_that_fails_unexpectedly_holds_up_neither_the_others_nor_the_clock(
    rig, proxy
):
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    nobody = Action(ActionKind.WAKE, "uid-nobody", "a bug")
    assert not r.loop._carry_out(nobody)
    r.loop.refusals = Once()
    p = proxy(r.loop)
    p.request(a)
    await r.until(a, ACTIVE, 10.0)
    assert r.state(b) is PARKED


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


async def test_a_workload_that_ignores_sigterm_is_in_service_again_after_its_grace(rig, proxy):
    r = rig()
    r.begin()
    a = await r.seat("a")
    await r.until(a, ACTIVE)
    p = proxy(r.loop)
    r.loop.doors.on_term(a, 15)
    p.request(a)
    await asyncio.sleep(34)
    assert p.answered == {}
    await asyncio.sleep(3)
    assert (r.state(a), p.answered) == (ACTIVE, {a: 1})
    assert "TermIgnored" in reasons(r)


async def test_a_pod_that_is_being_deleted_is_not_in_service_again_however_long_it_takes(
    rig, prepared
):
    r, _, pods = prepared(rig)
    r.begin()
    a = await r.seat("a")
    await r.until(a, ACTIVE)
    pods.create("a", group="G0", token="a-token")
    pod = pods.pods["default", "a"]
    pod["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    pods.cache.event("MODIFIED", pod)
    await asyncio.sleep(300)
    assert r.node.seats[a].ending.asked
    assert "TermIgnored" not in reasons(r)


async def test_a_parked_seat_whose_pod_is_deleted_does_not_wait_for_a_signal(rig, prepared):
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


async def test_a_helper_that_starts_while_its_seat_ends_is_ended_too(rig):
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


def test_a_parked_tree_that_was_only_half_frozen_is_frozen_after_a_restart(rig):
    machine = Machine(MEMORY)

    async def first():
        r = rig(machine)
        r.begin()
        a, b = await r.seat("a"), await r.seat("b")
        await r.until(b, ACTIVE)
        return a, r.node.seats[a].tree.handle

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


# --- several small models at once ----------------------------------------------------------------

SHARED = Group("G0", "kyb.ai/gpu-1x-seat", ("GPU-0",), 4, active_slots=2)


async def test_small_models_are_active_together_as_far_as_slots_and_memory_go(rig, proxy):
    r = rig()
    r.begin()
    groups = (SHARED, *r.node.inventory.groups[1:])
    r.loop.inventory_reported(replace(r.node.inventory, groups=groups))
    gib = 1 << 30
    sizes = {"a": 20, "b": 30, "c": 40}
    uids = [
        await r.seat(name, SHARED, size=size * gib, vram=size * gib) for name, size in sizes.items()
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
