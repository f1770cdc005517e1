"""A state that comes for a pod that goes meanwhile, or while this node's disk is full."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.errors import RetryableError
from kybernate.gen import peers_pb2 as pb
from kybernate.testing.machine import FakeJournal
from nodeagent.arrived import ARRIVED
from nodeagent.receive import TAKEN
from tests.unit.nodeagent.test_receive import LIMIT, POD, delivered, follow, tls, two_nodes

__all__ = ["tls"]


def gone(two):
    """The successor's pod is no more."""
    seat = two.r.node.seats.pop(two.uid)
    two.receiver.seat_gone(seat)


async def until(condition):
    while not condition():  # noqa: ASYNC110 - folders tell nobody of what becomes of them
        await asyncio.sleep(0.01)


def part():
    return pb.Parts(parts=[pb.Part(written=pb.Written(file="a", data=b"x"))])


def test_nothing_is_laid_out_for_a_pod_that_goes_before_the_first_part(
    rig, tls, tmp_path, monkeypatch
):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, _):
            look = two.vault.ls

            async def goes(tier):
                gone(two)
                await asyncio.sleep(0.05)
                return await look(tier)

            async def parts():
                yield part()

            monkeypatch.setattr(two.vault, "ls", goes)
            with pytest.raises(RetryableError, match="no seat"):
                await two.receiver.receive(POD, two.uid, "", parts())
            assert two.inbox.waiting() == frozenset()

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_nothing_is_kept_for_a_pod_that_goes_before_it_is(rig, tls, tmp_path):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            images = two.dump(1)
            await follow(two, peers, images)
            artifact = two.sealed(images)
            began, go_on = asyncio.Event(), asyncio.Event()

            async def parts():
                began.set()
                await go_on.wait()
                yield part()

            coming = asyncio.create_task(two.receiver.receive(POD, two.uid, "x", parts()))
            await began.wait()
            signed = two.outbox.signed(artifact)
            work = two.receiver.deliver(POD, two.uid, artifact, signed)
            delivering = asyncio.create_task(work)
            await asyncio.sleep(0.05)
            gone(two)
            go_on.set()
            await coming
            with pytest.raises(RetryableError, match="no seat"):
                await delivering
            await until(lambda: not two.inbox.waiting())
            assert not two.has(artifact)
            assert ARRIVED + artifact not in two.r.machine.journal

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_that_a_state_was_taken_over_is_told_once_it_is_on_the_disk(
    rig, tls, tmp_path, monkeypatch
):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = await delivered(two, peers)
            put = FakeJournal.put

            def full(self, key, record, *, synced):
                if key.startswith(TAKEN):
                    raise OSError(28, "No space left on device")
                return put(self, key, record, synced=synced)

            with monkeypatch.context() as patched:
                patched.setattr(FakeJournal, "put", full)
                for _ in range(2):
                    with pytest.raises(RetryableError):
                        await peers.take_over(two.to, artifact, LIMIT)
            await peers.take_over(two.to, artifact, LIMIT)
            assert two.r.machine.journal[TAKEN + artifact] == {"successor": two.uid}

    asyncio.run(asyncio.wait_for(main(), LIMIT))
