"""One proxy between fast clients and a fast server, beside the server itself and a peer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import yaml

from bench.processes import free_port, memory_mib
from bench.proxy.agent import Agent
from bench.proxy.replicas import Replica
from bench.report import median, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from bench.report import Metrics

CONNECTIONS = (1, 16, 64)
STREAMS = (1, 16)
_START_S = 60.0
_HERE = Path(__file__).parent


async def measure(
    folder: Path, tls: Path, peer: str | None, rounds: int, seconds: float
) -> tuple[Metrics, dict[str, object]]:
    """All measurements in turn, round after round. Raises SystemExit if one request failed."""
    load = await asyncio.to_thread(_built, folder)
    async with AsyncExitStack() as stack:
        port = free_port()
        stack.enter_context(_running([load, "serve", f"127.0.0.1:{port}"], folder / "server.log"))
        agent = Agent(tls, {"m": f"127.0.0.1:{port}"})
        await agent.start()
        stack.push_async_callback(agent.stop)
        proxy = Replica(tls, agent.port, folder / "proxy.log")
        stack.callback(proxy.end)
        await proxy.start()
        urls = {"direct": f"http://127.0.0.1:{port}", "proxy": proxy.url}
        pids = {"proxy": proxy.pid}
        if peer is not None:
            urls["peer"], pids["peer"] = await stack.enter_async_context(
                _llama_swap(folder, peer, load)
            )
        found = await asyncio.to_thread(_rounds, load, urls, rounds, seconds)
        for name, pid in pids.items():
            found[name]["rss_mib"] = memory_mib(pid)
    metrics: Metrics = {key: (value, _unit(key)) for key, value in found["proxy"].items()}
    for count in CONNECTIONS:
        added = found["proxy"][f"p50_ms_{count}"] - found["direct"][f"p50_ms_{count}"]
        metrics[f"added_p50_ms_{count}"] = added, "ms"
    baseline: dict[str, object] = {
        "name": "llama-swap" if peer else "the server itself",
        "direct": found["direct"],
    }
    if peer is not None:
        baseline["peer"] = found["peer"]
    return metrics, baseline


def _built(folder: Path) -> str:
    program = str(folder / "load")
    subprocess.run(["go", "build", "-o", program, str(_HERE / "load.go")], check=True)
    return program


def _rounds(
    load: str, urls: dict[str, str], rounds: int, seconds: float
) -> dict[str, dict[str, float]]:
    samples: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in urls}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for count, stream in [*((n, False) for n in CONNECTIONS), *((n, True) for n in STREAMS)]:
            for name, url in urls.items():
                one = _ask(load, url, count, seconds, stream=stream)
                if stream:
                    samples[name][f"events_per_s_{count}"].append(one["events_per_s"])
                    continue
                for key in ("p50_ms", "p95_ms", "per_s"):
                    samples[name][f"{key}_{count}"].append(one[key])
    return {
        name: {key: round(median(values), 3) for key, values in of.items()}
        for name, of in samples.items()
    }


def _ask(load: str, url: str, count: int, seconds: float, *, stream: bool) -> dict[str, float]:
    words = [load, "ask", url, "m", str(count), str(seconds), *(["stream"] if stream else [])]
    done = subprocess.run(words, capture_output=True, check=True, timeout=120)
    found: dict[str, float] = json.loads(done.stdout)
    if found["failed"]:
        raise SystemExit(f"{url}: {found['failed']:g} requests failed")
    return found


def _unit(key: str) -> str:
    if key.startswith("rss"):
        return "MiB"
    return "ms" if "_ms" in key else "events/s" if key.startswith("events") else "requests/s"


@contextmanager
def _running(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, env=dict(os.environ))
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


@asynccontextmanager
async def _llama_swap(folder: Path, program: str, load: str) -> AsyncIterator[tuple[str, int]]:
    """llama-swap before a server of its own, with its defaults but for the limit of requests."""
    file, port = folder / "llama-swap.yaml", free_port()
    model = {"cmd": f"{load} serve 127.0.0.1:${{PORT}}", "concurrencyLimit": 256}
    file.write_text(yaml.safe_dump({"startPort": free_port(16), "models": {"m": model}}))
    words = [program, "-config", str(file), "-listen", f"127.0.0.1:{port}"]
    url = f"http://127.0.0.1:{port}"
    with _running(words, folder / "llama-swap.log") as process:
        body = {"model": "m", "messages": []}
        async with asyncio.timeout(_START_S), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                        if answer.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)
        yield url, process.pid
