"""The host's memory is handed out in the order that a decision found, on a node that may have gone
on since: seats were parked, woken or deleted, and others came."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kybernate.core.seat.seats import OCCUPYING, TIER_OF, SeatEvent, next_state
from kybernate.core.swap.swap import ram_order, wants
from kybernate.core.swap.swapview import SeatView, SwapPolicy, SwapView
from kybernate.core.tiers.tiering import Coming, Parked, RamOrder, TierPolicy, TierView, decide
from kybernate.errors import IllegalTransitionError
from kybernate.types import GpuUuid, GroupName, PodUid, SeatName, SeatState, Tier

S = SeatState
GPUS = [GpuUuid(f"g{number}") for number in range(3)]
AWAKE = [S.WAKING, S.ACTIVE, S.DRAINING, S.PARKING]
AWAY = [*TIER_OF, S.WAITING]
E = SeatEvent
EVENTS = [E.DRAIN, E.PARK, E.PARKED, E.PARK_REVERTED, E.WAKE, E.AWAKE, E.DUMP, E.FAIL, E.DELETE]
NOW, RAM = 10.0, 40
A, B, C = map(PodUid, "abc")


@st.composite
def seats(draw):
    """On each GPU one that is in its memory, and some that are not."""
    found = {}
    for gpu in GPUS:
        states = [draw(st.sampled_from(AWAKE)), *draw(st.lists(st.sampled_from(AWAY), max_size=2))]
        for state in states:
            uid = PodUid(f"p{len(found)}")
            asks = draw(st.sampled_from([None, 1.0, 5.0]))
            found[uid] = SeatView(
                uid,
                SeatName(uid),
                GroupName(gpu),
                frozenset([gpu]),
                None,
                state,
                0.0,
                0.0 if state in OCCUPYING else None,
                0.0,
                waiting=int(asks is not None),
                waiting_since=asks,
                drained=True,
                connected=True,
                leave=draw(st.sampled_from(["", "", "its node is emptied"])),
            )
    return found


def swap_view(found, sizes):
    """What the swap decision sees."""
    return SwapView(
        tuple(found.values()),
        dict.fromkeys(GPUS, 80),
        dict.fromkeys(map(GroupName, GPUS), 1),
        park_room=RAM,
        park_bytes={uid: sizes[uid] for uid, one in found.items() if one.state in OCCUPYING},
    )


def tier_view(found, sizes):
    """What the tiers' decision sees."""

    def those(states):
        chosen = (one for one in found.values() if one.state in states)
        return tuple(
            Parked(one.uid, one.name, sizes[one.uid], TIER_OF.get(one.state, Tier.RAM))
            for one in chosen
        )

    return TierView(
        those(TIER_OF),
        {Tier.RAM: RAM, Tier.NVME: 1 << 40},
        parking=those([S.PARKING]),
        awake=those(OCCUPYING - {S.PARKING}),
    )


def passes(found, steps):
    """What happens to a node's seats, as far as it may; a new one comes with each `None`."""
    left = dict(found)
    for uid, what in steps:
        if what is None:
            new = replace(found[uid], uid=PodUid(f"new-{uid}"), state=S.ACTIVE)
            left[new.uid] = new
        elif uid in left:
            try:
                left[uid] = replace(left[uid], state=next_state(left[uid].state, what))
            except IllegalTransitionError:
                continue
            if left[uid].state is S.GONE:
                del left[uid]
    return left


@given(seats(), st.data())
@settings(max_examples=150)
def test_an_order_holds_for_whom_it_still_concerns(found, data):
    uids = sorted(found)
    sizes = {uid: data.draw(st.integers(1, 30)) for uid in uids}
    sizes |= {PodUid(f"new-{uid}"): 7 for uid in uids}
    order = ram_order(swap_view(found, sizes), SwapPolicy(min_residency=0.0), NOW)
    what = st.sampled_from([*EVENTS, None])
    steps = data.draw(st.lists(st.tuples(st.sampled_from(uids), what), max_size=12))
    left = passes(found, steps)
    before = tier_view(left, sizes)
    asking = {uid for uid, one in left.items() if wants(one)}
    view = order.given_to(before, asking)

    awake = {one.uid for one in before.awake}
    event(f"of {len(order.parks)} parks {len(order.parks.keys() - awake)} are of no use any more")
    assert {one.uid: (one.turn, one.size) for one in view.coming} == {
        uid: (turn, sizes[uid]) for uid, turn in order.parks.items() if uid in awake
    }
    last = len(order.turns)
    for one in (*view.seats, *view.parking):
        asks = order.turns.get(one.uid, last) if one.uid in asking else None
        assert (one.turn, one.behind) == (asks, order.behind.get(one.uid, 0))
    for part in ("seats", "parking", "awake"):
        were, are = getattr(before, part), getattr(view, part)
        assert [one.uid for one in were] == [one.uid for one in are], "nobody is left out"
    known = {one.uid for one in view.seats}
    assert {one.uid for one in decide(view, TierPolicy(), NOW)} <= known


@pytest.mark.parametrize("part", ["seats", "parking", None])
def test_who_was_to_be_parked_and_is_no_longer_awake_needs_no_room_twice(part):
    """`a` is parked by now, is being parked, or is gone; `b` still waits for room."""
    order = RamOrder({C: 0}, {A: 0, B: -1}, {})
    parts = {part: (Parked(A, "a", 10),)} if part else {}
    node = TierView(**{"seats": (), **parts}, limits={Tier.RAM: RAM}, awake=(Parked(B, "b", 20),))
    assert order.given_to(node, [C]).coming == (Coming(B, "b", 20, -1),)
