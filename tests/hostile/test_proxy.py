"""Hostile clients and tenants against the proxy: a real process on loopback, as its image runs it.

The agent and the model server behind it are the test's own; every client has an address of 127/8.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import os
import re
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from kybernate.adapters.pki import Folder, Validity
from kybernate.cli.clients import command
from kybernate.core.clients import digest_of
from kybernate.gen import agent_pb2
from tests.kit.servers.registryserver import Server
from tests.unit.proxy.stage import FakeAgent, Model

pytestmark = pytest.mark.hostile

MIB = 2**20
LARGE = 31 * MIB
MEMORY_LIMIT = 1024 * MIB
"""Of the proxy's container, in config/proxy/deployment.yaml."""
PATIENCE = 100.0
"""Seconds after which a test hangs: a busy machine takes many, and none decides what is right."""
SLOW = {"body_limit_s": 600, "wait_limit_s": 600}
"""Settings with which a proxy is as patient."""


def asking(registry):
    """Settings of a proxy that asks this registry. The test's agents take no pings: they would end
    a connection on which nothing else is said."""
    return {"registry_url": registry.url, "agent_ping_s": PATIENCE}


class Process:
    """`kyb-proxy`, an agent that obeys the test and a model server; used as `async with`.
    `beside`: further agents, as in `agents`."""

    def __init__(self, tls, beside="", **settings):
        self.agent, self.model = FakeAgent(tls), Model()
        self.url = ""
        self._tls, self._settings, self._beside = tls, settings, beside
        self._process = None

    async def __aenter__(self):
        await self.agent.start()
        await self.model.start()
        settings = {
            "listen": "127.0.0.1:0",
            "tls_dir": str(self._tls),
            "agents": f"n1=127.0.0.1:{self.agent.port},{self._beside}",
            **self._settings,
        }
        env = {f"KYB_PROXY_{name.upper()}": str(value) for name, value in settings.items()}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy"),
            env={**os.environ, **env},
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE):
            while not (found := re.search(rb"listening on .*:(\d+)", await self._line())):
                pass
        self._reader = asyncio.create_task(self._drain())
        self.url = f"http://127.0.0.1:{int(found[1])}"
        await self.agent.until(lambda: self.agent.hellos == 1)
        return self

    async def __aexit__(self, *_):
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()
        await self._reader
        await self.agent.stop()
        await self.model.stop()

    async def _line(self):
        line = await self._process.stderr.readline()
        assert line, "the proxy ended"
        return line

    async def _drain(self):
        while await self._process.stderr.readline():
            pass

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    def peak(self):
        """The most memory that the process ever had (bytes)."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def client(self, number=1):
        """A client with an address of its own."""
        connector = aiohttp.TCPConnector(local_addr=(f"127.0.0.{number}", 0), limit=0)
        return aiohttp.ClientSession(self.url, connector=connector)

    async def held(self):
        """Bytes of bodies that the proxy says it has, and its requests that wait."""
        async with self.client() as client, client.get("/metrics") as answer:
            text = await answer.text()
        waiting = re.findall(r"^kyb_proxy_waiting_requests\{.*\} (\S+)$", text, re.MULTILINE)
        (size,) = re.findall(r"^kyb_proxy_body_bytes (\S+)$", text, re.MULTILINE)
        return int(float(size)), sum(int(float(number)) for number in waiting)

    async def until(self, condition):
        """Wait until (bytes held, requests waiting) are so."""
        async with asyncio.timeout(PATIENCE):
            while not condition(*(now := await self.held())):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return now

    async def seat(self, **seat):
        """A seat, parked unless said otherwise."""
        told = self.agent.name_seat(self.model.address, **seat)
        # Told again with each stream, as an agent does: where an attack has this process busy for
        # seconds, no ping of the proxy's is answered, and it connects again.
        self.agent.opening.append(agent_pb2.AgentOrder(seat=told))
        async with asyncio.timeout(PATIENCE), self.client() as client:
            while True:
                async with client.get("/v1/models") as answer:
                    if told.name in await answer.text():
                        return
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    Folder(folder).init(["n1", "n2"], Validity(), datetime.now(UTC))
    return folder


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def against(runner, tls):
    """Run an attack: an async function that takes the process."""

    def run(attack, **settings):
        async def act():
            async with asyncio.timeout(280), Process(tls, **settings) as process:
                await attack(process)

        runner.run(act())

    return run


def body(size, model="m"):
    head = b'{"model":"%s","x":"' % model.encode()
    return head + b"y" * (size - len(head) - 2) + b'"}'


async def ask(client, data, path="/v1/completions", **headers):
    async with client.post(path, data=io.BytesIO(data), headers=headers) as answer:
        return answer.status, await answer.read(), answer.headers


async def closed(writer):
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def code(answer):
    return json.loads(answer[1])["error"]["code"]


def test_many_large_requests_that_wait_do_not_end_the_proxy(against):
    """Seen: 27 of them made the only replica be killed for its memory."""

    async def attack(proxy):
        await proxy.seat()
        data = body(LARGE)
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(proxy.client(n)) for n in range(2, 29)]
            asked = [asyncio.create_task(ask(client, data)) for client in clients]
            size, _ = await proxy.until(lambda _, waiting: waiting == 7)
            assert size == 7 * LARGE
            async with asyncio.timeout(PATIENCE):
                while sum(one.done() for one in asked) < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            refused = [one.result() for one in asked if one.done()]
            assert {(one[0], code(one), one[2]["Retry-After"]) for one in refused} == {
                (503, "bodies_full", "5")
            }
            proxy.agent.lease("grant")
            served = await asyncio.gather(*asked)
            assert sorted(one[0] for one in served) == [200] * 7 + [503] * 20
        assert {len(sent) for _, _, sent in proxy.model.requests} == {LARGE}
        await proxy.until(lambda size, _: size == 0)
        assert proxy.peak() < 0.8 * MEMORY_LIMIT

    against(attack, **SLOW)


def test_large_bodies_of_many_clients_do_not_keep_out_small_ones(against):
    async def attack(proxy):
        await proxy.seat()
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(proxy.client(n)) for n in range(2, 14)]
            greedy, others = clients[:8], clients[8:]
            asked = [asyncio.create_task(ask(one, body(8 * MIB))) for one in greedy]
            await proxy.until(lambda size, waiting: (size, waiting) == (56 * MIB, 7))
            refused, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert [code(one.result()) for one in refused] == ["bodies_full"]
            small = [asyncio.create_task(ask(one, body(MIB // 4))) for one in others]
            await proxy.until(lambda size, waiting: (size, waiting) == (57 * MIB, 11))
            proxy.agent.lease("grant")
            assert [(await one)[0] for one in small] == [200] * 4

    against(attack, max_held_bytes=64 * MIB, max_body_bytes=8 * MIB)


def test_one_client_can_not_take_the_room_of_all(against):
    async def attack(proxy):
        await proxy.seat()
        async with proxy.client(2) as greedy, proxy.client(3) as other:
            asked = [asyncio.create_task(ask(greedy, body(9 * MIB))) for _ in range(5)]
            await proxy.until(lambda size, _: size == 27 * MIB)
            async with asyncio.timeout(PATIENCE):
                while sum(one.done() for one in asked) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            refused = [one.result() for one in asked if one.done()]
            assert [(one[0], code(one)) for one in refused] == [(429, "client_bodies_full")] * 2
            waits = asyncio.create_task(ask(other, body(9 * MIB)))
            await proxy.until(lambda _, waiting: waiting == 4)
            for one in asked:
                one.cancel()
            await proxy.until(lambda size, _: size == 9 * MIB)
            proxy.agent.lease("grant")
            assert (await waits)[0] == 200

    against(attack, max_held_bytes=60 * MIB, max_held_bytes_per_client=32 * MIB)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_body_that_is_small_on_the_wire_or_many_objects_in_python_stays_small(against, encoding):
    async def attack(proxy):
        await proxy.seat()
        proxy.agent.lease("grant")
        data = b'{"model":"default/m","x":[' + b"[]," * (LARGE // 3) + b"[]]}"
        sent = gzip.compress(data, 1) if encoding == "gzip" else data
        before = proxy.peak()
        async with proxy.client() as client:
            answers = [await ask(client, sent, **{"Content-Encoding": encoding}) for _ in range(2)]
        assert [status for status, *_ in answers] == [200, 200]
        assert proxy.model.requests[0][2] == data.replace(b"default/m", b"m")
        assert proxy.peak() - before < 200 * MIB

    against(attack)


def test_what_a_seat_that_answers_at_once_leaves_unread_counts_on(against):
    async def attack(proxy):
        over = asyncio.Event()

        async def early(reader, writer):
            with contextlib.suppress(ConnectionError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                await over.wait()
            await closed(writer)

        server = await asyncio.start_server(early, "127.0.0.1", 0, limit=2**16)
        host, port = server.sockets[0].getsockname()
        proxy.model.address = f"{host}:{port}"
        await proxy.seat()
        proxy.agent.lease("grant")
        async with proxy.client() as client:
            asked = [asyncio.create_task(ask(client, body(LARGE))) for _ in range(2)]
            await proxy.until(lambda *held: held == (2 * LARGE, 0))
            await asyncio.sleep(0.3)
            assert await proxy.held() == (2 * LARGE, 0)
            status, answer, _ = await ask(client, body(LARGE))
            assert (status, json.loads(answer)["error"]["code"]) == (503, "bodies_full")
            for one in asked:
                one.cancel()
        await proxy.until(lambda size, _: size == 0)
        over.set()
        server.close()
        await asyncio.sleep(0.1)

    against(attack, max_held_bytes=80 * MIB, max_held_bytes_per_client=80 * MIB)


@pytest.mark.parametrize("dribble", [b"", b"POST /v1/completions HTTP/1.1\r\nX-A: "])
def test_a_client_that_sends_its_headers_slowly_is_hung_up_on(against, dribble):
    async def attack(proxy):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(dribble)

        async def slowly():
            with contextlib.suppress(ConnectionError):
                while dribble:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.1)

        slow = asyncio.create_task(slowly())
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        await closed(writer)

    against(attack, idle_client_s=1)


def test_a_body_that_does_not_come_costs_time_but_no_room(against):
    async def attack(proxy):
        await proxy.seat()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % LARGE
        slow = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(20)]
        for _, writer in slow:
            writer.write(head + b"{")
        await proxy.until(lambda size, _: size == 20)
        for reader, writer in slow:
            async with asyncio.timeout(PATIENCE):
                answer = await reader.readuntil(b"}}")
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"body_too_slow" in answer
            await closed(writer)
        await proxy.until(lambda size, _: size == 0)

    against(attack, body_limit_s=2)


def test_a_pod_that_calls_itself_like_anothers_full_name_gets_no_request(against):
    """Seen: the thief got the victim's prompts while the victim was away."""

    async def attack(proxy):
        await proxy.seat(uid="thief", namespace="lab", model="victim/llama")
        proxy.agent.lease("grant", uid="thief")
        await proxy.seat(uid="namesake", namespace="lab", model="llama")
        proxy.agent.lease("grant", uid="namesake")
        await proxy.seat(uid="victim", namespace="victim", model="llama")
        proxy.agent.order(gone={"uid": "victim"})
        async with proxy.client() as client:
            async with asyncio.timeout(PATIENCE):
                while True:
                    async with client.get("/v1/models") as listed:
                        if '"victim/llama","object"' not in await listed.text():
                            break
            for name, status in (("victim/llama", 404), ("llama", 409), ("victim/x", 404)):
                answer = await ask(client, body(100, name))
                assert answer[0] == status
                assert b"lab" not in answer[1]
        assert proxy.model.requests == []

    against(attack)


def test_a_client_that_causes_wake_after_wake_is_slowed_and_no_other_is(against):
    async def attack(proxy):
        for uid in "abc":
            await proxy.seat(uid=uid, model=f"m{uid}")
        async with proxy.client(2) as greedy, proxy.client(3) as other:
            for uid in "ab":
                await asked_and_left(proxy, greedy, f"m{uid}")
            refused = await ask(greedy, body(100, "mc"))
            assert (refused[0], code(refused)) == (429, "wake_quota")
            assert 25 <= int(refused[2]["Retry-After"]) <= 30
            await asked_and_left(proxy, other, "mc")
            refused = await ask(other, body(100, "ma"))
            assert b"namespace 'default'" in refused[1]

    against(attack, wakes_per_minute_per_client=2, wakes_per_minute_per_namespace=3)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/load_lora_adapter",
        "/sleep",
        "/v1/chat/completions/../../load_lora_adapter",
        "/v1/chat/completions/%2e%2e/%2e%2e/sleep",
        "//v1/completions",
        "/v1/completions/",
        "/v1%2Fcompletions",
        "http://elsewhere/sleep",
    ],
)
def test_a_seats_other_paths_are_not_its_clients(against, path):
    async def attack(proxy):
        await proxy.seat()
        proxy.agent.lease("grant")
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        data = body(100)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        async with asyncio.timeout(PATIENCE):
            line = await reader.readline()
        assert int(line.split()[1]) in (400, 404)
        assert proxy.model.requests == []
        await closed(writer)

    against(attack)


async def asked_and_left(proxy, client, model):
    asked = asyncio.create_task(ask(client, body(100, model)))
    await proxy.until(lambda _, waiting: waiting == 1)
    asked.cancel()
    await proxy.until(lambda _, waiting: waiting == 0)


@pytest.fixture
def records(tmp_path):
    """Two clients' keys, and the folder with what is kept of them."""
    folder = tmp_path / "clients"
    return folder, {name: let_in(folder, name, "--of", name) for name in ("shop", "lab")}


def let_in(folder, *arguments):
    """The key that `kybernate clients add` prints."""
    done = CliRunner().invoke(command, ["add", *arguments, "--dir", str(folder)])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


@pytest.fixture
def keyed(against, records):
    """Run an attack on a proxy that wants keys, with both clients' keys."""

    def run(attack, **settings):
        folder, keys = records

        async def act(proxy):
            await attack(proxy, keys)

        against(act, auth="keys", clients_dir=folder, **settings)

    return run


@pytest.mark.parametrize(
    "header",
    [
        pytest.param({}, id="none"),
        pytest.param({"Authorization": "Bearer "}, id="empty"),
        pytest.param({"Authorization": "Bearer kyb-guessed"}, id="guessed"),
        pytest.param({"Authorization": "Basic {shop}"}, id="another scheme"),
        pytest.param({"X-Api-Key": "{shop}"}, id="another header"),
        pytest.param({"Authorization": "Bearer {digest}"}, id="what the Secret holds"),
        pytest.param({"Authorization": "Bearer shop"}, id="the name"),
        pytest.param({"Authorization": "Bearer \xff\x80"}, id="no text"),
    ],
)
def test_who_has_no_key_learns_nothing_and_takes_no_room(keyed, header):
    async def attack(proxy, keys):
        await proxy.agent.until(lambda: proxy.agent.hellos == 1)
        given = {
            name: value.format(shop=keys["shop"], digest=digest_of(keys["shop"]))
            for name, value in header.items()
        }
        async with proxy.client() as client:
            for path in ("/v1/models", "/v1/models/shop/llama", "/metrics"):
                async with client.get(path, headers=given) as answer:
                    assert answer.status == 401
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
                    assert b"kybernate clients add" in await answer.read()
            refused = await ask(client, body(2 * MIB), **given)
            assert (refused[0], code(refused)) == (401, "unknown_client")
            async with client.get("/healthz") as answer:
                assert answer.status == 200
        assert proxy.model.requests == []

    keyed(attack)


def test_a_key_opens_its_own_namespaces_and_is_never_shown_to_a_seat(keyed):
    async def attack(proxy, keys):
        for uid in ("shop", "lab"):
            proxy.agent.name_seat(proxy.model.address, uid=uid, namespace=uid, model="llama")
            proxy.agent.lease("grant", uid=uid)
        mine = {"Authorization": f"Bearer {keys['shop']}"}
        async with proxy.client() as client:
            async with asyncio.timeout(PATIENCE):
                while True:
                    async with client.get("/v1/models", headers=mine) as answer:
                        if (models := (await answer.json())["data"]) and (
                            models[0]["kyb"]["seats"][0]["granted"]
                        ):
                            break
            assert [(one["id"], one["kyb"]["name"]) for one in models] == [("llama", "shop/llama")]
            for name in ("lab/llama", "lab/none"):
                refused = await ask(client, body(100, name), **mine)
                assert (refused[0], code(refused)) == (404, "model_not_found")
            for name in ("llama", "shop/llama"):
                _, _, headers = await ask(client, body(100, name), **mine)
                assert headers["X-Kyb-Seat"] == "n1/G0-seat-shop"
            async with client.get("/metrics", headers=mine) as answer:
                assert answer.status == 403
        assert len(proxy.model.requests) == 2
        for _, headers, _ in proxy.model.requests:
            assert "Authorization" not in headers

    keyed(attack)


def test_a_key_that_is_revoked_or_replaced_opens_nothing_two_seconds_later(keyed, records):
    folder, _ = records

    async def attack(proxy, keys):
        async with proxy.client() as client:

            async def status(key):
                sent = {"Authorization": f"Bearer {key}"}
                async with client.get("/v1/models", headers=sent) as answer:
                    return answer.status

            assert [await status(key) for key in keys.values()] == [200, 200]
            new = let_in(folder, "shop", "--of", "shop", "--replace")
            gone = CliRunner().invoke(command, ["revoke", "lab", "--dir", str(folder)])
            assert gone.exit_code == 0
            (folder / "broken").write_text('{"namespaces": "*", "keySha256": "x"}')
            await asyncio.sleep(2)
            assert [await status(key) for key in (*keys.values(), new)] == [401, 401, 200]

    keyed(attack)


def test_a_certificate_counts_if_our_authority_signed_it_and_its_name_is_let_in(
    against, tls, tmp_path
):
    serve, foreign, folder = tmp_path / "serve", tmp_path / "foreign", tmp_path / "clients"
    serve.mkdir()
    for source, name in (("registry.crt", "tls.crt"), ("registry.key", "tls.key")):
        (serve / name).write_bytes((tls / source).read_bytes())
    (serve / "ca.crt").write_bytes((tls / "ca.crt").read_bytes())
    Folder(foreign).init(["n1"], Validity(), datetime.now(UTC))
    let_in(folder, "kyb-proxy", "--of", "shop", "--certificate")

    def shown(where, name):
        context = ssl.create_default_context(cafile=tls / "ca.crt")
        context.check_hostname = False
        if name:
            context.load_cert_chain(where / f"{name}.crt", where / f"{name}.key")
        return context

    async def attack(proxy):
        url = proxy.url.replace("http:", "https:") + "/v1/models"
        async with aiohttp.ClientSession() as client:
            for where, name, status in (
                (tls, "proxy", 200),
                (tls, "controller", 401),
                (tls, "", 401),
            ):
                async with client.get(url, ssl=shown(where, name)) as answer:
                    assert answer.status == status, name
            with pytest.raises(aiohttp.ClientError):
                async with client.get(url, ssl=shown(foreign, "proxy")) as answer:
                    await answer.read()
            sent = {"Authorization": "Bearer kyb-proxy"}
            async with client.get(url, ssl=shown(tls, ""), headers=sent) as answer:
                assert answer.status == 401

    against(attack, auth="certificates", serve_tls_dir=serve, clients_dir=folder)


@pytest.fixture
def registry(tls, tmp_path):
    server = Server(tls, tmp_path / "registry.log", f"sqlite:///{tmp_path}/registry.db")
    server.start()
    yield server
    server.kill()


def test_a_node_takes_no_seat_of_another_nodes_away(runner, tls, registry):
    """Whether it says that its own pod has taken the other's place, or speaks for the other's
    agent."""
    rogue = FakeAgent(tls, "n2")

    async def attack():
        await rogue.start()
        others = {"beside": f"n2=127.0.0.1:{rogue.port}", **asking(registry)}
        try:
            async with asyncio.timeout(PATIENCE), Process(tls, **others) as process:
                await rogue.until(lambda: rogue.hellos == 1)
                await against_a_seat(process)
        finally:
            await rogue.stop()

    async def against_a_seat(process):
        await process.seat(state="active")
        process.agent.lease("grant")
        process.model.gate.clear()
        data, chat = b'{"model": "m"}', "/v1/chat/completions"
        async with process.client() as client:
            first = asyncio.create_task(ask(client, data, chat))
            await process.model.arrived.wait()
            rogue.name_seat("127.0.0.1:1", uid="b", state="active", predecessor="a")
            for kind in ("drain", "revoke"):
                rogue.lease(kind)
            rogue.name_seat("127.0.0.1:1")
            rogue.order(gone=agent_pb2.SeatGone(uid="a"))
            rogue.name_seat("127.0.0.1:1", uid="z", model="z")
            while "z" not in await models(client):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            second = asyncio.create_task(ask(client, data, chat))
            process.model.gate.set()
            for status, _, headers in (await first, await second):
                assert (status, headers["X-Kyb-Seat"]) == (200, "n1/G0-seat-a")

    async def models(client):
        async with client.get("/v1/models") as answer:
            return [model["id"] for model in (await answer.json())["data"]]

    runner.run(attack())
