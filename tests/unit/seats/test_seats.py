"""The transition table of a seat."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.seats import (
    EVENT_MEANING,
    OCCUPYING,
    STATE_MEANING,
    TRANSITIONS,
    SeatEvent,
    next_state,
    render_markdown,
)
from kybernate.errors import IllegalTransitionError
from kybernate.types import SeatState

DOCS = Path(__file__).parents[3] / "docs" / "states.md"


def test_the_document_is_rendered_from_the_table():
    assert DOCS.read_text() == render_markdown()


def test_everything_has_a_meaning():
    assert set(STATE_MEANING) == set(SeatState)
    assert set(EVENT_MEANING) == set(SeatEvent)


def test_an_illegal_event_raises_and_says_what_is_legal():
    with pytest.raises(IllegalTransitionError, match=r"parked .* wake"):
        next_state(SeatState.PARKED, SeatEvent.PARK)


def test_every_state_is_reached_and_gone_is_the_only_end():
    assert set(TRANSITIONS.values()) == set(SeatState)
    ends = set(SeatState) - {state for state, _ in TRANSITIONS}
    assert ends == {SeatState.GONE}


@given(st.lists(st.sampled_from(SeatEvent), max_size=60))
def test_memory_is_taken_and_given_back_by_few_events_only(events):
    state = SeatState.WAITING
    for event in events:
        if (state, event) not in TRANSITIONS:
            continue
        before, state = state, next_state(state, event)
        if before not in OCCUPYING and state in OCCUPYING:
            assert event in (SeatEvent.GO, SeatEvent.WAKE)
        if before in OCCUPYING and state not in OCCUPYING:
            confirmed = {SeatEvent.PARKED, SeatEvent.WAKE_REVERTED}
            assert event in confirmed | {SeatEvent.ENDED, SeatEvent.DELETE}


@pytest.mark.parametrize("state", [s for s in SeatState if s is not SeatState.GONE])
def test_a_pod_may_be_deleted_at_any_time(state):
    assert next_state(state, SeatEvent.DELETE) is SeatState.GONE
