"""What the agent learns and publishes of when a seat is used."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kybernate.core.swap.activity import HOURS, Recorder
from kybernate.types import PodUid, SeatState
from nodeagent.app.recover import recover
from nodeagent.kube.activity import Activity
from nodeagent.kube.publish import Publisher
from nodeagent.seat.record import Seat
from tests.kit.clock import run_virtual

START = 1_700_000_000


def learning(r):
    activity = Activity(r.node)
    r.node.observe(activity)
    r.node.demand_listeners.append(activity)
    return activity


async def some_traffic(r, proxy, uid, count=30, every=20.0):
    p = proxy(r.loop, service=5.0)
    for _ in range(count):
        p.request(uid)
        await asyncio.sleep(every)


def hour_of(r):
    return int(r.node.world.wall() // 3600) % HOURS


async def test_the_profile_of_a_seat_is_published_with_the_node(rig, proxy):
    r = rig(activity_interval_s=60)
    activity = learning(r)
    r.begin()
    task = asyncio.create_task(activity.run())
    a = await r.seat("a", delay=0.0)
    b = await r.seat("b", group=r.node.inventory.groups[1], delay=0.0)
    await r.until(a, SeatState.ACTIVE)
    await some_traffic(r, proxy, a)
    shown = r.node.activity
    # 5 s of every 20 s, three calls a minute.
    assert 200 <= shown[a]["busy"][hour_of(r)] <= 280
    assert 150 <= shown[a]["calls"][hour_of(r)] <= 200
    assert shown[a]["busy"].count(-1) == HOURS - 1
    assert shown[a]["recentCalls"] > 50
    assert shown[b]["busy"][hour_of(r)] == 0
    publisher = Publisher(r.node, None, "", _Nobody())
    seats = {seat["uid"]: seat for seat in publisher.status.now()["seats"]}
    assert seats[a]["activity"] == shown[a]
    task.cancel()


class _Nobody:
    def missing(self):
        return None

    def on_change(self, call):
        pass


async def test_it_is_told_anew_only_now_and_then(rig, proxy):
    r = rig(activity_interval_s=300)
    activity = learning(r)
    r.begin()
    task = asyncio.create_task(activity.run())
    a = await r.seat("a", delay=0.0)
    await r.until(a, SeatState.ACTIVE)
    told = []
    p = proxy(r.loop, service=5.0)
    for _ in range(90):
        p.request(a)
        await asyncio.sleep(10)
        if r.node.activity.get(a) not in told:
            told.append(r.node.activity.get(a))
    assert len(told) <= 4  # nothing yet, then one in five minutes
    task.cancel()


def test_a_restarted_agent_and_the_next_pod_of_the_model_go_on_with_it(rig, proxy):
    async def first():
        r = rig()
        activity = learning(r)
        r.begin()
        a = await r.seat("a", delay=0.0)
        await r.until(a, SeatState.ACTIVE)
        await some_traffic(r, proxy, a)
        activity.renew()
        return r.machine, r.node.activity[a], r.clock.time()

    async def second(machine, before):
        r = rig(machine)
        records = await recover_into(r)
        activity = Activity(r.node)
        activity.resume(records)
        r.node.observe(activity)
        (uid,) = r.node.seats
        seat = r.node.seats[uid]
        assert r.node.activity[uid]["busy"] == before["busy"]
        r.loop.pod_gone(uid)
        r.machine.end_container(uid)
        await asyncio.sleep(20)
        assert uid not in r.node.activity
        assert [key for key in r.machine.journal if key.startswith("activity")] == [
            "activity-of/default/a"
        ]
        pod = replace(seat.identity.pod, name="a-2", uid=PodUid("again"))
        again = Seat(replace(seat.identity, pod=pod), r.clock.time(), 0.0)
        activity.seat_changed(again)
        activity.renew()
        busy = r.node.activity[again.uid]["busy"]
        assert [share > 0 for share in busy] == [share > 0 for share in before["busy"]]

    async def recover_into(r):
        r.machine.carry_on()
        return await recover(r.loop)

    machine, before, now = run_virtual(first())
    run_virtual(second(machine, before), start=now)


async def test_records_that_cannot_be_read_are_forgotten_and_the_agent_goes_on(rig):
    r = rig()
    activity = Activity(r.node)
    activity.resume({"activity/x": {"busy": 3}, "activity-of/shop/m": {}})
    r.node.observe(activity)
    r.begin()
    a = await r.seat("a", delay=0.0)
    await r.until(a, SeatState.ACTIVE)
    activity.renew()
    assert r.node.activity[a]["recentBusy"] == 0


async def test_only_the_newest_models_that_are_gone_are_kept(rig):
    r = rig()
    activity = learning(r)
    record = Recorder(START).record()
    activity.resume({f"activity-of/default/m{number}": record for number in range(70)})
    r.begin()
    uid = await r.seat("newest", delay=0.0)
    await r.until(uid, SeatState.ACTIVE)
    activity.seat_gone(r.node.seats[uid])
    activity.seat_gone(r.node.seats[uid])  # known no longer: nothing happens
    again = Activity(r.node)
    again.resume(r.machine.journal)
    assert "activity-of/default/newest" in r.machine.journal
    assert len([key for key in activity._gone if key.startswith("default/")]) == 64
