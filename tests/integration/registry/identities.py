"""Nodes' own keys and certificates in tests: as the agents of a real API server get them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kybernate import keys
from kybernate.adapters.k8s import Api
from kybernate.errors import ConflictError
from kybernate.gen import peers_pb2
from kybernate.ports import Handover
from kybernate.runtime.identity import Identity
from kybernate.types import NodeName, PodRef, PodUid
from nodeagent.api.doorkeeper import Doorkeeper, Rates
from nodeagent.api.peers import GrpcPeers
from nodeagent.api.servers import serve_network
from nodeagent.migration.protocol import Pacer
from tests.cluster.parts import accounts, pki
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from nodeagent.api.guests import Guests
    from tests.cluster.cluster import Cluster


@pytest.fixture(scope="module")
def tokens(
    control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Api]:
    """The API as the agent of a node has it: with the token of its pod, bound to that node."""
    admin, account = control_plane.api(), f"/api/v1/namespaces/{keys.NAMESPACE}/serviceaccounts"
    pods = f"/api/v1/namespaces/{keys.NAMESPACE}/pods"

    def api(node: str) -> Api:
        with contextlib.suppress(ConflictError):
            admin.post("/api/v1/nodes", {"metadata": {"name": node}})
        spec = {"containers": [{"name": "c", "image": "x"}], "nodeName": node}
        spec |= {"serviceAccountName": keys.AGENT_ACCOUNT}
        name = f"agent-{node}-{time.monotonic_ns()}"
        made = admin.post(pods, {"metadata": {"name": name}, "spec": spec})
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": made["metadata"]["uid"]}
        wish = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
        issued = admin.post(f"{account}/{keys.AGENT_ACCOUNT}/token", wish)
        path = tmp_path_factory.mktemp("token") / node
        authority = control_plane.layout.pki / "ca.crt"
        user = {"token": issued["status"]["token"]}
        accounts.write_secret(path, pki.kubeconfig(control_plane.server, authority, user))
        return Api(path, f"agent-{node}")

    return api


@pytest.fixture(scope="module")
def services(tls: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a node's agent gets mounted: authorities, and no key."""
    folder = tmp_path_factory.mktemp("mounted")
    for name in ("ca.crt", "agents-ca.crt"):
        (folder / name).write_bytes((tls / name).read_bytes())
    return folder


@contextlib.contextmanager
def certified(node: str, services: Path, folder: Path, api: Api) -> Iterator[Identity]:
    """A node's identity, once it has its own certificate, and while it goes on renewing it."""
    identity = Identity(node, services, folder, shared=False)

    async def given() -> Api:
        return api

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    loop = asyncio.new_event_loop()
    task = loop.create_task(identity.run(given))
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        until((folder / "agent.pem").exists, f"node {node} got no certificate")
        yield identity
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)


class Served:
    """An agent as a proxy and other agents see it; `proxies`: streams that are open."""

    def __init__(self) -> None:
        self.proxies = 0

    async def Serve(self, requests: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
        self.proxies += 1
        try:
            async for _ in requests:
                pass
        finally:
            self.proxies -= 1

    async def Expect(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return peers_pb2.Expected()


@contextlib.asynccontextmanager
async def door(identity: Identity, guests: Guests) -> AsyncIterator[tuple[int, Served]]:
    """The door of an agent that shows this identity: its port, and who is there."""
    keeper = Doorkeeper(Rates(1e6, 1e6), time.monotonic, unix=False, guests=guests)
    served = cast("Any", Served())
    server, port = await serve_network(served, keeper, "127.0.0.1:0", identity, served)
    try:
        yield port, served
    finally:
        await server.stop(0)


def asks(identity: Identity, node: str, port: int, revoked: Any = lambda _node: "") -> GrpcPeers:
    """The peers of this identity, of which `node` is at this port."""

    async def api() -> Any:
        return SimpleNamespace(
            get=lambda path, timeout: {"status": {"agent": {"address": f"127.0.0.1:{port}"}}}
        )

    return GrpcPeers(identity, cast("Any", None), api, Pacer(0.0), revoked)


def handover(node: str) -> Handover:
    pod = PodRef("ns", "a", PodUid("u1"))
    return Handover(pod, PodRef("ns", "b", PodUid("u2")), NodeName(node))
