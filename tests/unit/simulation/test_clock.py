"""The storms' event loop: time jumps, order holds, and what goes wrong is noted."""

from __future__ import annotations

import asyncio

import pytest

from tests.simulation.clock import Spinning, TimerLoop


@pytest.fixture
def loop():
    loop = TimerLoop(10.0)
    yield loop
    loop.close()


def test_time_jumps_to_the_next_timer_and_first_come_is_first_served(loop):
    seen = []
    for name in "abcd":
        loop.call_later(1.0, lambda name=name: seen.append((name, loop.time())))
    loop.call_at(10.5, lambda: seen.append(("early", loop.time())))
    loop.call_later(0.7, seen.append, "never").cancel()
    loop.run_until_complete(asyncio.sleep(2.0))
    assert seen == [("early", 10.5), *((name, 11.0) for name in "abcd")]
    assert loop.time() == 12.0


def test_a_callback_that_fails_is_noted_and_the_others_go_on(loop):
    seen = []
    loop.call_soon(lambda: 1 / 0)
    loop.call_soon(seen.append, "next")
    loop.run_until_complete(asyncio.sleep(0.1))
    assert seen == ["next"]
    assert "division by zero" in loop.problems[0]


def test_nothing_left_to_happen_is_found(loop):
    with pytest.raises(Spinning, match="nothing is left"):
        loop.run_until_complete(loop.create_future())


def test_going_on_for_ever_at_one_moment_is_found(loop):
    def again():
        loop.call_soon(again)

    again()
    with pytest.raises(Spinning, match=r"spins at 10\.000 s"):
        loop.run_until_complete(loop.create_future())
