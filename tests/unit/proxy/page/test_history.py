"""Since when seats are as they are, and who was in GPU memory before."""

from __future__ import annotations

from dataclasses import replace

from kybernate.types import NodeName, PodUid, SeatState
from proxy.actions import SeatInfo
from proxy.page import history
from proxy.page.history import History

A = SeatInfo(PodUid("a"), NodeName("n"), "s", "G0", "p", "m", SeatState.PARKED)


def told(past: History, after: int = 0) -> list[tuple[str, float, float]]:
    return [(one.state, one.begin, one.end) for one in past.spans(after)]


def test_what_was_in_gpu_memory_is_remembered_and_what_was_parked_is_not():
    past = History()
    for at, state in enumerate(
        (SeatState.PARKED, SeatState.WAKING, SeatState.ACTIVE, SeatState.PARKING, SeatState.PARKED)
    ):
        past.seat(replace(A, state=state), float(at))
    assert told(past) == [("waking", 1, 2), ("active", 2, 3), ("parking", 3, 4)]
    assert told(past, 2) == [("parking", 3, 4)]
    assert told(past, 3) == []
    assert past.since(A.uid) == 4


def test_news_of_the_same_state_begins_no_other_span():
    past = History()
    past.seat(replace(A, state=SeatState.ACTIVE), 1.0)
    past.seat(replace(A, state=SeatState.ACTIVE, reason="else"), 2.0)
    assert past.since(A.uid) == 1.0
    past.gone(A.uid, 3.0)
    (span,) = past.spans()
    assert (span.begin, span.end, span.seat.reason) == (1.0, 3.0, "else")
    assert past.since(A.uid) is None


def test_seats_that_left_without_a_word_are_forgotten():
    past = History()
    past.seat(replace(A, state=SeatState.ACTIVE), 1.0)
    past.only({A.uid}, 2.0)
    assert told(past) == []
    past.only(set(), 2.0)
    assert told(past) == [("active", 1, 2)]


def test_it_keeps_so_many_and_so_long(monkeypatch):
    monkeypatch.setattr(history, "MOST", 3)
    past = History()
    for at in range(10):
        past.seat(replace(A, state=SeatState.ACTIVE), at)
        past.seat(A, at + 0.5)
    assert [begin for _, begin, _ in told(past)] == [7, 8, 9]
    assert [begin for _, begin, _ in told(past, 9)] == [9]
    past.seat(replace(A, state=SeatState.ACTIVE), 1000)
    past.seat(A, 1001)
    assert told(past) == [("active", 1000, 1001)]
