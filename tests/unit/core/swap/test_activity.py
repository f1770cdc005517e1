"""What a seat's profile says of when it was used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.swap.activity import HOURS, UNSEEN, Recorder

MIDNIGHT = 1_700_006_400.0  # 00:00 UTC
HOUR = 3600.0


def day(recorder, start, busy_hours, length=600.0, every=1200.0):
    """One day with a call every `every` seconds of the busy hours, each of `length` seconds."""
    for hour in busy_hours:
        at = start + hour * HOUR
        while at < start + (hour + 1) * HOUR:
            recorder.note(at, serving=True, wanted=True)
            recorder.note(at + length, serving=False, wanted=False)
            at += every
    recorder.advance(start + HOURS * HOUR)


def test_the_profile_says_which_hours_are_busy():
    recorder = Recorder(MIDNIGHT)
    day(recorder, MIDNIGHT, [9, 10])
    busy, calls = recorder.profile()
    assert busy[9] == busy[10] == pytest.approx(0.5)
    assert calls[9] == pytest.approx(3)
    assert [hour for hour, share in enumerate(busy) if share > 0] == [9, 10]


def test_hours_that_nobody_looked_at_are_unseen():
    recorder = Recorder(MIDNIGHT + 5 * HOUR)
    recorder.advance(MIDNIGHT + 5 * HOUR + 59)
    assert set(recorder.profile()[0]) == {UNSEEN}
    recorder.advance(MIDNIGHT + 5 * HOUR + 61)
    busy, calls = recorder.profile()
    assert (busy[5], calls[5]) == (0.0, 0.0)
    assert busy.count(UNSEEN) == calls.count(UNSEEN) == HOURS - 1


def test_newer_days_weigh_more_than_older_ones():
    recorder = Recorder(MIDNIGHT)
    for at in range(6):
        day(recorder, MIDNIGHT + at * 24 * HOUR, [3])
    for at in range(6, 12):
        day(recorder, MIDNIGHT + at * 24 * HOUR, [20])
    busy, _ = recorder.profile()
    assert busy[20] > 3 * busy[3]


def test_only_demand_after_quiet_is_a_call():
    recorder = Recorder(MIDNIGHT)
    recorder.note(MIDNIGHT + 10, serving=False, wanted=True)
    recorder.note(MIDNIGHT + 12, serving=True, wanted=True)
    recorder.note(MIDNIGHT + 20, serving=True, wanted=True)
    recorder.note(MIDNIGHT + 30, serving=False, wanted=False)
    recorder.advance(MIDNIGHT + HOUR)
    busy, calls = recorder.profile()
    assert calls[0] == pytest.approx(1)
    assert busy[0] == pytest.approx(18 / 3600)  # waiting takes no GPU time


def test_what_is_recent_fades():
    recorder = Recorder(MIDNIGHT)
    recorder.note(MIDNIGHT, serving=True, wanted=True)
    recorder.advance(MIDNIGHT + HOUR)
    assert recorder.recent_busy > 0.95
    recorder.note(MIDNIGHT + HOUR, serving=False, wanted=False)
    recorder.advance(MIDNIGHT + 2 * HOUR)
    assert recorder.recent_busy < 0.05
    assert recorder.recent_calls < 0.1


def test_a_steady_rate_of_calls_is_the_recent_rate():
    recorder = Recorder(MIDNIGHT)
    for second in range(0, 7200, 30):
        recorder.note(MIDNIGHT + second, serving=True, wanted=True)
        recorder.note(MIDNIGHT + second + 1, serving=False, wanted=False)
    assert recorder.recent_calls == pytest.approx(120, rel=0.05)


@pytest.mark.parametrize("jump", [-5 * HOUR, 40 * 24 * HOUR], ids=["back", "ahead"])
def test_a_clock_that_jumps_leaves_what_was_learned(jump):
    recorder = Recorder(MIDNIGHT)
    day(recorder, MIDNIGHT, [9])
    before = recorder.profile()
    recorder.advance(MIDNIGHT + 24 * HOUR + jump)
    assert recorder.profile() == before


def test_a_restarted_agent_goes_on_with_what_was_learned():
    recorder = Recorder(MIDNIGHT)
    day(recorder, MIDNIGHT, [9, 23])
    again = Recorder.from_record(recorder.record(), MIDNIGHT + 24 * HOUR + 900)
    assert again.profile()[0] == pytest.approx(recorder.profile()[0], abs=0.001)
    assert again.recent_busy == pytest.approx(recorder.recent_busy / 2.718, abs=0.01)


def test_a_record_of_another_length_is_refused():
    record = Recorder(MIDNIGHT).record()
    with pytest.raises(ValueError, match="24 hours"):
        Recorder.from_record({**record, "busy": [0.5]}, MIDNIGHT)


steps = st.lists(st.tuples(st.floats(0, 5 * HOUR), st.booleans(), st.booleans()), max_size=40)


@given(steps)
def test_a_share_is_a_share_whatever_comes(given_steps):
    recorder, now = Recorder(MIDNIGHT), MIDNIGHT
    for passed, serving, waiting in given_steps:
        now += passed
        recorder.note(now, serving=serving, wanted=serving or waiting)
    busy, calls = recorder.profile()
    assert all(share == UNSEEN or 0 <= share <= 1 for share in busy)
    assert all(rate == UNSEEN or rate >= 0 for rate in calls)
    assert 0 <= recorder.recent_busy <= 1
