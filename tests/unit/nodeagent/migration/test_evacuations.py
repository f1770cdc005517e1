"""Evacuations: what can be saved in time is, and what can't is named."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.core.seat.operations import Kind, Progress
from kybernate.errors import RefusedError
from kybernate.types import SeatState, Tier
from nodeagent import metrics
from nodeagent.app.makemoves import agent_of
from nodeagent.migration.evacuate import Evacuations
from nodeagent.operations.operations import Operations
from nodeagent.operations.record import Ask
from nodeagent.operations.wire import operation_message
from tests.kit.machine import Crash
from tests.unit.nodeagent.offloading import ended

GIB = 1 << 30
BOTH = {Tier.NVME: 1000 * GIB, Tier.OBJECT: 1 << 62}


@pytest.fixture(autouse=True)
def rates(monkeypatch):
    """Nothing was measured yet, whatever ran in this process before."""
    monkeypatch.setattr(metrics, "rate_of", lambda step: None)


async def begun(rig, tiers, names="abc", size=1 * GIB, tell=lambda *_: None):
    r = rig(tiers=tiers)
    r.node.park_budget = 100 * GIB
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy, tell)
    operations.carry(Kind.EVACUATE, Evacuations(agent_of(r.loop), operations.advanced))
    r.node.observe(operations)
    r.begin()
    uids = []
    for name in names:
        uids.append(await r.seat(name, delay=0.0, size=size, vram=size))
        await r.until(uids[-1], SeatState.ACTIVE)
    return r, operations, uids


def evacuate(seconds, name="e1"):
    return Ask(Kind.EVACUATE, name, by="ops", limit=seconds)


async def test_all_of_it_is_saved_where_there_is_time(rig):
    r, operations, uids = await begun(rig, BOTH)
    done = await ended(await operations.ask(evacuate(3000.0)))
    assert done.state is Progress.SUCCEEDED, done.sentence
    assert "all 3 are saved" in done.sentence
    assert all(Tier.OBJECT in r.node.seats[uid].saved.copies for uid in uids)
    assert len(operation_message(done).report) == 3
    assert r.node.draining
    r.loop.operators.request_wake(uids[0], "a test")
    await asyncio.sleep(30)
    assert r.state(uids[0]) is not SeatState.ACTIVE, "the node stays drained"
    r.check()


async def test_what_has_no_time_is_named_and_the_rest_is_saved(rig):
    r, operations, uids = await begun(rig, BOTH, size=10 * GIB)
    r.node.seats[uids[1]].wishes.park_tier = "nvme"
    done = await ended(await operations.ask(evacuate(300.0)))
    assert done.state is Progress.FAILED
    assert "default/b (its pod lets its state go no deeper than nvme" in done.sentence
    assert sum("is not saved" in line for line in done.report) == 2
    saved = [uid for uid in uids if Tier.OBJECT in r.node.seats[uid].saved.copies]
    assert len(saved) == 1
    assert r.node.draining
    r.check()


async def test_what_is_not_done_in_time_is_named(rig):
    r, operations, uids = await begun(rig, BOTH, names="a")
    offloading = r.node.world.offloading

    async def never(*_, **__):
        await asyncio.sleep(1e6)

    offloading.vault.pack = never
    done = await ended(await operations.ask(evacuate(100.0)))
    assert done.state is Progress.FAILED
    assert "default/a (not in time)" in done.sentence
    assert Tier.OBJECT not in r.node.seats[uids[0]].saved.copies


async def test_a_cancelled_one_lets_all_go_on(rig):
    r, operations, uids = await begun(rig, BOTH, names="a")
    await operations.ask(evacuate(3000.0))
    operations.cancel("e1")
    assert not r.node.draining
    r.loop.operators.request_wake(uids[0], "a test")
    await r.until(uids[0], SeatState.ACTIVE)
    r.check()


async def test_a_dry_run_names_each_seat(rig):
    r, operations, _ = await begun(rig, BOTH, size=10 * GIB)
    told = operations.plan(evacuate(300.0))
    assert "nothing starts or wakes" in told[0]
    assert sum("is saved after about" in line for line in told) == 1
    assert sum("can't be saved" in line for line in told) == 2
    assert not r.node.draining


async def test_the_hosts_memory_of_a_running_seat_counts_beside_its_gpus(rig):
    r, operations, uids = await begun(rig, BOTH, names="ab")
    world = r.node.world
    offloading = replace(world.offloading, weigh=lambda s: 9 * GIB if s.uid == uids[0] else GIB)
    r.node.world = replace(world, offloading=offloading)
    # 2 GiB are written at 200 MB/s and sent at 50 MB/s in 54 s, 10 GiB are not.
    told = operations.plan(evacuate(100.0))
    saved = "default/b is saved after about 54 s (2.0 GiB: 1.0 of GPUs, 1.0 of the host)."
    assert saved in told
    assert any(line.startswith("default/a can't be saved") for line in told)


async def test_of_one_that_is_parked_the_gpus_memory_counts_once(rig):
    r, operations, (uid,) = await begun(rig, BOTH, names="a")
    r.loop.operators.send_away(uid, "a test", stays_away=True)
    await r.until(uid, SeatState.PARKED)
    world = r.node.world
    r.node.world = replace(world, offloading=replace(world.offloading, weigh=lambda s: 3 * GIB))
    told = operations.plan(evacuate(1000.0))
    assert "(3.0 GiB: 1.0 of GPUs, 2.0 of the host)" in told[1]


async def saved(operations, uid, name="s1"):
    """A save game of it in the object store."""
    ask = Ask(Kind.SAVE, name, uid, by="ops", tier=Tier.OBJECT)
    return (await ended(await operations.ask(ask))).artifact


async def test_one_whose_state_is_in_the_object_store_costs_nothing(rig):
    r, operations, (uid,) = await begun(rig, BOTH, names="a", size=10 * GIB)
    r.loop.operators.ask_for_tier(uid, Tier.OBJECT)
    r.loop.operators.send_away(uid, "a test", stays_away=True)
    await r.until(uid, SeatState.PARKED_OBJECT)
    told = operations.plan(evacuate(1.0))
    assert told[1:] == ("default/a is saved already: its state is in the object store.",)
    done = await ended(await operations.ask(evacuate(1.0)))
    assert done.state is Progress.SUCCEEDED, done.sentence


async def test_one_whose_state_is_on_nvme_is_only_sent(rig):
    r, operations, (uid,) = await begun(rig, BOTH, names="a")
    r.loop.operators.ask_for_tier(uid, Tier.NVME)
    r.loop.operators.send_away(uid, "a test", stays_away=True)
    await r.until(uid, SeatState.PARKED_NVME)
    assert operations.plan(evacuate(100.0))[1] == ("default/a is saved after about 21 s (1.0 GiB).")


async def test_a_save_game_is_not_the_state_of_now_and_is_named_where_that_is_lost(rig):
    r, operations, (uid,) = await begun(rig, BOTH, names="a", size=10 * GIB)
    await saved(operations, uid)
    newest = await saved(operations, uid, "s2")
    await r.until(uid, SeatState.ACTIVE)
    left = f"its earlier state {newest} is in the object store"
    assert operations.plan(evacuate(100.0))[1:] == (
        f"default/a can't be saved: it would be saved after 268 s, not 100; {left}.",
    )
    done = await ended(await operations.ask(evacuate(100.0)))
    assert done.state is Progress.FAILED
    assert left in done.sentence
    assert newest in r.machine.vault


async def test_without_an_object_store_it_is_refused(rig):
    _, operations, _ = await begun(rig, {Tier.NVME: GIB}, names="a")
    with pytest.raises(RefusedError, match="object store"):
        await operations.ask(evacuate(30.0))


class Mortal:
    """The operators' side of an agent that dies before its n-th act: it does nothing any more."""

    def __init__(self, operators, acts):
        self._operators, self.left = operators, acts

    def __getattr__(self, name):
        if self.left <= 0:
            return lambda *_, **__: False
        if name in {"send_away", "ask_for_tier", "drain_node"}:
            self.left -= 1
        return getattr(self._operators, name)


@pytest.mark.parametrize("acts", range(8))
async def test_an_agent_that_dies_before_any_act_is_followed_up(rig, acts):
    r, operations, uids = await begun(rig, BOTH)
    mortal = replace(agent_of(r.loop), operators=Mortal(r.loop.operators, acts))
    operations.carry(Kind.EVACUATE, Evacuations(mortal, operations.advanced))
    await operations.ask(evacuate(3000.0))
    await asyncio.sleep(400)
    saved = sum(Tier.OBJECT in r.node.seats[uid].saved.copies for uid in uids)
    assert (saved < 3) == (acts < 7)
    r.node.observers.remove(operations)
    after = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    after.carry(Kind.EVACUATE, Evacuations(agent_of(r.loop), after.advanced))
    r.node.observe(after)
    after.resume(r.machine.journal)
    done = await ended(next(iter(after.known(ended_too=True))))
    assert done.state is Progress.SUCCEEDED, done.sentence
    assert r.node.draining
    r.check()


def undrain(name="u1"):
    return Ask(Kind.UNDRAIN, name, by="ops")


async def wakes(r, uid):
    assert not r.node.draining
    r.loop.operators.request_wake(uid, "a test")
    await r.until(uid, SeatState.ACTIVE)


def successor(r):
    """The operations of the next agent, which has read the journal."""
    after = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    after.carry(Kind.EVACUATE, Evacuations(agent_of(r.loop), after.advanced))
    r.node.observe(after)
    after.resume(r.machine.journal)
    return after


@pytest.mark.parametrize("forgotten", [False, True])
async def test_once_the_node_is_undrained_whoever_was_sent_away_wakes_on_request(rig, forgotten):
    r, operations, uids = await begun(rig, BOTH)
    await ended(await operations.ask(evacuate(3000.0)))
    if forgotten:
        r.node.observers.remove(operations)
        r.machine.journal.pop("operation/e1")
        operations = successor(r)
    await operations.ask(undrain())
    for uid in uids:
        await wakes(r, uid)
    assert not any(r.node.seats[uid].wishes.tier_asked for uid in uids)
    r.check()


async def test_who_was_sent_away_by_another_stays_away(rig):
    r, operations, (uid, other) = await begun(rig, BOTH, names="ab")
    await ended(await operations.ask(evacuate(3000.0)))
    r.loop.operators.send_away(other, "evicted by ops", stays_away=True)
    await operations.ask(undrain())
    await wakes(r, uid)
    r.loop.operators.request_wake(other, "a test")
    await asyncio.sleep(30)
    assert r.state(other) is not SeatState.ACTIVE


async def test_undraining_takes_the_place_of_an_evacuation_that_is_under_way(rig):
    r, operations, uids = await begun(rig, BOTH)
    going = await operations.ask(evacuate(3000.0))
    drain = await operations.ask(Ask(Kind.DRAIN, "d1", by="ops"))
    await operations.ask(undrain())
    assert {going.state, drain.state} == {Progress.CANCELLED}
    for uid in uids:
        await wakes(r, uid)


async def test_a_drain_that_is_cancelled_leaves_an_evacuation_as_it_is(rig):
    r, operations, _ = await begun(rig, BOTH)
    await operations.ask(evacuate(3000.0))
    await operations.ask(Ask(Kind.DRAIN, "d1", by="ops"))
    operations.cancel("d1")
    assert r.node.draining
    assert (await ended(operations.get("e1"))).state is Progress.SUCCEEDED


async def test_cancelled_after_a_restart_it_lets_all_go_on(rig):
    """Also whom the last agent sent away, and for whom the time is too short by now."""
    r, operations, uids = await begun(rig, BOTH)
    r.node.world.offloading.vault.pack = _never
    await operations.ask(evacuate(150.0))
    await asyncio.sleep(120)
    assert all(r.node.seats[uid].wishes.stays_away for uid in uids[:2])
    r.node.observers.remove(operations)
    after = successor(r)
    after.cancel("e1")
    assert not any(r.node.seats[uid].wishes.leave for uid in uids)
    for uid in uids:
        await wakes(r, uid)


async def test_an_agent_that_comes_back_too_late_leaves_the_node_drained(rig):
    r, operations, uids = await begun(rig, BOTH)
    await ended(await operations.ask(evacuate(3000.0)))
    r.node.observers.remove(operations)
    late = {"state": "running", "ended_at": 0.0, "due_at": r.node.world.wall() - 1}
    r.machine.journal["operation/e1"] |= late
    after = successor(r)
    done = after.get("e1")
    assert done.state is Progress.FAILED
    assert "3 of 3 are saved; the node stays drained" in done.sentence
    assert r.node.draining
    await after.ask(undrain())
    for uid in uids:
        await wakes(r, uid)


@pytest.mark.parametrize("ends", [False, True])
async def test_an_agent_that_dies_once_it_has_noted_that_the_node_is_undrained(rig, ends):
    r, operations, uids = await begun(rig, BOTH)
    going = await operations.ask(evacuate(3000.0))
    if ends:
        await ended(going)

    def dies(*_, **__):
        raise Crash

    operations._replace = dies
    with pytest.raises(Crash):
        await operations.ask(undrain())
    r.node.observers.remove(operations)
    after = successor(r)
    assert after.get("u1").state is Progress.SUCCEEDED
    assert after.get("e1").state is (Progress.SUCCEEDED if ends else Progress.CANCELLED)
    for uid in uids:
        await wakes(r, uid)
    r.check()


async def _never(*_, **__):
    await asyncio.sleep(1e6)
