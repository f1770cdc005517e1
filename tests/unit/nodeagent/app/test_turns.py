"""Seats that nobody calls, by the whole agent over simulated GPUs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.core.swap.swapview import Turn
from kybernate.types import NodeName, SeatState
from nodeagent.kube.pods import PodFacts
from nodeagent.operations.wire import seat_message
from nodeagent.seat.record import from_record
from proxy.agents import seat_info

ACTIVE, PARKED = SeatState.ACTIVE, SeatState.PARKED


class Shown:
    """What proxies are told of a seat's turn."""

    def __init__(self, weights):
        self.weights = weights

    def seat_changed(self, seat):
        told = seat_info(NodeName("n1"), seat_message(seat)).weight
        if self.weights[-1:] != [told]:
            self.weights.append(told)

    def seat_gone(self, seat):
        """Nobody looks."""

    def told(self, seat, kind, reason, sentence):
        """Nobody reads."""


async def _trainers(r, weights, **more):
    uids = []
    for number, weight in enumerate(weights):
        uid = await r.seat(f"t{number}", port=None, **more)
        r.node.seats[uid].wishes.weight = weight
        r.loop.kick()
        uids.append(uid)
    return uids


def _held(r, uid):
    r.node.turns.count(r.clock.time())
    return r.node.turns.held.get(uid, 0.0)


async def test_a_seat_that_nobody_calls_wakes_again_after_a_request_for_another(rig, proxy):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    server = await r.seat("server")
    await r.until(server, ACTIVE)
    (trainer,) = await _trainers(r, [1.0])
    await r.until(trainer, ACTIVE)
    p = proxy(r.loop)
    p.request(server)
    await r.until(server, ACTIVE)
    assert r.state(trainer) is PARKED
    await r.until(trainer, ACTIVE, 5.0)
    await asyncio.sleep(100)
    assert (r.state(trainer), r.node.seats[trainer].history.wakes) == (ACTIVE, 1)
    assert p.answered == {server: 1}
    r.check()


@pytest.mark.slow
async def test_those_who_always_want_a_gpu_share_its_time_by_weight(rig):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    uids = await _trainers(r, [1.0, 1.0, 2.0, 4.0])
    await asyncio.sleep(20)
    before = [_held(r, uid) for uid in uids]
    await asyncio.sleep(600)
    held = [_held(r, uid) - then for uid, then in zip(uids, before, strict=True)]
    for got, due in zip(held, (75, 75, 150, 300), strict=True):
        assert abs(got - due) < 0.05 * 600
    assert sum(held) > 0.95 * 600
    assert r.node.turns.swapping < 0.05 * 620
    r.check()


async def test_one_that_an_operator_parks_stays_parked_until_it_is_called_for(rig):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    (uid,) = await _trainers(r, [1.0])
    await r.until(uid, ACTIVE)
    r.loop.operators.send_away(uid, "an operator parks it")
    await r.until(uid, PARKED)
    await asyncio.sleep(100)
    assert r.state(uid) is PARKED
    r.loop.operators.request_wake(uid, "an operator wakes it")
    await r.until(uid, ACTIVE)
    await asyncio.sleep(100)
    assert r.node.seats[uid].turn == Turn("default", 1.0)


class ParksWhileWaking:
    """An operator who parks a seat as soon as it begins to wake for a call."""

    def __init__(self, loop):
        self.loop = loop
        self.done = False

    def seat_changed(self, seat):
        if seat.state is SeatState.WAKING and not self.done:
            self.done = True
            self.loop.operators.send_away(seat.uid, "an operator parks it")

    def seat_gone(self, seat):
        pass

    def told(self, seat, kind, reason, sentence):
        pass


async def test_one_that_an_operator_parks_while_it_wakes_stays_parked_too(rig):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    (uid,) = await _trainers(r, [1.0])
    await r.until(uid, ACTIVE)
    r.loop.operators.send_away(uid, "an operator parks it")
    await r.until(uid, PARKED)
    r.node.observe(ParksWhileWaking(r.loop))
    r.loop.operators.request_wake(uid, "an operator wakes it")
    await asyncio.sleep(100)
    assert (r.state(uid), r.node.seats[uid].history.wakes) == (PARKED, 1)
    r.check()


async def test_a_server_that_is_idle_leaves_gpu_memory_if_its_pod_says_so(rig, proxy):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    server = await r.seat("server")
    r.node.seats[server].wishes.idle = {"vram": 30.0}
    await r.until(server, ACTIVE)
    p = proxy(r.loop)
    await asyncio.sleep(20)
    p.request(server)
    await asyncio.sleep(29)
    assert r.state(server) is ACTIVE
    await asyncio.sleep(2)
    assert r.state(server) is PARKED
    p.request(server)
    await r.until(server, ACTIVE, 2.0)
    assert "nobody has used it for 30 s" not in r.node.seats[server].history.reason


async def test_what_a_seat_says_of_turns_outlives_the_agent(rig):
    r = rig()
    r.begin()
    (uid,) = await _trainers(r, [4.0])
    seat = r.node.seats[uid]
    seat.wishes.idle, seat.wishes.rests, seat.wishes.acquired = {"ram": 60.0}, True, True
    read = from_record(seat.record())
    assert (read.wishes.weight, read.wishes.idle) == (4.0, {"ram": 60.0})
    assert read.wishes.rests
    assert read.wishes.acquired


async def test_a_workload_that_acquires_takes_turns_until_it_yields(rig):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    server = await r.seat("server")
    await r.until(server, ACTIVE)
    (trainer,) = await _trainers(r, [1.0])
    await r.until(trainer, ACTIVE)
    await asyncio.sleep(50)
    assert r.state(server) is PARKED
    r.loop.doors.on_turn(server, wanted=True)
    await r.until(server, ACTIVE, 30.0)
    await r.until(trainer, ACTIVE, 30.0)
    await r.until(server, ACTIVE, 30.0)
    r.loop.doors.on_turn(server, wanted=False)
    await r.until(trainer, ACTIVE, 30.0)
    await asyncio.sleep(50)
    assert (r.state(server), r.node.seats[server].turn) == (PARKED, None)
    r.check()


async def test_a_workload_that_yields_gives_up_its_turn_and_gets_another(rig):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    a, b = await _trainers(r, [1.0, 1000.0])
    await asyncio.sleep(60)
    await r.until(b, ACTIVE)
    before = r.node.turns.held[a]
    r.loop.doors.on_turn(b, wanted=False)
    await r.until(a, ACTIVE, 10.0)
    assert not r.node.seats[b].wishes.yields
    await r.until(b, ACTIVE, 60.0)
    assert _held(r, a) > before
    r.check()


async def test_what_a_pod_says_may_change_while_it_runs(rig):
    r = rig(min_residency_s=0.1, idle_after_s=0.1)
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    assert r.state(a) is PARKED
    seat = r.node.seats[a]
    facts = PodFacts(
        ref=seat.identity.pod,
        resource=seat.identity.resource,
        container="main",
        group=seat.identity.group,
        assigned_at=0.0,
        seat=None,
        model="a",
        vram=None,
        image="img",
        port=8000,
        has_args=False,
        ip="10.0.0.1",
        deleting=False,
        over=False,
    )
    shown = []
    r.node.observe(Shown(shown))
    r.loop.pod_changed(replace(facts, weight=2.0, idle={"vram": 5.0}))
    assert shown == [2.0], "a page shows it at once"
    await r.until(a, ACTIVE, 5.0)
    await asyncio.sleep(60)
    assert (r.state(a), seat.turn) == (ACTIVE, Turn("default", 2.0))
    r.loop.pod_changed(replace(facts, idle={"vram": 5.0}))
    await asyncio.sleep(6)
    assert (r.state(a), seat.turn) == (PARKED, None)


async def test_a_first_start_waits_for_no_turn_but_a_later_one_does(rig):
    r = rig(min_residency_s=0.5, idle_after_s=0.5)
    r.begin()
    first, second = await _trainers(r, [1.0, 1.0])
    await asyncio.sleep(30)
    r.node.turns._debt = dict.fromkeys(r.node.seats[first].identity.gpus, 10.0)
    new = await r.seat("new", port=None)
    r.node.seats[new].wishes.weight = 1.0
    await r.until(new, ACTIVE, 5.0)
    assert {r.state(first), r.state(second)} == {PARKED}
    assert r.node.seats[new].turn is not None
