"""`run_virtual` leaves nothing behind."""

from __future__ import annotations

import asyncio

from tests.kit.clock import run_virtual


def test_what_begins_as_the_rest_is_cancelled_is_ended_too():
    tasks = []

    def begin(what):
        tasks.append(asyncio.create_task(what))

    async def begins_another():
        try:
            await asyncio.sleep(100)
        finally:
            asyncio.get_running_loop().call_soon(lambda: begin(asyncio.sleep(100)))

    async def main():
        begin(begins_another())
        await asyncio.sleep(1)

    run_virtual(main())
    assert [task.cancelled() for task in tasks] == [True, True]
