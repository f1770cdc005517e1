"""Which snapshots of a namespace may begin."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.requests.checkpoint import Mode, Request, Status
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.turns import has_turn


def asked(number, **status):
    told = Status("u", "n", f"ckpt-{number}", **status)
    given_ = (f"r{number}", "shop", f"r{number}", "a", Mode.SNAPSHOT, None, "ann", float(number))
    return Request(*given_, deadline_s=60.0, keep_s=None, status=told)


def beginning(every, most):
    """Who has begun, or may begin now."""
    return [one.name for one in every if one.status.began_at or has_turn(one, every, most)]


def test_the_oldest_begin_and_what_has_begun_counts():
    every = [asked(number) for number in range(4)]
    assert beginning(every, 2) == ["r0", "r1"]
    every[3] = asked(3, began_at=1.0)
    assert beginning(every, 2) == ["r0", "r3"]
    every[3] = asked(3, began_at=1.0, ended_at=2.0)
    assert beginning(every, 2) == ["r0", "r1", "r3"]


@pytest.mark.parametrize("mode", [one for one in Mode if one is not Mode.SNAPSHOT])
def test_other_modes_take_no_turn_and_wait_for_none(mode):
    others = [replace(asked(number), mode=mode) for number in range(3)]
    last = asked(9)
    assert has_turn(last, [*others, last], 1)
    begun = [asked(number, began_at=1.0) for number in range(3)]
    assert has_turn(others[0], [*begun, *others], 1)


@pytest.mark.parametrize(
    "reason", [Reason.SEAT_BUSY, Reason.AGENT_UNREACHABLE, Reason.SEAT_NOT_READY]
)
def test_what_can_not_begin_holds_up_nobody(reason):
    stuck, next_ = asked(1, reason=reason), asked(2, reason=Reason.QUEUED)
    next_ = replace(next_, status=replace(next_.status, node="other"))
    assert has_turn(next_, [stuck, next_], 1)
    stuck = asked(1, reason=reason, began_at=1.0)
    assert not has_turn(next_, [stuck, next_], 1), "its agent has it, and may be at it"


def test_what_waited_for_one_agent_does_not_begin_at_once_when_it_is_back():
    every = [asked(number, reason=Reason.AGENT_UNREACHABLE) for number in range(5)]
    assert beginning(every, 2) == ["r0", "r1"]


requests = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([0.0, 1.0]),
        st.sampled_from([0.0, 2.0]),
        st.sampled_from([None, *Reason]),
    ),
    max_size=8,
)


@given(requests, st.integers(1, 4))
def test_never_more_than_may_be_and_never_none_that_could(rows, most):
    every = [
        replace(
            asked(number, began_at=began, ended_at=ended, reason=reason), created_at=float(made)
        )
        for number, (made, began, ended, reason) in enumerate(rows)
    ]
    under_way = [one for one in every if one.status.began_at and not one.ended]
    waiting = [one for one in every if not one.status.began_at and not one.ended]
    # What is stuck counts for nobody until it gets on.
    free = [one for one in waiting if one.status.reason not in _STUCK]
    first = [one for one in free if has_turn(one, every, most)]
    assert len(first) == min(len(free), max(0, most - len(under_way)))


_STUCK = (Reason.POD_NOT_BOUND, Reason.SEAT_NOT_READY, Reason.SEAT_BUSY)
