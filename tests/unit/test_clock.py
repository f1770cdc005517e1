"""Virtual time: it passes where nothing else is to be done, and is waited for without polls."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.clock import until


async def test_a_condition_is_seen_at_the_moment_at_which_it_comes_true() -> None:
    looks: list[float] = []
    loop, come = asyncio.get_running_loop(), asyncio.Event()
    began = loop.time()
    loop.call_later(30.0, come.set)
    loop.call_later(40.0, looks.clear)

    def true() -> bool:
        looks.append(loop.time())
        return come.is_set()

    assert await until(true, 60.0)
    assert loop.time() - began == 30.0
    assert 0 < len(looks) < 10


async def test_what_never_comes_true_ends_at_the_limit() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert not await until(lambda: False, 5.0)
    assert loop.time() - began == 5.0


async def test_several_wait_beside_each_other() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    waits = [until(lambda at=at: loop.time() >= began + at, 10.0) for at in (3, 1, 20)]
    loop.call_later(1, lambda: None)
    loop.call_later(3, lambda: None)
    assert await asyncio.gather(*waits) == [True, True, False]


@pytest.mark.real_time
async def test_by_the_machines_clock_it_is_looked_at_again_and_again() -> None:
    come = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, come.set)
    assert await until(come.is_set, 60.0)
