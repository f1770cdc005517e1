"""What a proxy is told, and in which order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kybernate.types import PodRef, PodUid, SeatState
from nodeagent.api.streams import Session, Streams
from nodeagent.seat.record import Seat, SeatIdentity

A, B = PodUid("a"), PodUid("b")


def seat(uid, address="10.0.0.1:80"):
    identity = SeatIdentity(
        pod=PodRef("default", uid, uid),
        container="c",
        resource="r",
        device_id="d",
        name=f"G0-{uid}",
        group="G0",
        gpus=("GPU-0",),
        vram=None,
        model=uid,
        image="i",
    )
    made = Seat(identity, 0.0, 0.0, state=SeatState.PARKED)
    made.contact.address = address
    return made


async def told(session, count):
    """The next messages, as words."""
    words = []
    for _ in range(count):
        order = await asyncio.wait_for(session.next(), 5.0)
        kind = order.WhichOneof("kind")
        words.append(f"{kind} {getattr(order, kind).uid}")
    return words


async def acquainted(*seats):
    """A session whose proxy knows these seats."""
    session = Session("p")
    for one in seats:
        session.seat(one)
    await told(session, len(seats))
    return session


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["grant", "drain", "revoke"])
async def test_orders_overtake_what_is_told_of_known_seats(kind):
    a, b = seat(A), seat(B)
    session = await acquainted(a, b)
    session.seat(b)
    session.seat(a)
    getattr(session, kind)(A, 1)
    assert await told(session, 3) == [f"{kind} a", "seat b", "seat a"]


@pytest.mark.real_time
async def test_a_new_seat_is_told_before_its_orders():
    session = await acquainted(seat(A))
    session.seat(seat(A))
    session.seat(seat(B))
    session.grant(B, 1)
    assert await told(session, 3) == ["seat b", "grant b", "seat a"]


@pytest.mark.real_time
async def test_a_new_address_is_told_before_the_grant():
    a = seat(A)
    session = await acquainted(a)
    a.contact.address = "10.0.0.2:80"
    session.seat(a)
    session.grant(A, 2)
    assert await told(session, 2) == ["seat a", "grant a"]


@pytest.mark.real_time
async def test_of_a_seat_that_changed_often_the_newest_state_is_told():
    a = seat(A)
    session = await acquainted(a)
    for state in (SeatState.WAKING, SeatState.ACTIVE):
        a.state = state
        session.seat(a)
    order = await session.next()
    assert order.seat.state == "active"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.next(), 0.05)


class Proxies:
    """What `Streams` asks of the node's side."""

    def __init__(self):
        self.node = SimpleNamespace(seats={A: seat(A)})

    def proxy_joined(self, name, outbox):
        pass

    proxy_left = proxy_joined


@pytest.mark.real_time
async def test_all_proxies_hear_once_that_a_seat_is_asked_for_and_how_many_they_are():
    proxies = Proxies()
    streams = Streams(proxies, SimpleNamespace(where=lambda _: None))
    one, two = streams._join("one"), streams._join("two")
    counts = [
        [(await s.next()).proxies.connected for _ in range(n)] for s, n in ((one, 2), (two, 1))
    ]
    assert counts == [[1, 2], [2]]
    for session in (one, two):
        assert await told(session, 1) == ["seat a"]
    a = proxies.node.seats[A]
    for waiting in (1, 2, 3):
        a.demand.counted(0, waiting, 0.0, 1.0)
        streams.demand_changed(a)
        await asyncio.sleep(0.02)
    for session in (one, two):
        assert (await session.next()).seat.waiting == 3
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.next(), 0.05)
    a.demand.counted(1, 0, None, 2.0)
    streams.demand_changed(a)
    assert (await two.next()).seat.waiting == 0
    streams._leave(one)
    assert (await two.next()).proxies.connected == 1


@pytest.mark.real_time
async def test_a_seat_that_is_gone_is_not_described_any_more():
    a = seat(A)
    session = await acquainted(a)
    session.seat(a)
    session.gone(A)
    assert await told(session, 1) == ["gone a"]
    # Another pod may come to be known by the same words only after it was told of anew.
    again = Seat(replace(a.identity), 1.0, 1.0)
    again.contact.address = a.contact.address
    session.seat(again)
    session.grant(A, 1)
    assert await told(session, 2) == ["seat a", "grant a"]


@pytest.mark.real_time
async def test_a_lone_proxy_is_not_told_what_it_asks_for_itself():
    proxies = Proxies()
    streams = Streams(proxies, SimpleNamespace(where=lambda _: None))
    one, a = streams._join("one"), proxies.node.seats[A]
    assert (await one.next()).proxies.connected == 1
    assert await told(one, 1) == ["seat a"]
    a.demand.counted(0, 1, 0.0, 1.0)
    streams.demand_changed(a)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(one.next(), 0.2)
    two = streams._join("two")
    assert (await two.next()).proxies.connected == 2
    assert (await asyncio.wait_for(two.next(), 5.0)).seat.waiting == 1


async def test_what_others_ask_for_overtakes_a_swaps_news():
    proxies = Proxies()
    streams = Streams(proxies, SimpleNamespace(where=lambda _: None))
    one, _, a = streams._join("one"), streams._join("two"), proxies.node.seats[A]
    for _ in range(3):
        await one.next()
    loop = asyncio.get_running_loop()
    streams.seat_changed(a)
    began = loop.time()
    await one.next()
    assert loop.time() - began > 0.03
    streams.seat_changed(a)
    a.demand.counted(0, 1, 0.0, 1.0)
    began = loop.time()
    streams.demand_changed(a)
    assert (await one.next()).seat.waiting == 1
    assert loop.time() - began < 0.04
