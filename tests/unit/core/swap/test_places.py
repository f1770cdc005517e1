"""Seats that may be on several GPUs: which one, what is kept empty, and what is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate.core.swap.swap import ActionKind, barred, decide, obstacle
from kybernate.core.swap.swapview import SeatView, SwapPolicy, SwapView
from kybernate.core.tiers.tiering import Parked, TierView
from kybernate.types import GpuUuid, GroupName, PodUid, SeatName, SeatState, Tier
from tests.unit.core.swap.invariant import next_look

GPUS = [GpuUuid(f"GPU-{n}") for n in range(4)]
PLACES = tuple(frozenset({gpu}) for gpu in GPUS)
POLICY = SwapPolicy(spare=0)


def seat(name: str, gpu: int, state: SeatState = SeatState.PARKED, **more) -> SeatView:
    own = frozenset({GPUS[gpu]})
    places = tuple(sorted(PLACES, key=lambda place: place != own))
    asks = {"waiting": 1, "waiting_since": 90.0} if state is SeatState.PARKED else {}
    given = {"vram": 60, "bound_at": 0.0, "places": places, "active_since": 0.0, **asks, **more}
    return SeatView(
        uid=PodUid(name),
        name=SeatName(name),
        group=GroupName("any"),
        gpus=own,
        state=state,
        **given,
    )


def active(name: str, gpu: int, **more) -> SeatView:
    return seat(name, gpu, SeatState.ACTIVE, idle_since=more.pop("idle_since", 50.0), **more)


def view(*seats: SeatView, gpus: int = 4, **more) -> SwapView:
    return SwapView(seats, dict.fromkeys(GPUS[:gpus], 80), {GroupName("any"): 256}, **more)


def on(gpu: int) -> frozenset[GpuUuid]:
    return frozenset({GPUS[gpu]})


def test_where_it_was_comes_first_among_equals():
    for gpu in range(4):
        (action,) = decide(view(seat("a", gpu)), POLICY, 100.0)
        assert (action.kind, action.gpus) == (ActionKind.WAKE, on(gpu))


def test_an_empty_gpu_comes_before_a_park():
    (action,) = decide(view(seat("a", 0), active("b", 0), gpus=2), POLICY, 100.0)
    assert (action.kind, action.uid, action.gpus) == (ActionKind.WAKE, "a", on(1))


def test_a_seat_of_unknown_place_keeps_all_its_places():
    lost = seat("b", 1, SeatState.UNVERIFIED, unverified=True)
    assert decide(view(seat("a", 0), lost), POLICY, 100.0) == ()
    known = replace(lost, state=SeatState.PARKED, waiting=0)
    (action,) = decide(view(seat("a", 0), known), POLICY, 100.0)
    assert action.gpus == on(0)


def chosen(*seats: SeatView, **more) -> frozenset[GpuUuid]:
    (action,) = decide(view(*seats, **more), POLICY, 100.0)
    assert action.kind is ActionKind.WAKE
    return action.gpus


def test_a_seat_wakes_where_those_on_their_way_in_leave_it_time():
    called = seat("a", 0, vram=10, waiting_since=99.0, within=4.0, wakes_in=1.0)
    wakes = seat("b", 0, SeatState.WAKING, vram=40, wakes_in=2.0)
    beside = active("c", 1, vram=40, in_flight=1, idle_since=None)
    assert chosen(called, wakes, beside, gpus=2) == on(0)  # two seconds are left
    assert chosen(called, replace(wakes, wakes_in=2.1), beside, gpus=2) == on(1)
    late = replace(called, within=1.5)
    assert chosen(late, replace(wakes, wakes_in=2.1), beside, gpus=2) == on(0)


def test_a_place_whose_parks_together_would_be_too_late_is_left_for_another():
    """The wake must begin at 100: the parks that are under way take until then from 97 on."""
    called = seat("a", 0, waiting_since=98.0, within=4.0, wakes_in=2.0)
    leave = [seat(n, 0, SeatState.PARKING, vram=30, parks_in=1.5) for n in "bc"]
    stays = active("d", 1, calls=1.0, parks_in=0.5)
    now = view(called, *leave, stays, gpus=2)
    assert decide(now, POLICY, 97.0) == ()
    check = next_look(now, POLICY, 97.0)
    assert check == pytest.approx(97.0)
    (action,) = decide(now, POLICY, check)
    assert (action.kind, action.uid) == (ActionKind.DRAIN, "d")


def test_a_seat_on_its_way_into_ram_changes_places_once_a_wake_there_makes_it_late():
    comes = seat("a", 0, SeatState.PARKED_NVME, vram=30, waiting=1, waiting_since=98.0)
    comes = replace(comes, within=4.0, wakes_in=2.0)
    wakes = seat("b", 0, SeatState.WAKING, vram=30, wakes_in=1.0)
    now = view(comes, wakes, gpus=2)
    assert decide(now, POLICY, 98.5) == ()
    assert next_look(now, POLICY, 98.5) == pytest.approx(99.0)


def test_a_seat_that_is_woken_by_the_same_decision_is_on_its_way_in():
    first = seat("a", 0, vram=10, waiting_since=99.0, within=2.7, wakes_in=1.2)
    for within, gpu in ((5.0, 0), (4.0, 1)):
        second = seat("b", 0, vram=10, waiting_since=99.0, within=within, wakes_in=2.0)
        found = decide(view(first, second, gpus=2), POLICY, 100.0)
        assert [(one.uid, one.gpus) for one in found] == [("a", on(0)), ("b", on(gpu))]


def test_a_seat_wakes_beside_those_that_are_used_so_that_idle_ones_can_leave_a_gpu():
    called = seat("a", 0, vram=10)
    idle, busy = active("b", 0, vram=50), active("c", 1, vram=20, in_flight=1, idle_since=None)
    assert chosen(called, idle, busy, gpus=2) == on(1)
    rare, often = replace(idle, calls=0.1), active("c", 1, vram=20, calls=0.2)
    assert chosen(called, rare, often, gpus=2) == on(1)
    assert chosen(called, idle, active("c", 1, vram=20), gpus=2) == on(0)  # it is fuller


def test_of_several_who_leave_a_gpu_the_soonest_is_parked_first():
    slow, fast = (
        active(name, 0, vram=30, calls=0.1 * takes, parks_in=takes, active_since=0.0)
        for name, takes in (("b", 3.0), ("c", 1.0))
    )
    found = decide(view(seat("a", 0), slow, fast, gpus=1), POLICY, 100.0)
    assert [action.uid for action in found] == ["c", "b"]
    waits = seat("d", 0, waiting=0, waiting_since=None, calls=0.1)
    found = decide(view(waits, slow, fast, gpus=1), SwapPolicy(spare=1), 100.0)
    assert [action.uid for action in found] == ["c", "b"]


def spared(*seats: SeatView, **more) -> list[str]:
    found = decide(view(*seats, **more), SwapPolicy(spare=4), 100.0)
    return [action.uid for action in found if action.kind is ActionKind.DRAIN]


def test_one_place_of_four_is_emptied_if_somebody_else_may_be_called():
    four = [active(str(n), n, calls=float(n + 1)) for n in range(4)]
    assert spared(*four) == []  # all that there are have a GPU
    assert spared(*four, absent=True) == ["0"]
    parked = seat("e", 0, waiting=0, waiting_since=None)
    assert spared(*four, parked) == []  # nobody has called it yet
    assert spared(*four, replace(parked, calls=0.1)) == ["0"]
    assert spared(*four[:3], replace(parked, calls=0.1)) == []  # one is empty already
    uncalled = replace(four[0], calls=0.0)
    assert spared(uncalled, *four[1:3], replace(parked, calls=0.1)) == []


def short_of_ram(room: int, *below: Parked) -> dict[str, object]:
    """RAM has so much room for seats of 20 bytes, and these are on NVMe."""
    awake = tuple(Parked(PodUid(str(n)), str(n), 20) for n in range(5))
    tiers = TierView(below, {Tier.RAM: 100, Tier.NVME: 1000}, awake=awake)
    parks = {one.uid: one.size for one in awake}
    return {"absent": True, "park_room": room, "park_bytes": parks, "tiers": tiers}


def test_half_of_a_place_is_not_emptied():
    """It was drained, needed for another seat, found without room, and drained again, for ever."""
    two = active("0", 0, vram=30), active("4", 0, vram=30)
    others = [active(str(n), n, calls=1.0) for n in range(1, 4)]
    assert spared(*two, *others, **short_of_ram(40)) == ["0", "4"]
    assert spared(*two, *others, **short_of_ram(39)) == []


def test_room_in_ram_is_first_for_those_below_it_that_are_called():
    four = [active(str(n), n, calls=float(n + 1)) for n in range(4)]
    below = Parked(PodUid("b"), "b", 30, Tier.NVME, calls=1.0)
    assert spared(*four, **short_of_ram(50, below)) == ["0"]
    assert spared(*four, **short_of_ram(49, below)) == []
    assert spared(*four, **short_of_ram(49, replace(below, calls=0.9))) == ["0"]
    assert spared(*four, **short_of_ram(49, replace(below, tier=Tier.RAM))) == ["0"]


def test_what_stands_in_its_way_is_on_any_of_its_places():
    busy = [active(str(n), n, in_flight=1, idle_since=None, active_since=99.9) for n in range(4)]
    told = obstacle(view(seat("a", 0), *busy), POLICY, PodUid("a"), 100.0)
    assert told == "; ".join(f"seat {n} is active" for n in range(4))


def test_a_lost_gpu_bars_nobody_who_may_be_elsewhere():
    one = seat("a", 0)
    there = replace(view(one), gpu_memory={GPUS[1]: 80})
    assert not barred(there, one)
    (action,) = decide(there, POLICY, 100.0)
    assert action.gpus == on(1)
    tied = replace(one, places=())
    assert barred(replace(there, seats=(tied,)), tied)
