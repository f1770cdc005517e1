"""A box's front over real sockets: a fake box, whose models are one small server, behind it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from kybernate.api.models import read
from kybernate.local.box import GpuRow, ModelRow
from kybernate.local.front.serving import Serving
from kybernate.types import NodeName, PodUid, SeatState
from proxy.actions import SeatInfo

NODE = NodeName("box")


class Box:
    """Implements `Box`: one model is active, whichever was last asked for. `started`: its wakes, in
    order; `acts`: what was done by hand. `stuck`: models that never become active. `slow`: seconds
    until demand is heard."""

    def __init__(self, names):
        self.rows = {name: ModelRow(name, SeatState.WAITING, ("GPU-0",)) for name in names}
        self.started: list[str] = []
        self.acts: list[tuple[str, str]] = []
        self.stuck: set[str] = set()
        self.slow = 0.0
        self.address = ""
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._desk = None
        self._generation = 0
        self._draining: dict[str, str] = {}

    def models(self):
        return tuple(self.rows.values())

    def gpus(self):
        return (GpuRow("GPU-0", 0, "toy", 1 << 30),)

    def count(self):
        self.counted = True

    def join(self, desk):
        self._desk = desk
        desk.links[NODE] = self
        for name in self.rows:
            self._seat(name, SeatState.WAITING)

    def report(self, uid, *, urgent):
        asyncio.get_running_loop().call_later(self.slow, self._look, uid)

    def drained(self, uid, generation):
        self._desk.apply(self._desk.admission.revoke(uid, generation, self._desk.now))
        self._seat(uid, SeatState.PARKED)
        waiting = self._draining.pop(uid, None)
        if waiting is not None:
            self._activate(waiting)

    def _look(self, uid):
        demand = self._desk.admission.demand(uid, self._desk.now)
        if demand is None or not demand.waiting or uid in self.stuck:
            return
        active = [name for name, row in self.rows.items() if row.state is SeatState.ACTIVE]
        if uid in active or uid in self._draining.values():
            return
        if active:
            self._draining[active[0]] = uid
            self._desk.apply(
                self._desk.admission.drain(
                    NODE, PodUid(active[0]), self._generation, self._desk.now
                )
            )
        else:
            self._activate(uid)

    def _activate(self, name):
        self.started.append(name)
        self._generation += 1
        self._seat(name, SeatState.ACTIVE)
        self._desk.apply(self._desk.admission.grant(PodUid(name), self._generation, self._desk.now))

    def _seat(self, name, state):
        tier = "ram" if state is SeatState.PARKED else ""
        self.rows[name] = replace(self.rows[name], state=state, tier=tier)
        info = SeatInfo(PodUid(name), NODE, name, "G0", name, name, state, self.address, tier=tier)
        self._desk.seat(info)

    async def park(self, model, deadline):
        self.acts.append(("park", model))
        self._seat(model, SeatState.PARKED)
        phases = {"checkpoint": 0.5, "all": 0.75}
        self.rows[model] = replace(self.rows[model], phases=phases)

    async def wake(self, model, deadline):
        self.acts.append(("wake", model))

    async def unload(self, model, deadline):
        self.acts.append(("unload", model))

    def pin(self, model, *, pinned):
        self.acts.append(("pin" if pinned else "unpin", model))

    async def logs(self, model, *, follow):
        yield f"{model} began\n".encode()
        while follow:
            yield await self.lines.get()


class Server:
    """The models' server: says back what it got, streams, and takes websockets."""

    def __init__(self):
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answers: dict[str, Any] = {}
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self._runner = None

    async def start(self):
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._any)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self):
        await self._runner.cleanup()

    async def _any(self, request):
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._socket(request)
        body = await request.read()
        self.requests.append((request.method, request.path_qs, dict(request.headers), body))
        self.asked.set()
        await self.gate.wait()
        said = self.answers.get(request.path)
        if isinstance(said, list):
            return await self._stream(request, said)
        if isinstance(said, tuple):
            return web.json_response(said[1], status=said[0])
        return web.json_response(said if said is not None else {"path": request.path_qs})

    async def _stream(self, request, events):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in [*(json.dumps(one) for one in events), "[DONE]"]:
            text = f"data: {event}\n\n".encode()
            # In two pieces, as a network may cut it anywhere.
            await response.write(text[: len(text) // 2])
            await response.write(text[len(text) // 2 :])
        return response

    async def _socket(self, request):
        self.requests.append((request.method, request.path_qs, dict(request.headers), b""))
        socket = web.WebSocketResponse(protocols=["realtime"])
        await socket.prepare(request)
        async for message in socket:
            if message.data == "bye":
                await socket.close(code=4001, message=b"told to")
            elif message.type is aiohttp.WSMsgType.BINARY:
                await socket.send_bytes(message.data)
            else:
                await socket.send_str(f"you said {message.data}")
        return socket

    async def until_asked(self):
        """Until a request came."""
        await self.asked.wait()

    @property
    def last(self):
        """Method, path and JSON of the last request."""
        method, path, _, body = self.requests[-1]
        return method, path, json.loads(body) if body else None


class Stage:
    """Server, box and front; used as `async with`."""

    def __init__(self, text, environ=None, lacks=()):
        self.file = read(text, environ or {}).file
        self.server = Server()
        self.box = Box([name for name in self.file.models if name not in lacks])
        self.client: aiohttp.ClientSession
        self.serving: Serving

    async def __aenter__(self):
        self.box.address = await self.server.start()
        file = self.file.model_copy(update={"listen": "127.0.0.1:0"})
        self.serving = Serving(self.box, file)
        await self.serving.start()
        self.client = aiohttp.ClientSession(f"http://127.0.0.1:{self.serving.port}")
        return self

    async def __aexit__(self, *_):
        await self.client.close()
        await self.serving.stop()
        await self.server.stop()

    async def get(self, path, **more):
        """Status and text of GET."""
        url = URL(f"http://127.0.0.1:{self.serving.port}{path}", encoded=True)
        async with self.client.get(url, allow_redirects=False, **more) as answer:
            return answer.status, await answer.text()

    async def post(self, path, **more):
        """Status and JSON of POST."""
        async with self.client.post(path, **more) as answer:
            return answer.status, await answer.json()
