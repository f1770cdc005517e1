"""The swap decision's quick ways against plain ones, over any node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate.core.seat.seats import OCCUPYING
from kybernate.core.swap.swap import decide, fits
from kybernate.core.swap.swapview import Claim, SeatView, SwapPolicy, SwapView, Turn
from kybernate.types import GpuUuid, GroupName, PodUid, SeatName, SeatState
from tests.unit.core.swap.invariant import next_look

POLICY = SwapPolicy(min_residency=1.0, idle_after=0.5, drain_limit=4.0, max_wait=6.0)
GPUS = ("g0", "g1", "g2")
GROUPS = {"G0": {"g0"}, "G1": {"g1"}, "G01": {"g0", "g1"}, "G012": {"g0", "g1", "g2"}}
PLACES = tuple(frozenset({GpuUuid(gpu)}) for gpu in GPUS)
TIMES = st.sampled_from([0.0, 1.0, 2.5, 4.0, 7.5])
MAYBE = st.none() | TIMES
CLAIMS = st.builds(Claim, st.tuples(TIMES, st.integers(0, 5)), TIMES, TIMES)


@st.composite
def seats(draw, number):
    group = draw(st.sampled_from(sorted(GROUPS)))
    places = draw(st.sampled_from([(), (), PLACES]))
    own = draw(st.sampled_from(places)) if places else frozenset(map(GpuUuid, GROUPS[group]))
    return SeatView(
        uid=PodUid(f"s{number}"),
        name=SeatName(f"s{number}"),
        group=GroupName(group),
        gpus=own,
        places=places,
        vram=draw(st.sampled_from([None, 1, 30, 60])),
        state=draw(st.sampled_from([s for s in SeatState if s is not SeatState.GONE])),
        bound_at=draw(TIMES),
        active_since=draw(MAYBE),
        idle_since=draw(MAYBE),
        in_flight=draw(st.integers(0, 1)),
        waiting=draw(st.integers(0, 1)),
        waiting_since=draw(MAYBE),
        drained=draw(st.booleans()),
        drain_since=draw(MAYBE),
        connected=draw(st.booleans()),
        priority=draw(st.sampled_from([0, 0, 5])),
        not_before=draw(TIMES),
        stays_until=draw(TIMES),
        asked_since=draw(MAYBE),
        leave=draw(st.sampled_from(["", "", "", "parked by an operator"])),
        unparkable=draw(st.sampled_from(["", "", "", "no memory"])),
        on_demand=draw(st.booleans()),
        unverified=draw(st.sampled_from([False, False, False, True])),
        turn=draw(st.sampled_from([None, None, Turn("ns"), Turn("other", 2.0)])),
        idle_limit=draw(st.sampled_from([None, None, 0.0, 3.0])),
        within=draw(st.sampled_from([None, None, 0.5, 3.0, 20.0])),
        wakes_in=draw(st.sampled_from([0.0, 0.7, 2.0])),
        parks_in=draw(st.sampled_from([0.0, 0.4, 2.0])),
        calls=draw(st.sampled_from([0.0, 0.01, 1.0])),
    )


@st.composite
def nodes(draw):
    healthy = draw(st.sampled_from([GPUS, GPUS, GPUS[:2]]))
    return SwapView(
        seats=tuple(draw(seats(number)) for number in range(draw(st.integers(1, 5)))),
        gpu_memory={GpuUuid(gpu): 80 for gpu in healthy},
        active_slots={GroupName(g): draw(st.integers(1, 3)) for g in ("G0", "G1", "G01")},
        reserve=draw(st.sampled_from([0, 10])),
        foreign=draw(st.sampled_from([{}, {GpuUuid("g0"): 25}])),
        draining=draw(st.sampled_from(["", "", "", "maintenance"])),
        claims={PodUid(f"s{n}"): draw(CLAIMS) for n in range(draw(st.integers(0, 5)))},
    )


def plain_need(seat, gpu, view):
    free = view.gpu_memory[gpu] - view.reserve - view.foreign.get(gpu, 0)
    return free if seat.vram is None else seat.vram


def plain_fits(view, seat):
    beside = [s for s in view.seats if s.state in OCCUPYING and s is not seat]
    for gpu in seat.gpus:
        if gpu not in view.gpu_memory:
            return False
        on = [s for s in beside if gpu in s.gpus] + [seat]
        if len(on) > min(view.active_slots.get(s.group, 1) for s in on):
            return False
        free = view.gpu_memory[gpu] - view.reserve - view.foreign.get(gpu, 0)
        if sum(plain_need(s, gpu, view) for s in on) > free:
            return False
    return True


@settings(max_examples=150)
@given(nodes())
def test_what_fits_is_what_the_plain_sums_say(view):
    for seat in view.seats:
        assert fits(view, seat.uid) == plain_fits(view, seat)


@pytest.mark.slow
@settings(max_examples=250)
@given(nodes(), TIMES, st.floats(0, 1, exclude_max=True), st.sampled_from([0, 2]))
def test_where_nothing_is_to_be_done_nothing_is_until_the_next_check(view, now, share, spare):
    policy = replace(POLICY, spare=spare)
    if decide(view, policy, now):
        return
    check = next_look(view, policy, now)
    later = now + share * ((check if check is not None else now + 1000.0) - now)
    if check is None or later < check:  # and not rounded up to it
        assert decide(view, policy, later) == ()
