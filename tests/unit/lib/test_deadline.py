"""The end of a call: by the clock, or because nobody waits any more."""

from __future__ import annotations

import threading

import pytest

from kybernate.errors import DeadlineError
from kybernate.lib.deadline import Deadline


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_it_passes_by_the_clock(clock):
    until = Deadline(2.0, "the work took too long", clock=clock)
    clock.now += 1.5
    assert (until.left, until.passed) == (0.5, False)
    until.check()
    clock.now += 1.0
    assert (until.left, until.passed) == (0.0, True)
    with pytest.raises(DeadlineError, match="the work took too long"):
        until.check()
    with pytest.raises(DeadlineError, match="CRIU does not answer"):
        until.check("CRIU does not answer")


@pytest.mark.parametrize("by_event", [True, False])
def test_what_is_cancelled_has_passed(clock, by_event):
    event = threading.Event()
    until = Deadline(60.0, cancelled=event, clock=clock)
    until.check()
    event.set() if by_event else until.cancel()
    assert (until.left, until.passed) == (0.0, True)
    with pytest.raises(DeadlineError, match="given up"):
        until.check()


def test_a_lock_is_held_and_given_back():
    lock = threading.Lock()
    with Deadline(60.0).holding(lock, "it hangs"):
        assert lock.locked()
    assert not lock.locked()


def test_a_lock_that_nobody_gives_back_is_an_error_in_time():
    lock = threading.Lock()
    lock.acquire()
    with pytest.raises(DeadlineError, match="it hangs"), Deadline(0.01).holding(lock, "it hangs"):
        pass
    assert lock.locked()


def test_who_was_given_up_does_not_begin(clock):
    lock, until = threading.Lock(), Deadline(60.0, clock=clock)
    until.cancel()
    with pytest.raises(DeadlineError), until.holding(lock, "it hangs"):
        pytest.fail("it began all the same")
    assert not lock.locked()
