"""A proxy believes that a pod's place is taken once a real registry has its successor's claim."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.registry import wire
from kybernate.core.tiers.tiers import Artifact
from kybernate.errors import KybernateError
from kybernate.gen import agent_pb2
from kybernate.types import PodUid, Tier
from proxy.aside.records import Records
from tests.hostile.test_proxy import PATIENCE, Process, ask, asking
from tests.unit.proxy.stage import FakeAgent
from tests.unit.registry.replica import name_of, recording

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import aiohttp

    from tests.kit.servers.registryserver import Server

pytestmark = [pytest.mark.integration, pytest.mark.real_time]

CHAT, BODY = "/v1/chat/completions", b'{"model": "m"}'


def succeeded(server: Server) -> None:
    """Pod b of n2 continues from what pod a of n1 has saved."""
    agent, other = server.client("agent-n1"), server.client("agent-n2")
    server.client().settle("new")
    held = agent.lease(("ns", "a"), wire.LeaseWish(seconds=30))
    said = recording("n1", held.token, pod_uid="a")
    artifact = f"ns/{name_of(1)}"
    agent.record(artifact, wire.Recording.model_validate_json(json.dumps(said)))
    agent.give_back(held)
    agent.stopped("ns", "a", wire.Stop(proof=wire.Proof.AGENT, why="ended"))
    other.claim("ns", "a", wire.Claim(artifact=artifact, successor="b", node="n2"))


@asynccontextmanager
async def site(tls: Path, server: Server) -> AsyncIterator[tuple[Process, FakeAgent]]:
    """A proxy that knows a's seat, which is granted; and what speaks for b's node."""
    other = FakeAgent(tls, "n2")
    await other.start()
    more = {"beside": f"n2=127.0.0.1:{other.port}", **asking(server)}
    try:
        async with asyncio.timeout(PATIENCE), Process(tls, **more) as process:
            await other.until(lambda: other.hellos == 1)
            await process.seat(state="active", namespace="ns")
            # With each stream, as an agent does: one that is made again has no leases.
            lease = agent_pb2.Lease(uid="a", generation=1)
            process.agent.opening.append(agent_pb2.AgentOrder(grant=lease))
            process.agent.order(grant=lease)
            yield process, other
    finally:
        await other.stop()


async def text(client: aiohttp.ClientSession, path: str) -> str:
    async with client.get(path) as answer:
        return await answer.text()


async def shown(
    client: aiohttp.ClientSession, so: Callable[[str], bool], path: str = "/v1/models"
) -> None:
    """Wait until the proxy shows it so."""
    while not so(await text(client, path)):  # noqa: ASYNC110 - the proxy tells nobody
        await asyncio.sleep(0.01)


FAILED = 'kyb_proxy_registry_failures_total{what="pod"}'


async def test_a_successor_with_a_claim_takes_its_predecessors_place(
    start: Callable[..., Server], tls: Path, tmp_path: Path
) -> None:
    server = start(f"sqlite:///{tmp_path}/registry.db")
    await asyncio.to_thread(succeeded, server)
    async with site(tls, server) as (process, other), process.client() as client:
        status, said, headers = await ask(client, BODY, CHAT)
        assert status == 200, (said, process.agent.hellos, other.hellos)
        assert headers["X-Kyb-Seat"] == "n1/G0-seat-a"
        parked = {"uid": "b", "namespace": "ns", "predecessor": "a"}
        other.name_seat(process.model.address, **parked)
        await shown(client, lambda seats: "G0-seat-b" in seats)
        asked = asyncio.create_task(ask(client, BODY, CHAT))
        await other.until(lambda: other.demand("b") == (0, 1))
        await shown(client, lambda seats: "G0-seat-a" not in seats)
        other.lease("grant", uid="b")
        assert (await asked)[2]["X-Kyb-Seat"] == "n2/G0-seat-b"


async def test_where_an_artifact_lies_is_what_the_registry_knows(
    start: Callable[..., Server], tls: Path, tmp_path: Path
) -> None:
    server = start(f"sqlite:///{tmp_path}/registry.db")
    await asyncio.to_thread(succeeded, server)
    failed: list[str] = []
    records = Records(lambda: server.client("proxy"), failed.append)
    assert await records.copies("ns", PodUid("a")) == (Artifact(Tier.NVME, 1000),)
    assert await records.copies("ns", PodUid("b")) == ()
    assert await records.successor("ns", PodUid("a")) == "b"
    await asyncio.to_thread(server.kill)
    with pytest.raises(KybernateError):
        await records.copies("ns", PodUid("a"))
    assert failed == ["artifact"]
    server.start()
    assert await records.copies("ns", PodUid("a"))


async def test_while_the_registry_is_away_neither_is_asked_but_the_one_that_may_be_right(
    start: Callable[..., Server], tls: Path, tmp_path: Path
) -> None:
    """What is in flight at the old one goes on; once the registry is back it has its place again,
    as that one's agent lied."""
    server = start(f"sqlite:///{tmp_path}/registry.db")
    await asyncio.to_thread(server.kill)
    async with site(tls, server) as (process, other), process.client() as client:
        process.model.gate.clear()
        first = asyncio.create_task(ask(client, BODY, CHAT))
        await process.model.arrived.wait()
        other.name_seat(process.model.address, uid="b", namespace="ns", predecessor="a")
        await shown(client, lambda metrics: FAILED in metrics, "/metrics")
        second = asyncio.create_task(ask(client, BODY, CHAT))
        await other.until(lambda: other.demand("b") == (0, 1))
        process.model.gate.set()
        assert (await first)[2]["X-Kyb-Seat"] == "n1/G0-seat-a"
        assert not second.done()
        await asyncio.to_thread(server.start)
        assert (await second)[2]["X-Kyb-Seat"] == "n1/G0-seat-a"
