"""When times of a schedule are, by the clocks of their zones."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.policy.schedule import LONGEST_S, read_times

HOUR = 3600.0
BERLIN = "Europe/Berlin"


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def test_it_is_from_its_beginning_to_its_end() -> None:
    times = read_times("0 8 * * 1-5", BERLIN, 10 * HOUR)
    begin, end = at("2026-11-23T08:00", BERLIN), at("2026-11-23T18:00", BERLIN)
    assert times.now(begin - 1) == (False, begin)
    assert times.now(begin - 0.001) == (False, begin)
    assert times.now(begin) == (True, end)
    assert times.now(end - 0.001) == (True, end)
    assert times.now(end) == (False, at("2026-11-24T08:00", BERLIN))
    assert times.now(at("2026-11-27T19:00", BERLIN)) == (False, at("2026-11-30T08:00", BERLIN))


def test_one_that_begins_before_the_last_has_ended_goes_on() -> None:
    times = read_times("0 * * * *", "UTC", 2 * HOUR)
    noon = at("2026-11-23T12:00")
    assert times.now(noon + 1) == (True, noon + HOUR)
    assert times.now(noon + HOUR) == (True, noon + 2 * HOUR)


@pytest.mark.parametrize(
    ("cron", "day", "begins"),
    [
        # The clocks are put from 2 to 3: what would begin between them begins at 3.
        ("30 2 * * *", "2026-03-29", ["2026-03-29T01:00"]),
        ("0 8 * * *", "2026-03-29", ["2026-03-29T06:00"]),
        # They are put from 3 to 2: a time of day that comes twice begins once.
        ("30 2 * * *", "2026-10-25", ["2026-10-25T00:30"]),
        ("0 8 * * *", "2026-10-25", ["2026-10-25T07:00"]),
        ("30 * * * *", "2026-10-25", [f"2026-10-{d}:30" for d in ("25T00", "25T01", "25T02")]),
    ],
)
def test_where_clocks_are_put_forward_or_back(cron: str, day: str, begins: list[str]) -> None:
    times = read_times(cron, BERLIN, 60.0)
    now = at(f"{day}T01:45", BERLIN)
    for begin in begins:
        assert times.now(now) == (False, at(begin))
        assert times.now(at(begin)) == (True, at(begin) + 60)
        assert times.around(at(begin)).began == at(begin)
        now = at(begin) + 60


def test_a_duration_is_so_many_hours_and_not_a_time_of_day() -> None:
    times = read_times("0 22 * * *", BERLIN, 8 * HOUR)
    assert times.now(at("2026-10-24T22:00", BERLIN))[1] == at("2026-10-25T05:00", BERLIN)
    assert times.now(at("2026-03-28T22:00", BERLIN))[1] == at("2026-03-29T07:00", BERLIN)


@pytest.mark.parametrize(
    ("cron", "zone", "lasts", "said"),
    [
        ("0 8 * *", "UTC", 60, "day of month"),
        ("0 8 * * * *", "UTC", 60, "day of month"),
        ("61 8 * * *", "UTC", 60, "Bad minute"),
        ("0 8 * * MONDAY", "UTC", 60, "day-of-week"),
        ("0 0 30 2 *", "UTC", 60, "day-of-month"),
        ("0 0 29 2 */7", "UTC", 60, "within a year"),
        ("0 8 * * *", "Europe/Berlni", 60, "Europe/Berlin, or UTC"),
        ("0 8 * * *", "../../etc/passwd", 60, "no time zone"),
        ("0 8 * * *", "", 60, "no time zone"),
        ("0 8 * * *", "x" * 5000, 60, "no time zone"),
        ("0 8 * * *", "UTC", 0, "duration"),
        ("0 8 * * *", "UTC", LONGEST_S + 1, "8784h"),
    ],
)
def test_what_never_begins_is_told(cron: str, zone: str, lasts: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_times(cron, zone, lasts)


CRONS = (
    "0 8 * * 1-5",
    "*/20 * * * *",
    "30 2 * * *",
    "0 0 1 * *",
    "15 1-3 * 3,10 SUN",
    "0 0 29 2 *",
)
ZONES = ("UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")


@given(
    st.sampled_from(CRONS),
    st.sampled_from(ZONES),
    st.floats(1, 40 * HOUR),
    st.floats(at("2025-01-01"), at("2028-12-31")),
)
def test_nothing_changes_before_the_moment_that_is_told(
    cron: str, zone: str, lasts: float, now: float
) -> None:
    times = read_times(cron, zone, lasts)
    is_now, changes = times.now(now)
    assert changes > now
    for part in (0.01, 0.5, 0.99):
        between = now + (changes - now) * part
        if between < changes:
            assert times.now(between)[0] is is_now
    assert is_now or times.now(changes)[0]


def test_a_second_of_a_beginning_is_whole() -> None:
    times = read_times("0 8 * * *", "UTC", 0.5)
    begin = at("2026-11-23T08:00")
    assert times.now(begin + 0.4) == (True, begin + 0.5)
    assert times.now(begin + 0.5)[0] is False
    assert times.around(begin).begins == begin + timedelta(days=1).total_seconds()
