"""Calls of other nodes' agents that take long, and of those that have long names."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from kybernate.checkpoint import seal
from kybernate.checkpoint.deadline import Deadline
from kybernate.types import Tier
from tests.unit.checkpoint.kit import KEYS, draft
from tests.unit.nodeagent.test_receive import LIMIT, tls, two_nodes

__all__ = ["tls"]

CALLS, THREADS = 8, 2
LONGEST = ".".join(["x" * 62] * 4)
"""About as long as the name of a pod can be."""


def test_calls_that_take_long_leave_the_agent_its_threads(rig, tls, tmp_path):
    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            came, may_end = [], asyncio.Event()

            async def slow(pod, successor, artifact):
                came.append(artifact)
                await may_end.wait()
                return "it goes on"

            two.receiver.take_over = slow
            calls = [
                asyncio.ensure_future(peers.take_over(two.to, str(number), LIMIT))
                for number in range(CALLS)
            ]
            other = asyncio.ensure_future(_all_have_come(came))
            await asyncio.wait({other, *calls}, return_when=asyncio.FIRST_COMPLETED)
            assert (other.done(), [one.done() for one in calls]) == (True, [False] * CALLS)
            may_end.set()
            assert await asyncio.gather(*calls) == [None] * CALLS

    asyncio.run(main())


async def _all_have_come(came):
    """Looks whether they have, in a thread each time."""
    while await asyncio.to_thread(len, came) < CALLS:  # noqa: ASYNC110 - threads are what it asks for
        await asyncio.sleep(0.01)


def test_a_pod_of_the_longest_name_moves(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            made = draft(1, pod=LONGEST)
            artifact = seal.seal(two.here, two.dump(1), made, KEYS, Deadline(LIMIT)).id
            assert await peers.stage(two.to, artifact, LIMIT) > 0
            await peers.deliver(two.to, artifact, LIMIT)
            await peers.take_over(two.to, artifact, LIMIT)
            assert two.adopter.adopted == [(two.uid, artifact, Tier.NVME)]

    asyncio.run(main())
