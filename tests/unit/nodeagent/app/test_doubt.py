"""An agent whose journal has lost lines: it tells, asks where seats are, and drops nothing."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.types import Gpu, Group, SeatState, of_record
from nodeagent import metrics
from nodeagent.seat.parts.saved import Begins
from nodeagent.seat.record import from_record
from tests.kit.clock import run_virtual
from tests.kit.machine import Machine
from tests.kit.machine.journal import spoil
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    NVME,
    TIERS,
    down,
    two,
    two_on_one_gpu,
    when,
)
from tests.unit.nodeagent.succession import left, of, went

PARKED = SeatState.PARKED
MEMORY = {"GPU-0": 80 << 30, "GPU-1": 80 << 30}


@pytest.mark.parametrize("state", ["active", "parking", "draining"])
def test_two_records_that_cannot_both_be_true_are_asked(rig, state):
    """The line that told of the first one's park is lost."""
    machine, (parked, active) = two_on_one_gpu(rig)
    machine.journal[f"seat/{parked['uid']}"] = parked | {"state": state}
    machine.journal_damage = "1 of the journal's lines can't be read"
    before = metrics.REGISTRY.get_sample_value("kyb_agent_journal_damaged_total")

    async def second():
        r = rig(machine)
        await r.recover()
        await r.until(active["uid"], ACTIVE, 5.0)
        await r.until(parked["uid"], PARKED, 5.0)
        notice = r.node.notices["JournalIntact"]
        assert not notice.ok
        assert "can't be read" in notice.message
        r.check()

    run_virtual(second(), start=5000.0)
    after = metrics.REGISTRY.get_sample_value("kyb_agent_journal_damaged_total")
    assert after == before + 1


def test_of_three_records_those_that_clash_without_the_one_on_its_way_are_asked_too(rig):
    machine = Machine(MEMORY)

    async def first():
        r = rig(machine)
        r.begin()
        parked, active = await r.seat("a"), await r.seat("b")
        await r.until(active, ACTIVE)
        waiting = await r.seat("c")
        assert r.state(waiting) is SeatState.WAITING
        return parked, active, waiting, [r.node.seats[uid].record() for uid in (parked, waiting)]

    parked, active, waiting, records = run_virtual(first())
    machine.journal[f"seat/{parked}"] = records[0] | {"state": "active"}
    machine.journal[f"seat/{waiting}"] = records[1] | {"state": "starting"}
    machine.journal_damage = "1 of the journal's lines can't be read"

    async def second():
        r = rig(machine)
        await r.recover()
        await r.until(active, ACTIVE, 5.0)
        await r.until(parked, PARKED, 5.0)
        await r.until(waiting, SeatState.WAITING, 5.0)
        # While they are disbelieved one by one, records still say what can't be.
        assert machine.breaches == []

    run_virtual(second(), start=5000.0)


@pytest.mark.parametrize("proxies", [1, 0], ids=["another is asked for", "nobody is"])
def test_the_line_that_told_of_a_wake_is_lost(rig, proxy, proxies):
    """No other seat wakes beside it, and it runs on."""
    machine, (parked, active) = two_on_one_gpu(rig)
    woke, other = parked["uid"], active["uid"]

    async def second():
        r = rig(machine)
        await r.recover()
        proxy(r.loop).request(woke)
        await r.until(woke, ACTIVE)

    run_virtual(second(), start=3000.0)
    machine.journal[f"seat/{woke}"] = parked
    machine.journal_damage = "1 of the journal's lines can't be read"

    async def third():
        r = rig(machine)
        await r.recover()
        for _ in range(proxies):
            proxy(r.loop).request(other)
        await r.until(woke, ACTIVE)
        await r.until(other, ACTIVE if proxies else PARKED)
        r.check()
        assert "SeatFailed" not in dict(r.seen.events)

    run_virtual(third(), start=5000.0)


def test_without_the_inventory_s_line_active_seats_go_on(rig):
    machine, (_, active) = two_on_one_gpu(rig)
    del machine.journal["inventory"]
    machine.journal_damage = "1 of the journal's lines can't be read"

    async def second():
        r = rig(machine)
        await r.recover()
        assert r.state(active["uid"]) is ACTIVE

    run_virtual(second(), start=5000.0)


def test_an_intact_journal_is_not_doubted(rig):
    machine, (_, active) = two_on_one_gpu(rig)

    async def second():
        r = rig(machine)
        await r.recover()
        assert r.state(active["uid"]) is ACTIVE
        assert "JournalIntact" not in r.node.notices

    run_virtual(second(), start=5000.0)


def test_a_gate_whose_container_ends_before_it_is_heard_keeps_its_gpus_from_nobody(rig):
    """Its kubelet starts the next one after minutes."""
    machine = Machine(MEMORY)

    async def first():
        r = rig(machine)
        r.begin()
        await r.until(await r.seat("a"), ACTIVE)
        return await r.seat("b")

    gate = run_virtual(first())
    machine.journal_damage = "1 of the journal's lines can't be read"

    async def second():
        await ends_unheard(rig(machine), gate)

    run_virtual(second(), start=5000.0)


async def ends_unheard(r, gate):
    recovering = asyncio.ensure_future(r.recover())
    while gate not in r.node.seats:  # noqa: ASYNC110 - before anybody says hello
        await asyncio.sleep(0)
    assert r.node.seats[gate].unverified
    r.machine.end_container(gate)
    await recovering
    await asyncio.sleep(5)
    assert r.state(gate) is SeatState.WAITING
    assert not r.node.seats[gate].unverified


def test_one_that_was_adopting_and_ends_before_it_is_heard_adopts_the_same_again(rig):
    machine = Machine(MEMORY)

    async def first():
        r = rig(machine, tiers=TIERS)
        cold, _, _, telling = await left(r)
        r.loop.offload.gates.shut = lambda *_: asyncio.sleep(3600)
        new = await r.seat("new", restore=of(cold))
        await when(lambda: r.state(new) is SeatState.ADOPTING)
        telling.cancel()
        return new

    async def second():
        r = rig(machine, tiers=TIERS)
        await ends_unheard(r, new)
        machine.restart_container(new)
        await r.until(new, NVME)
        assert r.node.seats[new].saved.begins is Begins.ADOPTED
        assert went(r, new) == []

    new = run_virtual(first())
    machine.journal_damage = "1 of the journal's lines can't be read"
    run_virtual(second(), start=5000.0)


@pytest.mark.parametrize("damage", ["", "1 of the journal's lines can't be read"])
def test_a_state_that_only_a_lost_line_may_name_is_not_dropped(rig, damage):
    machine = Machine(MEMORY)

    async def first():
        r = rig(machine, tiers=TIERS)
        a, _ = await two(r)
        await down(r, a, NVME)
        return r.node.seats[a].record()

    record = run_virtual(first())
    (artifact,) = machine.vault
    # As if the agent had been killed in the middle of that dump.
    older = record | {"state": "dumping", "artifact": "", "copies": [], "unsealed": True}
    machine.journal[f"seat/{record['uid']}"] = older
    machine.journal_damage = damage

    async def second():
        r = rig(machine, tiers=TIERS)
        await r.recover()
        await asyncio.sleep(20)
        assert (artifact in machine.vault) is bool(damage)

    run_virtual(second(), start=5000.0)


def test_a_spoilt_line_takes_back_the_newest_record_alone():
    machine = Machine(MEMORY)
    machine.journal.update({"a": {"n": 2}, "b": {"n": 1}})
    machine.written.extend([("a", None), ("a", {"n": 1}), ("b", None)])
    spoil(machine, 2)
    assert machine.journal == {"a": {"n": 2}, "b": {"n": 1}}
    spoil(machine, 1)
    assert machine.journal == {"a": {"n": 1}, "b": {"n": 1}}
    assert machine.journal_damage


def test_members_of_a_newer_version_are_left_out(rig):
    _, (record, _) = two_on_one_gpu(rig)
    gpu = {"uuid": "GPU-0", "index": 0, "product": "H", "memory": 1, "numa": 0, "newer": 1}
    assert of_record(Gpu, gpu).memory == 1
    assert from_record({**record, "newer": 1}).uid == record["uid"]
    with pytest.raises(TypeError, match="missing"):
        of_record(Group, {"name": "G0"})
