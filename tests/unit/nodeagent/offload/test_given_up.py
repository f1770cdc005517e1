"""A call that the other node's agent gave up while a thread here was still at work on it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kybernate.checkpoint.delivery import inbox
from tests.unit.nodeagent.twonodes import LIMIT, follow, two_nodes

A_WHILE = 0.5


class Slow:
    """A function that goes on once it may."""

    def __init__(self, real):
        self._real, self.begun, self.may_go_on = real, threading.Event(), threading.Event()

    def __call__(self, *args):
        self.begun.set()
        assert self.may_go_on.wait(LIMIT)
        return self._real(*args)


async def given_up(two, peers, artifact, slow):
    """It is being kept over there, and whoever delivers it waits no more."""
    delivering = asyncio.ensure_future(peers.deliver(two.to, artifact, LIMIT))
    assert await asyncio.to_thread(slow.begun.wait, LIMIT)
    delivering.cancel()
    await asyncio.wait({delivering})


async def after(two, peers, monkeypatch, call):
    """What `call` says that comes when a delivery was given up; the artifact."""
    images = two.dump(1)
    await follow(two, peers, images)
    artifact, slow = two.sealed(images), Slow(inbox._write)
    monkeypatch.setattr(inbox, "_write", slow)
    await given_up(two, peers, artifact, slow)
    calling = asyncio.ensure_future(call(artifact))
    # It may wait for what is under way, or not.
    await asyncio.wait({calling}, timeout=A_WHILE)
    slow.may_go_on.set()
    return artifact, await calling


@pytest.mark.real_time
async def test_what_is_called_off_while_it_is_kept_goes(rig, tls, tmp_path, monkeypatch):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):

        async def off(artifact):
            await peers.call_off(two.to, LIMIT)

        artifact, _ = await after(two, peers, monkeypatch, off)
        await asyncio.wait_for(two.until_gone(artifact), LIMIT)
        await asyncio.sleep(A_WHILE)
        assert not two.has(artifact)


@pytest.mark.real_time
async def test_what_is_delivered_again_while_it_is_kept_is_whole(rig, tls, tmp_path, monkeypatch):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):

        async def again(artifact):
            await peers.deliver(two.to, artifact, LIMIT)

        artifact, _ = await after(two, peers, monkeypatch, again)
        two.inbox._seen.verified.clear()
        two.inbox.see_whole(artifact)
        await peers.let_continue(two.to, artifact, LIMIT)
        assert [found for _, found, _ in two.adopter.adopted] == [artifact]
