"""NVML's deadline: a call that hangs costs a thread, never the caller."""

from __future__ import annotations

import threading

import pytest

from kybernate.adapters.nvml import _MAX_HUNG, _Worker
from kybernate.errors import DeadlineError, DriverError


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


def test_answers_and_errors_come_from_one_thread():
    worker = _Worker()
    first = worker.run(threading.get_ident, 5)
    assert worker.run(threading.get_ident, 5) == first != threading.get_ident()

    def fail():
        raise DriverError("nvmlInit", 9, "Driver Not Loaded")

    with pytest.raises(DriverError, match="Driver Not Loaded"):
        worker.run(fail, 5)
    assert worker.run(threading.get_ident, 5) == first


def test_a_hung_call_is_given_up_and_the_next_one_answered(gate):
    worker = _Worker()
    with pytest.raises(DeadlineError, match=r"0\.01 s"):
        worker.run(gate.wait, 0.01)
    assert worker.run(lambda: 7, 5) == 7


def test_threads_do_not_pile_up_and_come_back(gate):
    worker = _Worker()
    for _ in range(_MAX_HUNG):
        with pytest.raises(DeadlineError, match="no answer"):
            worker.run(gate.wait, 0.001)
    with pytest.raises(DeadlineError, match="hangs"):
        worker.run(lambda: 7, 5)
    gate.set()
    for thread in worker._given_up:
        thread.join(5)
    assert worker.run(lambda: 7, 5) == 7
