"""Wake on connect: what arrives calls its seat, what is outstanding keeps it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.core.swap.traffic import Connection, Traffic
from kybernate.ports import WatchReport
from kybernate.types import SeatState
from nodeagent.offload.arrivals import DOUBT, SOCKETS
from tests.kit.clock import run_virtual

ACTIVE, PARKED, DRAINING = SeatState.ACTIVE, SeatState.PARKED, SeatState.DRAINING

BUSY = Connection(
    inbound=True,
    unread=0,
    unsent=0,
    received=100,
    sent=50,
    since_received=0.1,
    since_sent=9.0,
)
ANSWERED = replace(BUSY, since_received=9.0, since_sent=8.0)
TIE = replace(BUSY, since_received=1.0, since_sent=1.0)


async def two(rig, **settings):
    """A parked seat and an active one on the same GPU; the sockets take part."""
    r = rig(**{"min_residency_s": 0.2, "idle_after_s": 0.2, **settings})
    r.arriving.join()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    await asyncio.sleep(1)
    return r, a, b


def handle(r, uid):
    return r.node.seats[uid].tree.handle


def comes(r, uid, *connections, **more):
    """What comes to this seat while it runs."""
    r.arrivals.running[handle(r, uid)] = Traffic(connections=connections, **more)


async def test_something_arrives_at_a_parked_seat_and_wakes_it(rig):
    r, a, b = await two(rig)
    assert list(r.arrivals.watches) == [handle(r, a)]
    began = r.clock.time()
    r.arrivals.arrive(handle(r, a))
    await r.until(a, ACTIVE, 1.0)
    assert r.clock.time() - began < 0.1
    assert r.state(b) is PARKED
    await asyncio.sleep(0.1)
    assert list(r.arrivals.watches) == [handle(r, b)]
    r.check()


async def test_nothing_is_watched_when_a_tree_is_thawed(rig):
    r, a, _ = await two(rig)
    at_thaw = []
    freezer = r.node.world.freezer
    thaw = freezer._freezer.thaw

    def spied(handle):
        at_thaw.append((handle, set(r.arrivals.watches)))
        thaw(handle)

    freezer._freezer.thaw = spied
    mine = handle(r, a)
    assert mine in r.arrivals.watches
    r.loop.operators.request_wake(a, "an operator asked")
    await r.until(a, ACTIVE, 2.0)
    assert mine in {one for one, _ in at_thaw}
    assert all(one not in watched for one, watched in at_thaw)


async def test_what_came_between_freeze_and_watch_wakes_it_again(rig):
    r, a, b = await two(rig)
    r.arrivals.unread.add(handle(r, b))
    r.loop.operators.request_wake(a, "an operator asked")
    await r.until(a, ACTIVE, 2.0)
    r.arrivals.unread.clear()
    await r.until(b, ACTIVE, 5.0)
    r.check()


async def test_a_woken_seat_stays_until_it_has_answered_and_was_quiet(rig, proxy):
    r, a, b = await two(rig)
    p = proxy(r.loop)
    comes(r, a, BUSY)
    r.arrivals.arrive(handle(r, a))
    await r.until(a, ACTIVE, 1.0)
    woken = r.clock.time()
    p.request(b)
    await asyncio.sleep(3.0)
    assert r.state(a) is DRAINING
    assert r.node.seats[a].demand.in_flight == 1
    comes(r, a, replace(ANSWERED, since_sent=0.1))
    await asyncio.sleep(0.6)
    assert r.state(a) is DRAINING
    assert r.node.seats[a].demand.in_flight == 0
    comes(r, a, replace(ANSWERED, since_sent=0.7))
    await r.until(b, ACTIVE, 1.0)
    assert r.clock.time() - woken < 6
    assert p.answered.get(b, 0) + p.in_flight.get(b, 0) == 1
    r.check()


async def test_its_client_that_closes_at_once_still_gives_the_workload_time(rig):
    r, a, b = await two(rig, idle_after_s=2.0)
    r.arrivals.arrive(handle(r, a))
    await r.until(a, ACTIVE, 1.0)
    began = r.clock.time()
    r.loop.operators.request_wake(b, "an operator asked")
    await r.until(b, ACTIVE, 5.0)
    assert r.clock.time() - began >= 2.0


async def test_requests_outstanding_for_longer_than_the_drain_limit_dont_hold_up_a_switch(rig):
    r, a, b = await two(rig, drain_limit_s=3.0)
    comes(r, b, BUSY)
    r.loop.operators.request_wake(a, "an operator asked")
    await r.until(a, ACTIVE, 5.0)
    assert "Revoked" in [reason for reason, _ in r.seen.events]
    assert r.node.seats[b].demand.in_flight == 0
    r.check()


async def test_a_seat_parked_under_a_request_asks_once_for_another_turn(rig):
    r, a, b = await two(rig, drain_limit_s=3.0)
    comes(r, b, BUSY)
    r.arrivals.report = WatchReport(unanswered=frozenset({(7, 100)}))
    r.loop.operators.request_wake(a, "an operator asked")
    await r.until(a, ACTIVE, 5.0)
    r.arrivals.report = WatchReport()
    await r.until(b, ACTIVE, 5.0)
    # The same connection in the same state is no request a second time.
    r.arrivals.report = WatchReport(unanswered=frozenset({(7, 100)}))
    r.loop.operators.request_wake(a, "an operator asked")
    await r.until(a, ACTIVE, 5.0)
    await asyncio.sleep(30)
    assert (r.state(a), r.state(b)) == (ACTIVE, PARKED)


async def test_no_socket_is_looked_at_while_nobody_needs_the_gpu(rig, proxy):
    r, a, b = await two(rig)
    looks = r.arrivals.looks
    p = proxy(r.loop)
    for _ in range(20):
        p.request(b)
        await asyncio.sleep(0.3)
    assert r.arrivals.looks == looks
    p.request(a)
    await r.until(a, ACTIVE, 2.0)
    assert r.arrivals.looks == looks + 1


async def test_a_drain_taken_back_for_a_request_leaves_nothing_in_flight_once_that_is_answered(rig):
    r, _, b = await two(rig)
    r.node.seats[b].wishes.idle = {"vram": 5.0}
    comes(r, b, BUSY)
    r.loop.kick()
    await asyncio.sleep(10)
    assert r.state(b) is ACTIVE
    looks = r.arrivals.looks
    await asyncio.sleep(60)
    # A long request has it drained no further time, and its sockets looked at now and then.
    assert (r.state(b), r.node.seats[b].demand.in_flight) == (ACTIVE, 1)
    assert r.arrivals.looks - looks <= 60
    comes(r, b, replace(ANSWERED, since_sent=1.0))
    await asyncio.sleep(2.0)
    assert (r.state(b), r.node.seats[b].demand.in_flight) == (ACTIVE, 0)
    looks = r.arrivals.looks
    await asyncio.sleep(2.0)
    assert r.arrivals.looks == looks
    await r.until(b, PARKED, 5.0)
    r.check()


@pytest.mark.parametrize("through_proxy", [True, False])
async def test_a_tie_is_a_request_where_no_proxy_knows_better(rig, proxy, through_proxy):
    r, a, b = await two(rig)
    p = proxy(r.loop)
    if through_proxy:
        p.request(b)
        await asyncio.sleep(1.0)
    comes(r, b, TIE)
    r.loop.operators.request_wake(a, "an operator asked")
    await asyncio.sleep(1.0)
    assert r.state(a) is (ACTIVE if through_proxy else PARKED)
    comes(r, b, replace(TIE, since_received=DOUBT, since_sent=DOUBT))
    await r.until(a, ACTIVE, 1.0)


async def test_sockets_that_cant_be_looked_at_hold_up_nothing(rig):
    r, a, b = await two(rig)
    r.arrivals.running[handle(r, b)] = PermissionError(1, "setns")
    r.loop.operators.request_wake(a, "an operator asked")
    await r.until(a, ACTIVE, 1.0)


async def test_trouble_with_the_watch_is_told_once(rig):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.arrivals.report = WatchReport(problem="3 of its sockets are not watched")
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    for uid in (a, b, a, b):
        r.loop.operators.request_wake(uid, "an operator asked")
        await r.until(uid, ACTIVE, 5.0)
        await asyncio.sleep(0.5)
    told = [sentence for reason, sentence in r.seen.events if reason == "SocketsUnwatched"]
    assert told == ["3 of its sockets are not watched"] * 2


async def test_a_pod_may_keep_its_idle_connections(rig):
    r = rig(min_residency_s=0.0, idle_after_s=0.0)
    r.begin()
    a = await r.seat("a")
    r.node.seats[a].wishes.keep_connections = True
    b = await r.seat("b")
    await r.until(b, ACTIVE)
    await asyncio.sleep(0.1)
    assert not r.arrivals.watches[handle(r, a)].terms.end_idle
    r.loop.operators.request_wake(a, "an operator asked")
    await r.until(a, ACTIVE, 5.0)
    await asyncio.sleep(0.1)
    assert r.arrivals.watches[handle(r, b)].terms.end_idle


def test_a_restarted_agent_watches_again_and_sees_what_came_meanwhile(rig):
    async def first():
        r, a, b = await two(rig)
        return r.machine, a, b, handle(r, a), asyncio.get_running_loop().time()

    machine, a, b, parked, when = run_virtual(first())

    async def second():
        r = rig(machine, min_residency_s=0.0, idle_after_s=0.5)
        await r.recover()
        r.arriving.join()
        r.begin()
        await asyncio.sleep(0.1)
        assert r.arrivals.watches[parked].terms.again
        r.arrivals.arrive(parked)
        await r.until(a, ACTIVE, 10.0)
        r.check()

    run_virtual(second(), when)

    async def third():
        r = rig(machine, min_residency_s=0.0, idle_after_s=0.5)
        r.arrivals.unread.add(machine.procs[_tree_of(machine, b)].handle)
        await r.recover()
        r.arriving.join()
        r.begin()
        await r.until(b, ACTIVE, 10.0)

    run_virtual(third(), when + 100)


def _tree_of(machine, uid):
    return next(p.pid for p in machine.procs.values() if p.uid == uid and p.handle)


def test_the_agents_sockets_give_their_leases_back_after_a_restart(rig):
    async def first():
        r, a, b = await two(rig)
        assert SOCKETS in r.node.leases.names()
        return r.machine, a, b, asyncio.get_running_loop().time()

    machine, a, b, when = run_virtual(first())

    async def second():
        r = rig(machine, min_residency_s=0.0, idle_after_s=0.0, lease_break_s=30.0)
        await r.recover()
        r.arriving.join()
        r.begin()
        r.loop.operators.request_wake(a, "an operator asked")
        await r.until(a, ACTIVE, 5.0)
        assert r.state(b) is PARKED

    run_virtual(second(), when)


async def test_a_seat_that_ends_while_it_drains_waits_for_nobody(rig):
    r, a, b = await two(rig)
    comes(r, b, BUSY)
    r.loop.operators.request_wake(a, "an operator asked")
    await asyncio.sleep(0.1)
    assert r.state(b) is DRAINING
    r.machine.end_container(b)
    r.loop.pod_gone(b)
    await r.until(a, ACTIVE, 5.0)
    assert b not in r.node.seats


async def test_nothing_is_held_of_a_tree_that_died_while_it_was_frozen(rig):
    r, a, _ = await two(rig)
    assert list(r.arrivals.watches) == [handle(r, a)]
    # On cgroup version 2 it can: all of it is gone before the agent looks.
    r.machine.frozen.discard(handle(r, a))
    r.machine.end_container(a)
    await r.until(a, SeatState.WAITING, 5.0)
    assert r.arrivals.watches == {}
