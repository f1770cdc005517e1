"""What is found by a model or a node is what a walk through all seats would find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kybernate.types import NodeName, PodUid, SeatState
from proxy.actions import SeatInfo
from proxy.routing import Away
from proxy.seats import NO_LEASE, Held, Lease, Seat, Seats

if TYPE_CHECKING:
    from collections.abc import Collection

_UIDS = st.sampled_from([PodUid(one) for one in "abcd"])
_INFOS = st.builds(
    SeatInfo,
    uid=_UIDS,
    node=st.sampled_from([NodeName("n1"), NodeName("n2")]),
    name=st.just("seat"),
    group=st.just("G0"),
    pod=st.just("pod"),
    model=st.sampled_from(["birch", "shop/birch", ""]),
    state=st.just(SeatState.ACTIVE),
    namespace=st.sampled_from(["shop", "other", ""]),
)


def _told(seats: Collection[Seat]) -> set[PodUid]:
    return {seat.info.uid for seat in seats}


@given(st.lists(st.one_of(_INFOS, _UIDS), max_size=30))
def test_seats_are_found_by_what_is_known_of_them_last(events: list[SeatInfo | PodUid]) -> None:
    seats, known = Seats(), dict[PodUid, SeatInfo]()
    for event in events:
        if not isinstance(event, SeatInfo):
            there = seats.remove(event)
            assert (there and there.info) == known.pop(event, None)
            continue
        seat = seats.get(event.uid)
        if seat is None:
            seats.add(Seat(event))
        else:
            seats.change(seat, event)
        known[event.uid] = event
    assert {seat.info.uid: seat.info for seat in seats} == known
    for info in known.values():
        assert _told(seats.of_route(info.route)) == {
            uid for uid, one in known.items() if one.route == info.route
        }
        assert _told(seats.of_model(info.model)) == {
            uid for uid, one in known.items() if one.model == info.model
        }
        assert _told(seats.on(info.node)) == {
            uid for uid, one in known.items() if one.node == info.node
        }
    assert not seats.of_model("oak")


@given(st.lists(st.tuples(_INFOS, st.floats(0, 100)), max_size=20))
def test_what_left_is_found_by_its_plain_name(left: list[tuple[SeatInfo, float]]) -> None:
    away, now = Away(keep=10.0), 0.0
    for info, later in left:
        now += later
        away.left(info, now)
    for name in ("birch", "shop/birch", "oak"):
        expected = {seat.route for seat in away.seats(now) if seat.model == name}
        assert {seat.route for seat in away.named(name, now)} == expected


_WORDS = st.sampled_from(["grant", "drain", "revoke", "give_back", "resign"])


def _after(lease: Lease, word: str, generation: int) -> Lease:
    given = () if word in ("give_back", "resign") else (generation,)
    after: Lease = getattr(lease, word)(*given)
    return after


@given(st.lists(st.tuples(_WORDS, st.integers(1, 3)), max_size=20))
def test_only_a_grant_lets_requests_begin_and_each_lease_ends_by_its_own_orders(
    orders: list[tuple[str, int]],
) -> None:
    lease = NO_LEASE
    for word, generation in orders:
        before, lease = lease, _after(lease, word, generation)
        granted = lease.held is Held.GRANTED
        if word == "grant":
            assert (granted, lease.generation) == (True, generation)
        elif granted:
            assert lease == before
            assert word in ("drain", "revoke"), f"it outlives {word}"
            assert generation != lease.generation, f"it outlives {word}"
        if lease.held is Held.GIVEN_BACK:
            assert before.held in (Held.GRANTED, Held.GIVEN_BACK)
            assert before.generation == lease.generation
        assert lease.ends is (lease.held not in (Held.NONE, Held.GRANTED))
