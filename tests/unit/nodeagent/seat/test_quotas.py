"""What Shares say holds on a node: who comes last, how much RAM is whose, what is told."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.core.policy.shares import NOTHING, Share, Used
from kybernate.runtime.policies import Shares
from kybernate.types import SeatState
from nodeagent.app.recover import recover
from nodeagent.app.wiring import Agent
from nodeagent.seat.quotas import Quotas
from nodeagent.seat.usage import Usage
from tests.kit.clock import run_virtual

GIB = 1 << 30
HOUR = 3600.0
MINE = Share("default", window=HOUR, gpu_seconds=50.0)


def counting(r):
    """A rig whose use is counted, as the agent's is."""
    usage = Usage(r.node)
    quotas = Quotas(r.node, usage, r.loop.kick)
    r.node.observe(usage)
    return usage, quotas


def used(r):
    return {row.namespace: row.used for row in r.node.used}


async def test_what_is_used_up_is_told_and_over_with_the_window(rig):
    r = rig()
    _, quotas = counting(r)
    r.begin()
    quotas.set_shares([MINE], listed=True)
    task = asyncio.create_task(quotas.run())
    a = await r.seat("a", delay=0.0)
    await r.until(a, SeatState.ACTIVE)
    await asyncio.sleep(30)
    assert r.node.last == frozenset()
    assert used(r)["default"].gpu_seconds > 5
    await asyncio.sleep(40)
    assert r.node.last == {"default"}
    assert r.node.swap_view().last == {a}
    (told,) = [s for reason, s in r.seen.events if reason == "GpuSecondsUsedUp"]
    assert "has used up its 50 GPU-seconds: until " in told
    # What others have used of it counts alike, and only in its window.
    begins = MINE.begins(r.node.world.wall())
    r.loop.operators.send_away(a, "a test")
    await r.until(a, SeatState.PARKED)
    await asyncio.sleep(begins + HOUR + 10 - r.node.world.wall())
    assert r.node.last == frozenset()
    full = Used(begins + HOUR, 50.0)
    quotas.set_shares([Share("default", 1.0, HOUR, 50.0, used=full)], listed=True)
    assert r.node.last == {"default"}
    task.cancel()


def test_a_restarted_agent_counts_on_in_the_same_window(rig):
    async def main():
        r = rig()
        _, quotas = counting(r)
        r.begin()
        quotas.set_shares([MINE], listed=True)
        a = await r.seat("a", delay=0.0)
        await r.until(a, SeatState.ACTIVE)
        await asyncio.sleep(40)
        return r.machine, r.clock.time()

    async def second(machine):
        r = rig(machine)
        machine.carry_on()
        usage, quotas = counting(r)
        records = await recover(r.loop)
        await asyncio.sleep(1)
        usage.resume(records)
        quotas.resume(records)
        quotas.set_shares([MINE], listed=True)
        before = used(r)["default"].gpu_seconds
        assert before == pytest.approx(41, abs=2)
        # One that is taken away, and comes again, begins from zero.
        quotas.set_shares([], listed=True)
        assert not any(key.startswith("usage-since/") for key in machine.journal)
        r.node.use_of_namespaces(())
        quotas.set_shares([MINE], listed=True)
        assert quotas._used(MINE, usage.totals()["default"], r.node.world.wall()).gpu_seconds < 1

    machine, now = run_virtual(main())
    run_virtual(second(machine), start=now)


async def test_shares_that_are_not_all_listed_yet_have_nothing_forgotten(rig):
    r = rig()
    _, quotas = counting(r)
    quotas.resume({"usage-since/shop": {"at": 7.0, "gpu": 3.0, "newer": 1}})
    quotas.set_shares([], listed=False)
    quotas.set_shares([Share("shop", window=HOUR)], listed=False)
    assert "usage-since/shop" in r.machine.journal, "another window has begun"


async def test_weights_come_before_those_of_the_settings(rig):
    r = rig(turn_shares="research=2,batch=0.5")
    _, quotas = counting(r)
    quotas.set_shares([Share("research", 5.0)], listed=True)
    assert r.node.turns._policy.shares == {"research": 5.0, "batch": 0.5}
    quotas.set_shares([], listed=True)
    assert r.node.turns._policy.shares == {"research": 2.0, "batch": 0.5}
    assert r.node.used == () or used(r) == NOTHING


async def test_of_many_that_are_listed_at_once_the_node_is_judged_once():
    seen = []

    class Taking:
        def set_shares(self, shares, *, listed):
            seen.append((len(shares), listed))

    agent = Agent.__new__(Agent)
    agent._running, agent._shares_due = asyncio.get_running_loop(), False
    agent.quotas, agent._shares = Taking(), Shares(agent._shares_changed)
    for number in range(500):
        agent._shares._on_event("ADDED", {"metadata": {"name": f"n{number}"}, "spec": {}})
    await asyncio.sleep(5)
    assert seen == [(500, False)]
    agent._shares._on_event("DELETED", {"metadata": {"name": "n7"}, "spec": {}})
    await asyncio.sleep(5)
    assert seen == [(500, False), (499, False)]
