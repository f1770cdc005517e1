"""Seats parked below RAM: down to NVMe and the object store, and back."""

from __future__ import annotations

import asyncio
import io

from prometheus_client import REGISTRY
from rich.console import Console

from kybernate.cli.agent import view
from kybernate.core.seat.budget import HostMemory
from kybernate.gen import agent_pb2 as pb
from kybernate.local.link import seat_info
from kybernate.ports import ProcessState
from kybernate.types import SeatState, Tier
from nodeagent import metrics
from nodeagent.kube.attendance import Attendance
from nodeagent.kube.publish import Publisher
from nodeagent.offload import tiers
from nodeagent.operations.wire import seat_message
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    GIB,
    NVME,
    OBJECT,
    PARKED,
    TIERS,
    WAITING,
    app_of,
    down,
    reasons,
    two,
    when,
)
from tests.unit.nodeagent.watched import Watched


async def test_a_seat_goes_to_nvme_and_a_request_brings_it_back(rig, proxy):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    await down(r, cold)
    seat = r.node.seats[cold]
    assert not any(p.alive and p.handle == seat.tree.handle for p in r.machine.procs.values())
    assert (seat.saved.size, seat.saved.copies) == (40 * GIB, {Tier.NVME})
    assert r.machine.gates.keys() == {cold}
    p = proxy(r.loop)
    p.request(cold)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(2)
    assert p.answered == {cold: 1}
    assert (app_of(r, cold).inner, app_of(r, cold).cuda) == (inner, ProcessState.RUNNING)
    assert seat.history.wakes == 1
    assert (r.machine.vault, r.machine.gates) == ({}, {})
    assert (seat.saved.artifact, seat.saved.copies, seat.wishes.tier_asked) == ("", frozenset(), "")
    r.check()


async def test_after_a_decision_turns_are_ordered_by_what_stands_then(rig, monkeypatch):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    order, fresh = tiers.ram_order, []

    def ordered(view, *more):
        r.loop.tiers.stand()
        fresh.append(view.tiers == r.node.standing)
        return order(view, *more)

    monkeypatch.setattr(tiers, "ram_order", ordered)
    r.loop.operators.request_wake(cold, "a test")
    r.node.standing = None  # as the decision saw it, before what it decided
    r.loop.tiers.look()
    assert fresh == [True]
    await r.until(cold, ACTIVE)


def shown(tier):
    return REGISTRY.get_sample_value("kyb_agent_tier_bytes", {"tier": tier.value})


async def test_metrics_show_what_lies_in_each_tier(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await asyncio.sleep(1)
    assert (shown(Tier.RAM), shown(Tier.NVME)) == (r.node.park_size(r.node.seats[cold]), 0)
    await down(r, cold)
    await asyncio.sleep(1)
    assert (shown(Tier.RAM), shown(Tier.NVME)) == (0, 40 * GIB)


async def test_metrics_show_what_lies_in_ram_where_there_is_no_criu(rig):
    metrics.TIER_BYTES.clear()
    r = rig()
    cold, _ = await two(r)
    await asyncio.sleep(1)
    assert shown(Tier.RAM) == r.node.park_size(r.node.seats[cold]) > 0
    assert shown(Tier.NVME) is None


async def test_what_arrives_at_its_pod_wakes_it(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    assert r.machine.arrive(cold)
    await r.until(cold, ACTIVE)
    r.check()


async def test_a_seat_is_not_dumped_under_a_request_that_has_just_come(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    seat = r.node.seats[cold]
    await asyncio.sleep(0.1)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seat.state is SeatState.DUMPING
    r.arrivals.arrive(seat.tree.handle)
    await r.until(cold, ACTIVE)
    assert r.machine.vault == {}
    assert "RestoreFailed" not in reasons(r)
    r.check()


async def test_a_dump_does_not_wait_until_sockets_are_looked_at_at_leisure(rig):
    r = rig(tiers=TIERS)
    r.arrivals.patience = 5.0
    cold, _ = await two(r)
    began = r.clock.time()
    assert r.node.seats[cold].contact.unlooked
    await down(r, cold)
    assert r.clock.time() - began < 1.0
    r.check()


async def test_a_seat_that_is_called_for_while_it_is_dumped_stays_in_ram(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await when(lambda: r.machine.dumps)
    assert r.machine.arrive(cold)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert (r.machine.vault, r.machine.gates, r.machine.dumps) == ({}, {}, {})
    r.check()


async def test_one_that_stays_away_is_dumped_whoever_calls_for_it(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    r.loop.operators.send_away(cold, "it is evicted", stays_away=True)
    await r.until(cold, PARKED)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await when(lambda: r.machine.dumps)
    assert r.machine.arrive(cold)
    await r.until(cold, NVME)
    states = [state for uid, state in r.seen.states if uid == cold]
    assert PARKED not in states[states.index(SeatState.DUMPING) :]
    r.check()


async def test_its_sockets_are_watched_again_when_it_stays_in_ram(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    r.machine.faults.add("dump-fails")
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await asyncio.sleep(1)
    assert r.state(cold) is PARKED
    assert r.node.seats[cold].tree.handle in r.arrivals.watches
    assert r.machine.gates == {}
    r.arrivals.arrive(r.node.seats[cold].tree.handle)
    await r.until(cold, ACTIVE)
    r.check()


async def test_it_goes_to_the_object_store_and_comes_back(rig, proxy):
    r = rig(tiers=TIERS, tier_residency_s=0.0)
    cold, _ = await two(r)
    await down(r, cold, OBJECT)
    await asyncio.sleep(1)
    seat = r.node.seats[cold]
    assert (seat.saved.copies, [k.places for k in r.machine.vault.values()]) == (
        {Tier.OBJECT},
        [{Tier.OBJECT}],
    )
    r.machine.faults.add("store-down")
    p = proxy(r.loop)
    p.request(cold)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    assert (r.machine.vault, r.machine.gates) == ({}, {})
    assert "TransferFailed" in reasons(r)
    r.check()


async def test_when_ram_is_full_the_coldest_makes_room_instead_of_a_refusal(rig, proxy):
    r = rig(tiers=TIERS)
    Watched(r, budget=50 * GIB)
    r.begin()
    uids = [await r.seat(name, vram=40 * GIB) for name in "abc"]
    for uid in uids:
        r.loop.operators.request_wake(uid, "a test")
    await r.until(uids[2], ACTIVE)
    assert [r.state(uid) for uid in uids] == [NVME, PARKED, ACTIVE]
    p = proxy(r.loop)
    for turn in (0, 1, 2, 0):
        p.request(uids[turn])
        await r.until(uids[turn], ACTIVE)
        await asyncio.sleep(1)
    assert p.answered == {uids[0]: 2, uids[1]: 1, uids[2]: 1}
    assert "ParkRefused" not in reasons(r)
    assert r.node.parked_bytes() <= 50 * GIB
    r.check()


async def test_without_room_for_two_they_take_turns_all_the_same(rig, proxy):
    """RAM has room for one of them: who is active must be parked and leave before the other comes
    up, and nobody may fill RAM meanwhile."""

    r = rig(tiers=TIERS, tier_residency_s=0.5)
    Watched(r, budget=41 * GIB)
    r.begin()
    uids = [await r.seat(name, vram=40 * GIB) for name in "abcd"]
    p = proxy(r.loop, service=0.2)
    for uid in uids:
        p.request(uid)
    await asyncio.sleep(30)
    assert p.answered == dict.fromkeys(uids, 1)
    for uid in reversed(uids):
        p.request(uid)
    await asyncio.sleep(60)
    assert p.answered == dict.fromkeys(uids, 2)
    r.check()


async def test_a_seat_pinned_to_ram_is_not_dumped(rig):
    r = rig(tiers=TIERS)
    Watched(r, budget=50 * GIB)
    r.begin()
    uids = [await r.seat(name, vram=40 * GIB) for name in "ab"]
    await r.until(uids[1], ACTIVE)
    r.node.seats[uids[0]].wishes.park_tier = Tier.RAM.value
    third = await r.seat("c", vram=40 * GIB)
    r.loop.operators.request_wake(third, "a test")
    await asyncio.sleep(20)
    assert [r.state(uid) for uid in (*uids, third)] == [PARKED, ACTIVE, WAITING]
    assert "ParkRefused" in reasons(r)


async def test_a_seat_that_ram_would_keep_out_is_told_and_keeps_no_gpu(rig, proxy):
    """It would have to leave RAM for the other's park, and the other never leaves RAM again."""
    r = rig(tiers=TIERS)
    watched = Watched(r, budget=50 * GIB)
    r.begin()
    p = proxy(r.loop)
    small = await r.seat("small", size=24 * GIB)
    await r.until(small, ACTIVE)
    large = await r.seat("large", vram=40 * GIB)
    r.node.seats[large].wishes.park_tier = Tier.RAM.value
    async with watched.running():
        await r.until(large, ACTIVE)
        for _ in range(2):
            p.request(small)
            await asyncio.sleep(5)
            p.request(large)
            await asyncio.sleep(5)
            assert r.state(large) is ACTIVE
        assert p.answered == {large: 2}
        (told,) = watched.events("TurnRefused")
        assert "then the host's memory has no room for its 24.0 GiB; raise park_bytes" in told
        shows_why(r, small, f"it can't have its turn: {told}")
        r.node.park_budget = 100 * GIB
        await r.until(small, ACTIVE)
        shows_why(r, small, "awake")


def shows_why(rig, uid, why):
    """The same wherever people look at a seat."""
    seat = rig.node.seats[uid]
    rows = Publisher(rig.node, None, "", Attendance()).status.now()["seats"]
    (row,) = (one for one in rows if one["uid"] == uid)
    assert (row["reason"], seat_message(seat).reason, seat_info(seat).reason) == (why,) * 3
    screen = io.StringIO()
    shown = view.screen(pb.NodeStatus(node="n1", seats=[seat_message(seat)]), (), 0.0)
    Console(file=screen, width=1000).print(shown)
    assert (why.removeprefix("it ") in screen.getvalue()) is bool(seat.backoff.refused)


async def test_less_host_memory_than_the_budget_also_makes_the_coldest_leave(rig):
    r = rig(tiers=TIERS)
    watched = Watched(r, budget=1000 * GIB)
    r.begin()
    uids = [await r.seat(name, vram=40 * GIB) for name in "ab"]
    await r.until(uids[1], ACTIVE)

    def host():
        freed = 40 if r.state(uids[0]) is NVME else 0
        return HostMemory(200 * GIB, (30 + freed) * GIB)

    watched.memory.host = host
    third = await r.seat("c", vram=40 * GIB)
    await r.until(third, ACTIVE)
    assert r.state(uids[0]) is NVME
    assert "ParkRefused" not in reasons(r)
    r.check()


async def test_a_seat_sinks_by_its_own_times_but_not_to_where_it_would_wake_late(rig):
    r = rig(tiers=TIERS, min_residency_s=0.1, idle_after_s=0.1)
    Watched(r, budget=1000 * GIB)
    r.begin()
    prompt, patient, last = [await r.seat(name, vram=40 * GIB) for name in "abc"]
    await r.until(last, ACTIVE)
    for uid, within in ((prompt, 10.0), (patient, 60.0)):
        r.node.seats[uid].wishes.ready_within = within
        r.node.seats[uid].wishes.idle = {"ram": 20.0}
    r.loop.kick()
    await asyncio.sleep(60)
    assert (r.state(prompt), r.state(patient)) == (PARKED, SeatState.PARKED_NVME)


async def test_a_seat_that_would_wake_late_from_ram_stays_in_gpu_memory(rig):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    uid = await r.seat("a", vram=40 * GIB)
    r.node.seats[uid].wishes.idle, r.node.seats[uid].wishes.ready_within = {"vram": 5.0}, 2.0
    await r.until(uid, ACTIVE)
    await asyncio.sleep(60)
    assert r.state(uid) is ACTIVE
    r.loop.operators.send_away(uid, "an operator parks it")
    await r.until(uid, PARKED)
    r.node.seats[uid].wishes.ready_within = 60.0
    r.loop.operators.request_wake(uid, "an operator wakes it")
    await r.until(uid, ACTIVE)
    await asyncio.sleep(60)
    assert r.state(uid) is PARKED


async def test_a_seat_is_parked_if_by_its_last_wake_and_not_by_the_table_it_is_ready_in_time(rig):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    uid = await r.seat("a", vram=40 * GIB)
    r.node.seats[uid].wishes.idle, r.node.seats[uid].wishes.ready_within = {"vram": 5.0}, 2.0
    await r.until(uid, ACTIVE)
    r.loop.operators.send_away(uid, "an operator parks it")
    await r.until(uid, PARKED)
    r.loop.operators.request_wake(uid, "an operator wakes it")
    await r.until(uid, ACTIVE)
    await asyncio.sleep(60)
    assert r.state(uid) is PARKED


async def test_turns_go_on_where_ram_has_no_room_for_those_that_wait(rig):
    r = rig(tiers=TIERS, min_residency_s=0.1, idle_after_s=0.1, max_wait_s=20.0)
    Watched(r, budget=50 * GIB)
    r.begin()
    uids = [await r.seat(name, vram=40 * GIB) for name in "abc"]
    for uid in uids:
        r.node.seats[uid].wishes.weight = 1.0
    r.loop.kick()
    await asyncio.sleep(3600)
    r.node.turns.count(r.clock.time())
    held = [r.node.turns.held[uid] for uid in uids]
    assert min(held) > 0.2 * sum(held)
    assert sum(held) > 0.8 * 3600
    r.check()


async def test_where_states_are_is_asked_once_where_nothing_is_done(rig, monkeypatch):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await asyncio.sleep(1)
    asked = []
    standing = r.loop.tiers.standing
    monkeypatch.setattr(r.loop.tiers, "standing", lambda: asked.append(1) or standing())
    r.loop.kick()
    await asyncio.sleep(0.01)
    assert len(asked) == 1
    assert r.node.swap_view().tiers is None, "RAM has room for all"
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await down(r, cold)
    await asyncio.sleep(1)
    assert r.node.swap_view().tiers == standing()
    asked.clear()
    r.loop.kick()
    await asyncio.sleep(0.01)
    assert len(asked) == 1
