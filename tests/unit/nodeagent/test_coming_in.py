"""A state that comes for a pod that goes meanwhile, or while this node's disk is full."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from kybernate.checkpoint.seal import verify_raw
from kybernate.errors import DeadlineError, RetryableError
from kybernate.gen import peers_pb2 as pb
from kybernate.testing.machine import FakeJournal
from nodeagent import peers as peers_module
from nodeagent.arrived import ARRIVED
from nodeagent.doorkeeper import Rates
from nodeagent.leaving import persistently
from nodeagent.takenover import TAKEN
from tests.unit.nodeagent import test_receive
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
                await two.receiver.coming.receive(POD, two.uid, "", parts())
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

            coming = asyncio.create_task(two.receiver.coming.receive(POD, two.uid, "x", parts()))
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


@pytest.mark.parametrize("call", ["deliver", "take_over"])
def test_a_state_that_takes_longer_to_be_read_than_a_call_may_take(
    rig, tls, tmp_path, monkeypatch, call
):
    """As one of 40 GB does which came to an agent before this one."""

    async def main():
        monkeypatch.setattr(test_receive, "Rates", lambda: Rates(limit_s=0.2))
        monkeypatch.setattr(peers_module, "_AGAIN", 0.01)
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = await delivered(two, peers)
            two.seen_there.verified.clear()
            read, go_on = [], threading.Event()

            def slowly(*whole):
                read.append(artifact)
                assert go_on.wait(LIMIT)
                verify_raw(*whole)

            monkeypatch.setattr("kybernate.checkpoint.inbox.verify_raw", slowly)
            asyncio.get_running_loop().call_later(1.0, go_on.set)
            if call == "deliver":
                await peers.deliver(two.to, artifact, LIMIT)
            else:
                take_over = partial(peers.take_over, two.to, artifact, LIMIT)
                await persistently(take_over, lambda why: None)
            assert read == [artifact], "what was read once was read again"

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_a_state_is_not_waited_for_beyond_the_callers_own_deadline(rig, tls, tmp_path, monkeypatch):
    async def main():
        async with two_nodes(rig, tls, tmp_path) as (two, peers):
            artifact = await delivered(two, peers)
            two.seen_there.verified.clear()
            go_on = threading.Event()
            monkeypatch.setattr("kybernate.checkpoint.inbox.verify_raw", lambda *_: go_on.wait())
            try:
                with pytest.raises(DeadlineError):
                    await peers.deliver(two.to, artifact, 0.3)
            finally:
                go_on.set()

    asyncio.run(asyncio.wait_for(main(), LIMIT))
