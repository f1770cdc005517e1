"""What operators ask of seats and of the node: to wake, to leave, to stay, to drain."""

from __future__ import annotations

import asyncio

from kybernate.types import PodUid, SeatState
from nodeagent.seat.record import from_record
from tests.kit.clock import run_virtual

ACTIVE, PARKED, WAITING = SeatState.ACTIVE, SeatState.PARKED, SeatState.WAITING


async def _two(rig):
    """A parked seat and an active one on the same GPU."""
    r = rig()
    r.begin()
    a, b = await r.seat("a"), await r.seat("b")
    await r.until(b, ACTIVE)
    return r, a, b


async def test_a_seat_that_is_called_for_wakes_once_and_stays_until_it_is_needed_elsewhere(rig):
    r, a, b = await _two(rig)
    assert r.loop.operators.request_wake(a, "an operator asked")
    await r.until(a, ACTIVE, 5.0)
    assert r.state(b) is PARKED
    assert r.node.seats[a].demand.asked_since is None
    await asyncio.sleep(60)
    assert (r.state(a), r.state(b)) == (ACTIVE, PARKED)
    r.check()


async def test_a_call_for_a_seat_that_serves_or_does_not_exist_changes_nothing(rig):
    r, _, b = await _two(rig)
    assert r.loop.operators.request_wake(b, "again")
    assert r.node.seats[b].demand.asked_since is None
    assert not r.loop.operators.request_wake(PodUid("nobody"), "x")
    assert not r.loop.operators.send_away(PodUid("nobody"), "x")
    assert not r.loop.operators.let_stay(PodUid("nobody"))


async def test_a_seat_that_is_sent_away_is_parked_and_wakes_on_traffic_as_ever(rig, proxy):
    r, _, b = await _two(rig)
    p = proxy(r.loop)
    assert r.loop.operators.send_away(b, "an operator parks it")
    await r.until(b, PARKED, 5.0)
    await asyncio.sleep(30)
    assert r.state(b) is PARKED
    p.request(b)
    await r.until(b, ACTIVE, 5.0)
    await asyncio.sleep(1)
    assert p.answered == {b: 1}
    r.check()


async def test_a_seat_that_is_to_stay_away_wakes_only_when_it_is_let(rig, proxy):
    r, _, b = await _two(rig)
    p = proxy(r.loop)
    r.loop.operators.send_away(b, "it is evicted", stays_away=True)
    await r.until(b, PARKED, 5.0)
    p.request(b)
    await asyncio.sleep(30)
    assert r.state(b) is PARKED
    r.loop.operators.let_stay(b)
    await r.until(b, ACTIVE, 5.0)


async def test_let_stay_takes_a_drain_back(rig, proxy):
    r, _, b = await _two(rig)
    p = proxy(r.loop, service=5.0)
    p.request(b)
    r.loop.operators.send_away(b, "an operator parks it")
    await r.until(b, SeatState.DRAINING, 1.0)
    r.loop.operators.let_stay(b)
    await r.until(b, ACTIVE, 1.0)
    await asyncio.sleep(10)
    assert p.answered == {b: 1}


async def test_a_drained_node_parks_all_and_wakes_nobody_until_it_is_in_use_again(rig, proxy):
    r, a, b = await _two(rig)
    p = proxy(r.loop)
    r.loop.operators.drain_node("maintenance")
    c = await r.seat("c")
    p.request(a)
    await r.until(b, PARKED, 5.0)
    await asyncio.sleep(60)
    assert [r.state(uid) for uid in (a, b, c)] == [PARKED, PARKED, WAITING]
    r.loop.operators.undrain_node()
    await r.until(a, ACTIVE, 10.0)
    await r.until(c, ACTIVE, 10.0)
    assert p.answered == {a: 1}
    r.check()


def test_a_drain_and_what_was_asked_of_seats_survive_the_agent(rig):
    async def first():
        r, a, b = await _two(rig)
        r.loop.operators.drain_node("maintenance")
        r.loop.operators.request_wake(a, "an operator asked")
        r.loop.operators.send_away(b, "it is evicted", stays_away=True)
        await r.until(b, PARKED, 5.0)
        return r, a, b

    r, a, b = run_virtual(first())

    async def second():
        again = rig(r.machine)
        await again.recover()
        await asyncio.sleep(20)
        assert again.node.draining == "maintenance"
        assert (again.state(a), again.state(b)) == (PARKED, PARKED)
        again.loop.operators.undrain_node()
        await again.until(a, ACTIVE, 5.0)
        assert again.node.seats[b].wishes.leave == "it is evicted"

    run_virtual(second(), start=2000.0)


def test_an_unloaded_seat_starts_by_a_call_alone_also_where_the_agent_dies_before_its_end(rig):
    machine = {}

    async def first():
        r = rig()
        r.begin()
        a = await r.seat("a")
        await r.until(a, ACTIVE)
        assert await r.loop.operators.unload(a)
        assert not await r.loop.operators.unload(PodUid("nobody"))
        machine["left"] = r.machine

    async def second():
        r = rig(machine["left"])
        await r.recover()
        a = PodUid("uid-a")
        r.machine.end_container(a)
        await r.until(a, WAITING)
        r.machine.restart_container(a)
        await asyncio.sleep(60)
        assert r.state(a) is WAITING
        assert not await r.loop.operators.unload(a)
        r.loop.operators.request_wake(a, "a request")
        await r.until(a, ACTIVE)
        r.check()

    run_virtual(first())
    run_virtual(second(), start=1000.0)


async def test_a_seat_that_cannot_be_parked_is_left_alone_and_another_asked_instead(rig, proxy):
    r, a, b = await _two(rig)
    p = proxy(r.loop)
    refused = {b: "the node has no memory for it"}
    r.loop.refusals = lambda seats: refused
    p.request(a)
    await asyncio.sleep(30)
    assert (r.state(a), r.state(b)) == (PARKED, ACTIVE)
    assert r.node.seats[b].backoff.unparkable == refused[b]
    refused.clear()
    r.loop.kick()
    await r.until(a, ACTIVE, 5.0)
    r.check()


async def test_of_two_parks_at_once_the_second_waits_if_the_first_takes_the_last_memory(
    rig, proxy, groups
):
    r = rig()
    r.begin()
    both = await r.seat("both", groups["G01"])
    await r.until(both, ACTIVE)
    a, b = await r.seat("a", groups["G0"]), await r.seat("b", groups["G1"])
    await r.until(a, ACTIVE)
    await r.until(b, ACTIVE)

    def one_more(seats):
        seats = list(seats)
        going = (SeatState.PARKING, PARKED)
        full = sum(seat.state in going and seat.uid != both for seat in seats) >= 1
        return {s.uid: "no memory" for s in seats if full and s.state not in going}

    r.loop.refusals = one_more
    r.loop.operators.drain_node("maintenance")
    await asyncio.sleep(10)
    assert sorted((r.state(a), r.state(b))) == [ACTIVE, PARKED]
    r.check()


async def test_a_record_of_an_older_release_is_read(rig):
    r, a, _ = await _two(rig)
    record = r.node.seats[a].record()
    for name in ("asked_since", "leave", "stays_away", "priority"):
        del record[name]
    seat = from_record(record)
    assert (seat.wishes.leave, seat.demand.asked_since, seat.wishes.priority) == ("", None, 0)
