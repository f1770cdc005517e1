"""Seats whose state is below RAM: they keep their turn while it is on its way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate.core.seat.seats import TIER_OF
from kybernate.core.swap.swap import ActionKind, decide, decided
from kybernate.core.tiers.tiering import Parked, TierView
from kybernate.types import PodUid, SeatState, Tier
from tests.unit.core.swap.test_swap import POLICY, kinds, seat, view

BELOW = sorted(TIER_OF.keys() - {SeatState.PARKED})
CALLED = {"waiting": 1, "waiting_since": 5.0}
THREE = [("a", "G0", 1.0), ("b", "G01", 2.0), ("c", "G1", 3.0)]


@pytest.mark.parametrize("state", BELOW)
def test_it_is_never_woken_from_there(state):
    assert decide(view(seat("a", state=state, **CALLED)), POLICY, 10.0) == ()


@pytest.mark.parametrize("state", BELOW)
def test_its_gpu_is_made_free_meanwhile(state):
    rival = seat("b", state=SeatState.ACTIVE, active_since=0.0)
    actions = decide(view(seat("a", state=state, **CALLED), rival), POLICY, 10.0)
    assert kinds(actions) == [(ActionKind.DRAIN.value, "b")]


@pytest.mark.parametrize("state", BELOW)
def test_younger_demand_does_not_take_its_turn(state):
    younger = seat("b", waiting=1, waiting_since=6.0)
    assert decide(view(seat("a", state=state, **CALLED), younger), POLICY, 10.0) == ()


@pytest.mark.parametrize("state", BELOW)
def test_one_that_was_put_off_lets_younger_demand_pass(state):
    off = seat("a", state=state, not_before=11.0, **CALLED)
    younger = seat("b", waiting=1, waiting_since=6.0)
    assert kinds(decide(view(off, younger), POLICY, 10.0)) == [(ActionKind.WAKE.value, "b")]


@pytest.mark.parametrize("weighed", [True, False])
def test_one_that_wakes_leaves_its_room_in_ram_to_those_that_are_called_behind_it(weighed):
    """What it will need again was counted beside what it still took: the second lost its place to
    the third, and was told that RAM has no room."""
    seats = [seat(name, group, waiting=1, waiting_since=since) for name, group, since in THREE]
    awake = seat("d", "G2", SeatState.ACTIVE, active_since=0.0, in_flight=1)
    full = [Parked(PodUid(one.uid), one.name, 80, deepest=Tier.RAM) for one in seats]
    tiers = TierView(tuple(full), {Tier.RAM: 240}, awake=(Parked(PodUid("d"), "d", 80),))
    room = {"park_room": 0, "park_bytes": {PodUid("d"): 80}, "tiers": tiers if weighed else None}
    found = decided(replace(view(*seats, awake), **room), POLICY, 10.0)
    assert found.why == {}
    assert kinds(found.actions) == [(ActionKind.WAKE.value, "a")]
