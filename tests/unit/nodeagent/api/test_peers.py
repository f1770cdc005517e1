"""Calls of other nodes' agents that take long, and of those that have long names."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from kybernate.checkpoint.raw import seal
from kybernate.checkpoint.raw.seal import verify_raw
from kybernate.errors import (
    DeadlineError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.deadline import Deadline
from kybernate.lib.retry import quietly, retry, steadily
from kybernate.types import PodRef, Tier
from nodeagent.api import peers as peers_module
from nodeagent.api.doorkeeper import Rates
from nodeagent.migration.protocol import Pacer
from tests.unit.checkpoint.kit import KEYS, draft
from tests.unit.nodeagent import twonodes
from tests.unit.nodeagent.twonodes import LIMIT, delivered, follow, two_nodes

CALLS, THREADS = 8, 2
LONGEST = ".".join(["x" * 62] * 4)
"""About as long as the name of a pod can be."""


@pytest.mark.real_time
async def test_calls_that_take_long_leave_the_agent_its_threads(rig, tls, tmp_path):
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        came, may_end = [], asyncio.Event()

        async def slow(pod, successor, artifact):
            came.append(artifact)
            await may_end.wait()
            return "it continues"

        two.receiver.let_continue = slow
        calls = [
            asyncio.ensure_future(peers.let_continue(two.to, str(number), LIMIT))
            for number in range(CALLS)
        ]
        other = asyncio.ensure_future(_all_have_come(came))
        await asyncio.wait({other, *calls}, return_when=asyncio.FIRST_COMPLETED)
        assert (other.done(), [one.done() for one in calls]) == (True, [False] * CALLS)
        may_end.set()
        assert await asyncio.gather(*calls) == [None] * CALLS


async def _all_have_come(came):
    """Looks whether they have, in a thread each time."""
    while await asyncio.to_thread(len, came) < CALLS:  # noqa: ASYNC110 - threads are what it asks for
        await asyncio.sleep(0.01)


@pytest.mark.real_time
async def test_a_pod_of_the_longest_name_moves(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        made = draft(1, pod=LONGEST)
        artifact = seal.seal(two.here, two.dump(1), made, KEYS, Deadline(LIMIT)).id
        assert await peers.stage(two.to, artifact, LIMIT) > 0
        await peers.deliver(two.to, artifact, LIMIT)
        await peers.let_continue(two.to, artifact, LIMIT)
        assert two.adopter.adopted == [(two.uid, artifact, Tier.NVME)]


@pytest.mark.real_time
async def test_only_agents_may_call(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, _):
        proxy = two.peers("proxy")
        with pytest.raises(RefusedError, match="agents of other nodes"):
            await proxy.expect(two.to, LIMIT)
        with pytest.raises(RefusedError, match="agents of other nodes"):
            await follow(two, proxy, two.dump(1))
        proxy.close()


@pytest.mark.real_time
async def test_successors_are_found_by_name(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (_, peers):
        assert await peers.find("team-a", "b", LIMIT) == (PodRef("team-a", "b", "u"), "n2")
        assert await peers.find("team-a", "c", LIMIT) == (PodRef("team-a", "c", "u"), "n1")
        with pytest.raises(RefusedError, match="on no node yet"):
            await peers.find("team-a", "d", LIMIT)
        with pytest.raises(NotFoundError):
            await peers.find("team-a", "none", LIMIT)


@pytest.mark.real_time
async def test_nothing_that_the_environment_names_is_between_agents(
    rig, tls, tmp_path, monkeypatch
):
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        await peers.expect(two.to, LIMIT)


@pytest.mark.real_time
async def test_an_agent_that_is_away_is_tried_again_later(rig, tls, tmp_path):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        await two.server.stop(0)
        with pytest.raises((RetryableError, DeadlineError)):
            await peers.expect(two.to, 2.0)
        two.address = ""
        with pytest.raises(RetryableError, match="no address"):
            await peers.expect(two.to, 2.0)


def test_the_rate_is_a_limit():
    waits = []
    now = [0.0]

    def sleep(seconds):
        waits.append(seconds)
        now[0] += seconds

    pacer = Pacer(1000.0, now=lambda: now[0], sleep=sleep)
    for _ in range(10):
        pacer.wait(1000)
    assert 8.0 < sum(waits) < 10.1
    threading.Thread(target=Pacer(0.0).wait, args=(1 << 40,)).start()


@pytest.mark.real_time
@pytest.mark.parametrize("call", ["deliver", "let_continue"])
async def test_a_state_that_takes_longer_to_be_read_than_a_call_may_take(
    rig, tls, tmp_path, monkeypatch, call
):
    """As one of 40 GB does which came to an agent before this one."""

    monkeypatch.setattr(twonodes, "Rates", lambda: Rates(limit_s=0.2))
    monkeypatch.setattr(peers_module, "_PAUSES", steadily(0.01))
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        two.seen_there.verified.clear()
        read, go_on = [], threading.Event()

        def slowly(*whole):
            read.append(artifact)
            assert go_on.wait(LIMIT)
            verify_raw(*whole)

        monkeypatch.setattr("kybernate.checkpoint.delivery.inbox.verify_raw", slowly)
        asyncio.get_running_loop().call_later(1.0, go_on.set)
        if call == "deliver":
            await peers.deliver(two.to, artifact, LIMIT)
        else:
            let_continue = partial(peers.let_continue, two.to, artifact, LIMIT)
            await retry(let_continue, quietly)
        assert read == [artifact], "what was read once was read again"


@pytest.mark.real_time
async def test_a_state_is_not_waited_for_beyond_the_callers_own_deadline(
    rig, tls, tmp_path, monkeypatch
):
    async with two_nodes(rig, tls, tmp_path) as (two, peers):
        artifact = await delivered(two, peers)
        two.seen_there.verified.clear()
        go_on = threading.Event()
        monkeypatch.setattr(
            "kybernate.checkpoint.delivery.inbox.verify_raw", lambda *_: go_on.wait()
        )
        try:
            with pytest.raises(DeadlineError):
                await peers.deliver(two.to, artifact, 0.3)
        finally:
            go_on.set()
