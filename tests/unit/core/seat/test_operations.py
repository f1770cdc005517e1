"""What becomes of an operation, by the seat's state alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.seat.operations import (
    ENDED,
    Kind,
    Progress,
    SeatFacts,
    judge_away,
    judge_drain,
    judge_wake,
    plan_away,
    plan_drain,
    plan_wake,
)
from kybernate.core.seat.seats import OCCUPYING
from kybernate.types import SeatState

seats = st.builds(
    SeatFacts,
    name=st.sampled_from(["shop/a", "shop/b"]),
    state=st.sampled_from([state for state in SeatState if state is not SeatState.GONE]),
    reason=st.just("a reason"),
    unparkable=st.sampled_from(["", "RAM is short"]),
    held=st.integers(0, 1 << 40),
    ending=st.booleans(),
)
away = st.sampled_from([Kind.PARK, Kind.EVICT])
begun = st.sampled_from([Progress.PENDING, Progress.RUNNING])


@given(seat=seats, kind=away, before=begun)
def test_a_park_has_succeeded_only_if_nothing_is_in_gpu_memory(seat, kind, before):
    verdict = judge_away(seat, kind, before)
    assert verdict.sentence
    if verdict.progress is Progress.SUCCEEDED:
        assert seat.state not in OCCUPYING
        assert not seat.ending
    if seat.state is SeatState.PARKED and not seat.ending:
        assert verdict.progress is Progress.SUCCEEDED


@given(seat=seats, kind=away, before=begun)
def test_what_can_not_be_parked_is_waited_for_and_says_what_to_do(seat, kind, before):
    live = seat.state in OCCUPYING and seat.state is not SeatState.FAILED and not seat.ending
    if live and seat.unparkable:
        verdict = judge_away(seat, kind, before)
        assert verdict.progress is Progress.PENDING
        assert "RAM is short; make room" in verdict.sentence


@given(seat=seats, draining=st.sampled_from(["", "why"]), lost=st.sampled_from(["", "lost"]))
def test_a_wake_has_succeeded_exactly_if_the_seat_is_active(seat, draining, lost):
    verdict = judge_wake(seat, draining, lost)
    succeeded = verdict.progress is Progress.SUCCEEDED
    assert succeeded == (seat.state is SeatState.ACTIVE and not seat.ending)
    if not succeeded and (draining or lost):
        assert verdict.progress is Progress.FAILED


@given(st.lists(seats, max_size=4))
def test_a_drain_has_succeeded_exactly_if_no_seat_is_in_gpu_memory(all_of_them):
    verdict, out = judge_drain(all_of_them)
    left = [seat for seat in all_of_them if seat.state in OCCUPYING]
    assert (verdict.progress is Progress.SUCCEEDED) == (not left)
    assert out + len(left) == len(all_of_them)
    assert all(seat.name in verdict.sentence for seat in left) or all(
        seat.unparkable for seat in left
    )


@pytest.mark.parametrize("kind", [Kind.PARK, Kind.EVICT])
def test_a_pod_that_is_gone_has_lost_its_state(kind):
    assert judge_away(None, kind, Progress.RUNNING).progress is Progress.FAILED
    assert judge_wake(None, "", "").progress is Progress.FAILED


def test_a_workload_that_ended_on_its_way_was_not_saved():
    seat = SeatFacts("shop/a", SeatState.WAITING, "it exited with status 1")
    assert judge_away(seat, Kind.PARK, Progress.PENDING).progress is Progress.SUCCEEDED
    failed = judge_away(seat, Kind.PARK, Progress.RUNNING)
    assert failed.progress is Progress.FAILED
    assert "status 1" in failed.sentence


@given(seat=seats, kind=away, others=st.lists(seats, max_size=3))
def test_plans_are_sentences(seat, kind, others):
    for plan in (plan_away(seat, kind), plan_wake(seat, others), plan_drain(others)):
        assert plan
        assert all(step.endswith(".") and step[0].isalpha() for step in plan)


def test_the_ends_are_ends():
    assert {one for one in Progress if one not in ENDED} == {Progress.PENDING, Progress.RUNNING}
