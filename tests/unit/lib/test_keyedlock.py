"""Locks by key: one for all who ask at a time, and none that stays."""

from __future__ import annotations

import asyncio
import gc
import threading

from kybernate.lib.keyedlock import KeyedLocks


async def test_one_at_a_time_for_a_key_and_others_beside_it():
    locks, log = KeyedLocks[str, asyncio.Lock](asyncio.Lock), []

    async def work(key: str, seconds: float) -> None:
        async with locks[key]:
            log.append((asyncio.get_running_loop().time() - 1000.0, key))
            await asyncio.sleep(seconds)

    await asyncio.gather(work("a", 3.0), work("a", 1.0), work("b", 1.0), work("a", 1.0))
    assert log == [(0.0, "a"), (0.0, "b"), (3.0, "a"), (4.0, "a")]


async def test_who_is_cancelled_lets_the_next_one_in():
    locks, done = KeyedLocks[str, asyncio.Lock](asyncio.Lock), []

    async def work(name: str, seconds: float) -> None:
        async with locks["a"]:
            await asyncio.sleep(seconds)
            done.append(name)

    holder = asyncio.create_task(work("holder", 60.0))
    waiter = asyncio.create_task(work("waiter", 1.0))
    last = asyncio.create_task(work("last", 1.0))
    await asyncio.sleep(1.0)
    waiter.cancel()
    holder.cancel()
    await asyncio.gather(holder, waiter, last, return_exceptions=True)
    assert done == ["last"]


def test_threads_take_turns():
    locks, inside, most = KeyedLocks[str, threading.Lock](threading.Lock), [], []

    def work() -> None:
        for _ in range(200):
            with locks["a"]:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert (len(most), max(most)) == (800, 1)


def test_what_nobody_has_in_hand_is_forgotten():
    locks = KeyedLocks[int, threading.Lock](threading.Lock)
    for number in range(100):
        with locks[number]:
            pass
    gc.collect()
    assert not locks._locks


def test_one_key_waits_for_nobody_elses():
    locks = KeyedLocks[str, threading.Lock](threading.Lock)
    with locks["a"]:
        assert locks["b"].acquire(timeout=0.0)
        assert not locks["a"].acquire(timeout=0.0)
    assert locks["a"].acquire(timeout=0.0)
