"""Calls that are made again: which, when, and until when."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kybernate.errors import NotFoundError, RefusedError, RetryableError
from kybernate.lib import retry as lib
from kybernate.lib.retry import Clock, Pauses, retry, retry_blocking, steadily

EXACT = Pauses(1.0, 5.0, jitter=0.0)


class Fails:
    """A call that fails a few times; at which seconds it was made."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.at: list[float] = []
        self.now = 0.0

    def blocking(self) -> str:
        self.at.append(self.now)
        if self.errors:
            raise self.errors.pop(0)
        return "well"

    async def __call__(self) -> str:
        self.now = asyncio.get_running_loop().time() - 1000.0
        return self.blocking()

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_pauses_grow_to_the_longest():
    pausing = iter(EXACT)
    assert [next(pausing) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_jitter_adds_its_share_at_most(monkeypatch):
    monkeypatch.setattr(lib.random, "random", lambda: 1.0)
    pausing = iter(Pauses(1.0, 5.0, jitter=0.5))
    assert [next(pausing) for _ in range(3)] == [1.5, 3.0, 6.0]


def test_a_steady_pause_is_the_same_each_time():
    pausing = iter(steadily(0.3))
    assert [next(pausing) for _ in range(3)] == [0.3, 0.3, 0.3]


async def test_it_is_called_until_it_works():
    said: list[str] = []
    call = Fails(RetryableError("a"), OSError("b"), RetryableError("c"))
    assert await retry(call, lambda error: said.append(str(error)), pauses=EXACT) == "well"
    assert call.at == [0.0, 1.0, 3.0, 7.0]
    assert said == ["a", "b", "c"]


async def test_another_error_comes_out_at_once():
    said: list[Exception] = []
    call = Fails(RetryableError("a"), RefusedError("never"))
    with pytest.raises(RefusedError, match="never"):
        await retry(call, said.append, on=(RetryableError, NotFoundError), pauses=EXACT)
    assert call.at == [0.0, 1.0]
    assert len(said) == 1


async def test_a_bug_is_never_tried_again():
    with pytest.raises(KeyError):
        await retry(Fails(KeyError("a bug")), print)


async def test_no_call_begins_after_the_deadline():
    said: list[Exception] = []
    call = Fails(*(RetryableError(str(number)) for number in range(9)))
    with pytest.raises(RetryableError, match="2"):
        await retry(call, said.append, pauses=EXACT, until=1000.0 + 5.0)
    assert call.at == [0.0, 1.0, 3.0]
    assert len(said) == 2  # the last one is the caller's to tell


async def test_there_are_so_many_tries_and_no_more():
    call = Fails(*(RetryableError(str(number)) for number in range(9)))
    with pytest.raises(RetryableError, match="2"):
        await retry(call, lambda error: error, pauses=Pauses(tries=3))
    assert len(call.at) == 3


async def test_a_cancelled_task_calls_no_more():
    call = Fails(*(RetryableError("a") for _ in range(9)))
    task = asyncio.create_task(retry(call, lambda error: error, pauses=EXACT))
    await asyncio.sleep(1.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(60.0)
    assert call.at == [0.0, 1.0]


def test_a_thread_calls_until_it_works():
    call = Fails(RetryableError("a"), RetryableError("b"))
    said: list[Exception] = []
    clock = Clock(lambda: call.now, call.sleep)
    found = retry_blocking(call.blocking, said.append, pauses=EXACT, until=9.0, clock=clock)
    assert (found, call.at, len(said)) == ("well", [0.0, 1.0, 3.0], 2)


def test_a_thread_begins_no_call_after_the_deadline():
    call = Fails(*(RetryableError(str(number)) for number in range(9)))
    with pytest.raises(RetryableError, match="1"):
        retry_blocking(
            call.blocking,
            lambda error: error,
            pauses=EXACT,
            until=2.0,
            clock=Clock(lambda: call.now, call.sleep),
        )
    assert call.at == [0.0, 1.0]


def test_a_thread_that_is_stopped_calls_no_more():
    stopping = threading.Event()
    stopping.set()
    call = Fails(*(RetryableError(str(number)) for number in range(9)))
    with pytest.raises(RetryableError, match="0"):
        retry_blocking(call.blocking, lambda error: error, clock=Clock(sleep=stopping.wait))
