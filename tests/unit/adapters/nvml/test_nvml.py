"""NVML's deadline: a call that hangs costs a thread, never the caller."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from kybernate.adapters.nvml import Nvml
from kybernate.adapters.nvml.worker import MAX_HUNG, Worker
from kybernate.errors import DeadlineError, DriverError


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


def test_answers_and_errors_come_from_one_thread():
    worker = Worker()
    first = worker.run(threading.get_ident, 5)
    assert worker.run(threading.get_ident, 5) == first != threading.get_ident()

    def fail():
        raise DriverError("nvmlInit", 9, "Driver Not Loaded")

    with pytest.raises(DriverError, match="Driver Not Loaded"):
        worker.run(fail, 5)
    assert worker.run(threading.get_ident, 5) == first


def test_a_hung_call_is_given_up_and_the_next_one_answered(gate):
    worker = Worker()
    with pytest.raises(DeadlineError, match=r"0\.01 s"):
        worker.run(gate.wait, 0.01)
    assert worker.run(lambda: 7, 5) == 7


def test_threads_do_not_pile_up_and_come_back(gate):
    worker = Worker()
    for _ in range(MAX_HUNG):
        with pytest.raises(DeadlineError, match="no answer"):
            worker.run(gate.wait, 0.001)
    with pytest.raises(DeadlineError, match="hangs"):
        worker.run(lambda: 7, 5)
    gate.set()
    for thread in worker._given_up:
        thread.join(5)
    assert worker.run(lambda: 7, 5) == 7


@pytest.mark.real_time
async def test_an_event_loop_gets_its_answers_and_errors():
    nvml = Nvml()
    assert await nvml.ask(lambda: 7, 1.0) == 7
    assert await nvml.ask(lambda: time.sleep(0.05) or 8, 1.0) == 8
    with pytest.raises(ZeroDivisionError):
        await nvml.ask(lambda: 1 // 0, 1.0)


@pytest.mark.real_time
async def test_questions_within_a_call_are_answered_in_its_thread():
    nvml = Nvml()

    def call():
        here = threading.current_thread()
        return nvml._worker.run(threading.current_thread, 1.0) is here

    assert await nvml.ask(call, 1.0)


@pytest.mark.real_time
async def test_an_event_loop_is_not_held_up_by_a_hung_call(gate):
    nvml, beats = Nvml(), 0
    asked = asyncio.create_task(nvml.ask(gate.wait, 0.2))
    while not asked.done():
        beats += 1
        await asyncio.sleep(0.005)
    with pytest.raises(DeadlineError):
        await asked
    assert beats > 10
    assert await nvml.ask(lambda: 7, 1.0) == 7


@pytest.mark.real_time
async def test_a_cancelled_question_leaves_the_thread_at_work(gate):
    nvml = Nvml()
    asked = [asyncio.create_task(nvml.ask(gate.wait, 5.0)) for _ in range(2)]
    await asyncio.sleep(0.02)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    gate.set()
    assert await nvml.ask(lambda: 7, 1.0) == 7
