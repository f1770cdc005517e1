"""The proxy as plain back end of an Envoy, by the configuration that the how-to page has."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import yaml

from bench.processes import free_port
from kybernate.adapters.pki import Folder, Validity
from tests.cluster.fetched.envoy import envoy
from tests.unit.proxy.stage import DEADLINE, Stage

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/install/gateway.md"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    Folder(folder).init(["n1"], Validity(), datetime.now(UTC))
    return folder


@pytest.fixture(scope="module")
def program():
    return envoy()


@pytest.fixture
def play(program, tls, tmp_path):
    """Run a scenario: an async function of the stage, whose client asks through an Envoy."""

    def run(scenario, **settings):
        async def act():
            async with asyncio.timeout(6 * DEADLINE), Stage(tls, **settings) as stage:
                port = free_port()
                told = configuration(port, stage.service.port)
                with begun(program, told, tmp_path):
                    await stage.client.close()
                    stage.client = aiohttp.ClientSession(f"http://127.0.0.1:{port}")
                    await up(stage.client)
                    await stage.seat(granted=False)
                    await scenario(stage)

        asyncio.run(act())

    return run


@contextlib.contextmanager
def begun(program, told, folder):
    """An Envoy that was told this."""
    (folder / "envoy.yaml").write_text(yaml.safe_dump(told))
    words = [program, "-c", folder / "envoy.yaml", "--use-dynamic-base-id", "--concurrency", "1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*words, "-l", "warning"], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


async def up(client):
    """Wait until it finds the proxy healthy."""
    async with asyncio.timeout(2 * DEADLINE):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get("/v1/models") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)


def configuration(port, proxy):
    """That of the page, at these ports of this machine."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    told = yaml.safe_load(block)
    (listener,), (cluster,) = (told["static_resources"][one] for one in ("listeners", "clusters"))
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    ((end,),) = (one["lb_endpoints"] for one in cluster["load_assignment"]["endpoints"])
    end["endpoint"]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": proxy}
    return told


def test_a_request_is_held_while_its_model_wakes(play):
    async def scenario(stage):
        asked = stage.asked(headers={"traceparent": TRACE})
        await stage.agent.until(lambda: stage.agent.demand() == (0, 1))
        await asyncio.sleep(15.5)  # longer than Envoy's own limit
        stage.agent.lease("grant")
        status, _, headers = await asked
        assert status == 200
        assert headers["X-Kyb-Seat"] == "n1/G0-seat-a"
        assert float(headers["X-Kyb-Wake-Ms"]) > 15_000
        ((_, sent, _),) = stage.model.requests
        assert sent["traceparent"] == TRACE

    play(scenario, agent_ping_s=60.0)  # the agent of the stage takes none


def test_tokens_come_as_they_are_made_and_a_client_that_leaves_is_noticed(play):
    async def scenario(stage):
        stage.agent.lease("grant")
        stage.model.gate.clear()
        async with stage.chat(stream=True) as answer:
            assert await answer.content.readline() == b"data: one\n"
            stage.model.gate.set()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        stage.model.gate.clear()
        stage.model.arrived.clear()
        gone = stage.asked()
        await stage.model.arrived.wait()
        await leave(gone)
        async with asyncio.timeout(DEADLINE):
            await stage.model.left.wait()

    play(scenario)


def test_who_leaves_while_it_waits_has_nothing_woken(play):
    async def scenario(stage):
        asked = stage.asked()
        await stage.agent.until(lambda: stage.agent.demand() == (0, 1))
        await leave(asked)
        await stage.agent.until(lambda: stage.agent.demand() == (0, 0))
        assert stage.model.requests == []

    play(scenario)


def test_a_refusal_reaches_the_client_and_takes_no_proxy_out(play):
    async def scenario(stage):
        for _ in range(8):
            async with stage.chat(headers={"X-Kyb-Wait-Ms": "50"}) as answer:
                assert answer.status == 429
                assert answer.headers["Retry-After"]
                assert (await answer.json())["error"]["code"] == "wait_limit"
        stage.agent.lease("grant")
        assert (await stage.asked())[0] == 200

    play(scenario)


async def leave(task):
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
