"""What becomes of a seat that ends, and of any seat after a restart of the agent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.seat.ending import Ends, EndView, Resume, Watched, resumed, watched
from kybernate.core.seat.seats import AT_GATE, OCCUPYING, TIER_OF
from kybernate.types import SeatState

VIEWS = st.builds(
    EndView,
    state=st.sampled_from(SeatState),
    ends=st.sampled_from(Ends),
    until=st.floats(0, 100),
    connected=st.booleans(),
    replaced=st.booleans(),
    pod_ends=st.booleans(),
    pod_gone=st.booleans(),
)


@given(VIEWS, st.floats(0, 100))
def test_only_a_container_that_is_there_and_nobody_ends_lives_on(view, now):
    found = watched(view, now)
    if found is not Watched.ENDS:
        assert view.connected
        assert not view.replaced
        assert not view.pod_gone
        assert view.state is not SeatState.FAILED
        assert view.ends is not Ends.KILLED
    if found is Watched.SURVIVED:
        assert now >= view.until
        assert not view.pod_ends
        assert view.state not in {*TIER_OF, SeatState.UNVERIFIED}


def test_what_ignored_the_signal_is_followed_until_it_must_have_been_killed():
    view = EndView(
        state=SeatState.ACTIVE,
        ends=Ends.ASKED,
        until=35.0,
        connected=True,
        replaced=False,
        pod_ends=False,
        pod_gone=False,
    )
    assert watched(view, 34.9) is Watched.ENDS
    assert watched(view, 35.0) is Watched.SURVIVED


@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize("state", list(SeatState))
def test_after_a_restart_whatever_may_hold_memory_is_taken_up(state, ending):
    found = resumed(state, ending=ending, there=True)
    if state in OCCUPYING and not (ending and state is SeatState.DRAINING):
        assert found is not Resume.NOTHING
    if state in TIER_OF:
        assert (found is Resume.NOTHING) == ending
    gone = resumed(state, ending=ending, there=False)
    assert gone is (Resume.NOTHING if state in AT_GATE else Resume.WATCH_END)
