"""What a thread of the controller does with a key that is due."""

from __future__ import annotations

import threading

import pytest

from controller.base.queue import Queue
from controller.base.worker import Shift
from kybernate.errors import ConflictError, RetryableError

KEY = ("shop", "once")


class Works:
    """Implements `Work`: raises these, one a look, then tells the thread to stop."""

    kind = "test"

    def __init__(self, *raised):
        self.raised, self.looks, self.stopping = [*raised], [], threading.Event()

    def look(self, key):
        self.looks.append(key)
        if not self.raised:
            self.stopping.set()
            return
        raise self.raised.pop(0)


class Leads:
    """Implements what a Shift asks of the fence: answers with these, then that it leads."""

    def __init__(self, *answers):
        self.answers = [*answers]

    def closed(self):
        return self.answers.pop(0) if self.answers else None


@pytest.mark.parametrize("error", [ConflictError("x"), RetryableError("x"), ValueError("x")])
def test_a_look_that_fails_is_repeated_and_ends_no_thread(error):
    work, queue = Works(error), Queue()
    queue.add(KEY)
    Shift(work, queue, Leads()).run(work.stopping)
    assert work.looks == [KEY, KEY]


def test_what_was_taken_when_another_one_began_to_lead_stays_due():
    work, queue, fence = Works(), Queue(), Leads(None, "another one leads")
    queue.add(KEY)
    Shift(work, queue, fence).run(work.stopping)
    assert work.looks == [KEY]
    assert not fence.answers


def test_one_that_does_not_lead_takes_nothing():
    work, queue = Works(), Queue()
    queue.add(KEY)
    Shift(work, queue, Leads("another one leads", "another one leads")).run(work.stopping)
    assert work.looks == [KEY]
