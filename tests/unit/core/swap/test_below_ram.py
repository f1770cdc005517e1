"""Seats whose state is below RAM: they keep their turn while it is on its way."""

from __future__ import annotations

import pytest

from kybernate.core.seat.seats import TIER_OF
from kybernate.core.swap.swap import ActionKind, decide
from kybernate.types import SeatState
from tests.unit.core.swap.test_swap import POLICY, kinds, seat, view

BELOW = sorted(TIER_OF.keys() - {SeatState.PARKED})
CALLED = {"waiting": 1, "waiting_since": 5.0}


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
