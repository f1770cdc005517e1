"""The transition table of a seat."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.seat.seats import (
    EVENT_MEANING,
    OCCUPYING,
    RESTING,
    STATE_MEANING,
    TIER_OF,
    TRANSITIONS,
    WITHOUT_TREE,
    SeatEvent,
    next_state,
    render_markdown,
    shown,
)
from kybernate.errors import IllegalTransitionError
from kybernate.types import SeatState, Tier

DOCS = Path(__file__).parents[4] / "docs" / "reference" / "node" / "states.md"


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
            assert event in (SeatEvent.GO, SeatEvent.WAKE, SeatEvent.FOUND_RUNNING)
        if before in OCCUPYING and state not in OCCUPYING:
            confirmed = {SeatEvent.PARKED, SeatEvent.WAKE_REVERTED}
            ends = {SeatEvent.ENDED, SeatEvent.DELETE}
            assert event in confirmed | ends | {SeatEvent.DISBELIEVED}


@pytest.mark.parametrize("state", [s for s in SeatState if s is not SeatState.GONE])
def test_a_pod_may_be_deleted_at_any_time(state):
    assert next_state(state, SeatEvent.DELETE) is SeatState.GONE


def test_a_parked_seat_is_in_one_tier_and_holds_no_gpu_memory():
    assert set(TIER_OF.values()) == set(Tier)
    assert not OCCUPYING & TIER_OF.keys()
    assert {tier: TIER_OF[state] for tier, state in RESTING.items()} == {t: t for t in Tier}


@given(st.lists(st.sampled_from(SeatEvent), max_size=60))
def test_a_seat_wakes_from_ram_only_and_its_tree_ends_only_by_a_dump(events):
    state = SeatState.WAITING
    for event in events:
        if (state, event) not in TRANSITIONS:
            continue
        before, state = state, next_state(state, event)
        if event is SeatEvent.WAKE:
            assert before is SeatState.PARKED
        if state in WITHOUT_TREE and before not in WITHOUT_TREE:
            assert event in (
                *(SeatEvent.DUMPED, SeatEvent.RESTORE_REVERTED),
                *(SeatEvent.ADOPTED, SeatEvent.RECEIVED),
            )


def test_what_no_record_tells_of_is_asked_before_it_is_believed():
    found = {event for (state, event) in TRANSITIONS if state is SeatState.UNVERIFIED}
    assert {event for (_, event), to in TRANSITIONS.items() if to is SeatState.UNVERIFIED} == {
        SeatEvent.FOUND
    }
    for event in (SeatEvent.FOUND_RUNNING, SeatEvent.FOUND_PARKED):
        assert [state for state, e in TRANSITIONS if e is event] == [SeatState.UNVERIFIED]
    assert found == {
        *(SeatEvent.FOUND_RUNNING, SeatEvent.FOUND_PARKED, SeatEvent.ENDED, SeatEvent.DELETE)
    }
    assert SeatState.UNVERIFIED not in OCCUPYING | TIER_OF.keys()
    assert shown(SeatState.UNVERIFIED) == "waiting"


def test_what_is_disbelieved_is_a_record_that_would_hold_gpu_memory():
    doubted = {state: to for (state, e), to in TRANSITIONS.items() if e is SeatEvent.DISBELIEVED}
    assert doubted == dict.fromkeys(OCCUPYING, SeatState.WAITING)


def test_people_see_the_same_word_for_every_tier():
    assert {shown(state) for state in RESTING.values()} == {"parked"}
    assert shown(SeatState.DUMPING) == "dumping"
