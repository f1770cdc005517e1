"""Seats that may be on several GPUs: which one, what is kept empty, and what is told."""

from __future__ import annotations

from dataclasses import replace

from kybernate.core.swap.swap import ActionKind, barred, decide, obstacle
from kybernate.core.swap.swapview import SeatView, SwapPolicy, SwapView
from kybernate.types import GpuUuid, GroupName, PodUid, SeatName, SeatState

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
