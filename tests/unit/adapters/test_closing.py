"""Nobody waits for the close of a socket for which the kernel waits."""

from __future__ import annotations

import threading

from kybernate.adapters.arrivals.closing import close_aside


class Slow:
    def __init__(self):
        self.may, self.closed = threading.Event(), threading.Event()

    def close(self):
        assert self.may.wait(30)
        self.closed.set()


def test_a_close_that_waits_holds_nobody_up():
    one = Slow()
    close_aside(one)
    assert not one.closed.is_set()
    one.may.set()
    assert one.closed.wait(30)
