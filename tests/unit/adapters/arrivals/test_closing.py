"""Nobody waits for the close of a socket for which the kernel waits."""

from __future__ import annotations

import threading

from kybernate.adapters.arrivals.closing import Closing, close_aside

LIMIT = 30
THREADS, WAITING = 3, 5


class Slow:
    """A socket whose close waits till it may. `thread`: who has closed it."""

    def __init__(self, may=None, error=None):
        self.may, self.error = may or threading.Event(), error
        self.begun, self.closed = threading.Event(), threading.Event()
        self.thread = None

    def close(self):
        self.thread = threading.current_thread()
        self.begun.set()
        assert self.may.wait(LIMIT)
        self.closed.set()
        if self.error:
            raise self.error


def test_a_close_that_waits_holds_nobody_up():
    one = Slow()
    close_aside(one)
    assert not one.closed.is_set()
    one.may.set()
    assert one.closed.wait(LIMIT)


def test_few_threads_close_many():
    closing, may = Closing(THREADS, WAITING), threading.Event()
    first = [Slow(may) for _ in range(THREADS)]
    for one in first:
        closing.aside(one)
        assert one.begun.wait(LIMIT)
    waiting = [Slow(may) for _ in range(WAITING)]
    for one in waiting:
        closing.aside(one)
    assert not any(one.begun.is_set() for one in waiting)
    may.set()
    assert all(one.closed.wait(LIMIT) for one in waiting)
    assert {one.thread for one in waiting} <= {one.thread for one in first}


def test_who_makes_too_many_closes_them_himself():
    closing, may, free = Closing(1, 1), threading.Event(), threading.Event()
    free.set()
    held, waiting, last = Slow(may), Slow(may), Slow(free)
    closing.aside(held)
    assert held.begun.wait(LIMIT)
    closing.aside(waiting)
    closing.aside(last)
    assert last.thread is threading.current_thread()
    assert last.closed.is_set()
    may.set()
    assert waiting.closed.wait(LIMIT)


def test_after_one_that_fails_others_are_closed():
    closing = Closing(1, WAITING)
    failing, after = Slow(error=OSError("reset")), Slow()
    closing.aside(failing)
    closing.aside(after)
    for one in (failing, after):
        one.may.set()
    assert after.closed.wait(LIMIT)
    again = Slow()
    again.may.set()
    closing.aside(again)
    assert again.closed.wait(LIMIT)
