"""A stage for the proxy: an agent that obeys the test, a small model server, and the proxy."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aiohttp
import grpc
from aiohttp import web

from kybernate.gen import agent_pb2
from kybernate.lib import rpc
from kybernate.settings.proxy import ProxySettings
from proxy.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEADLINE = 10.0
"""Seconds that anything in these tests may take."""


class FakeAgent:
    """Speaks for a node over mutual TLS; the test sends its orders and reads what came."""

    def __init__(self, tls, node="n1"):
        self.tls, self.node = tls, node
        self.port = 0
        self.hellos = 0
        self.reports: list[agent_pb2.ProxyReport] = []
        self.opening: list[agent_pb2.AgentOrder] = []
        self._orders: asyncio.Queue | None = None
        self._changed = asyncio.Condition()
        self._server = None

    async def start(self):
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        rpc.serve(self._server, agent_pb2.DESCRIPTOR, "NodeAgent", self)
        credentials = grpc.ssl_server_credentials(
            [
                (
                    (self.tls / f"agent-{self.node}.key").read_bytes(),
                    (self.tls / f"agent-{self.node}.crt").read_bytes(),
                )
            ],
            root_certificates=(self.tls / "ca.crt").read_bytes(),
            require_client_auth=True,
        )
        self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", credentials)
        await self._server.start()

    async def stop(self):
        await self._server.stop(None)

    async def Serve(self, request_iterator, context):  # noqa: N802 - gRPC's name
        orders = self._orders = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            for order in self.opening:
                yield order
            while (order := await orders.get()) is not None:
                yield order
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _read(self, request_iterator):
        async for report in request_iterator:
            async with self._changed:
                if report.WhichOneof("kind") == "hello":
                    self.hellos += 1
                self.reports.append(report)
                self._changed.notify_all()
        self.hang_up()

    async def until(self, condition: Callable[[], bool]):
        async with asyncio.timeout(DEADLINE), self._changed:
            await self._changed.wait_for(condition)

    def order(self, **kind):
        self._orders.put_nowait(agent_pb2.AgentOrder(**kind))

    def hang_up(self):
        self._orders.put_nowait(None)

    def demand(self, uid="a"):
        """The last demand reported for the seat, as (in flight, waiting)."""
        found = [
            (r.demand.in_flight, r.demand.waiting)
            for r in self.reports
            if r.WhichOneof("kind") == "demand" and r.demand.uid == uid
        ]
        return found[-1] if found else None

    def drained(self):
        return [
            (r.drained.uid, r.drained.generation)
            for r in self.reports
            if r.WhichOneof("kind") == "drained"
        ]

    def name_seat(
        self, address, *, uid="a", model="m", state="parked", namespace="default", **more
    ):
        seat = agent_pb2.Seat(
            uid=uid,
            name=f"G0-seat-{uid}",
            group="G0",
            namespace=namespace,
            pod=f"pod-{uid}",
            model=model,
            state=state,
            address=address,
            **more,
        )
        self.order(seat=seat)
        return seat

    def lease(self, kind, generation=1, uid="a"):
        self.order(**{kind: agent_pb2.Lease(uid=uid, generation=generation)})


class Model:
    """A model server whose answers wait for the test where it says so."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.gate.set()
        self.requests: list[tuple[str, Mapping[str, str], bytes]] = []
        self.left = asyncio.Event()
        self.arrived = asyncio.Event()
        self.connections: set[object] = set()
        self.address = ""
        self._runner = None

    async def start(self):
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/{rest:.*}", self._other)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        port = int(self.address.rpartition(":")[2] or 0)
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self):
        if self._runner:
            await self._runner.cleanup()

    async def until_no_connection(self):
        async with asyncio.timeout(DEADLINE):
            while self._runner.server.connections:  # noqa: ASYNC110 - aiohttp tells nobody
                await asyncio.sleep(0.005)

    async def _chat(self, request):
        body = await request.json()
        self.requests.append((request.path_qs, request.headers, await request.read()))
        self.arrived.set()
        try:
            if body.get("stream"):
                return await self._stream(request)
            await self.gate.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return web.json_response({"counter": len(self.requests)}, headers={"X-Model": "yes"})

    async def _metrics(self, _):
        names = ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc")
        return web.Response(text="".join(f"vllm:{name} 0\n" for name in names))

    async def _stream(self, request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: one\n\n")
        await self.gate.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _other(self, request):
        self.requests.append((request.path_qs, request.headers, await request.read()))
        return web.Response(body=b"x" * 200_000)


class Stage:
    """Agent, model and proxy, connected; used as `async with`."""

    def __init__(self, tls, **settings):
        self.agent = FakeAgent(tls)
        self.model = Model()
        self.client: aiohttp.ClientSession
        self.service: Service
        self._tls = tls
        self._settings = settings

    async def __aenter__(self):
        await self.agent.start()
        await self.model.start()
        settings = ProxySettings(
            listen="127.0.0.1:0",
            tls_dir=self._tls,
            agents={"n1": f"127.0.0.1:{self.agent.port}"},
            **self._settings,
        )
        await self._serve(settings)
        return self

    async def _serve(self, settings):
        hellos = self.agent.hellos
        self.service = Service(settings)
        await self.service.start()
        self.client = aiohttp.ClientSession(f"http://127.0.0.1:{self.service.port}")
        await self.agent.until(lambda: self.agent.hellos == hellos + 1)

    async def restart(self, settings):
        """Have another proxy in its place."""
        await self.client.close()
        await self.service.stop()
        await self._serve(settings)

    async def __aexit__(self, *_):
        await self.client.close()
        await self.service.stop()
        await self.agent.stop()
        await self.model.stop()

    async def seat(self, *, granted=True, **seat):
        """Let the agent name the seat, and grant it."""
        self.agent.name_seat(self.model.address, **seat)
        if granted:
            self.agent.lease("grant")
        await self.seats(lambda seats: seats and seats[0]["granted"] is granted)

    async def seats(self, condition):
        """Wait until the proxy shows its seats so."""
        async with asyncio.timeout(DEADLINE):
            while True:
                async with self.client.get("/v1/models") as answer:
                    models = (await answer.json())["data"]
                seats = [seat for model in models for seat in model["kyb"]["seats"]]
                if condition(seats):
                    return seats
                await asyncio.sleep(0.005)

    def chat(self, *, model="m", headers=None, **more):
        body = {"model": model, **more}
        return self.client.post("/v1/chat/completions", json=body, headers=headers)

    def asked(self, **more):
        """A request on its way, as a task whose result is (status, JSON, headers)."""

        async def ask():
            async with self.chat(**more) as answer:
                return answer.status, await answer.json(), answer.headers

        return asyncio.create_task(ask())
