"""The extender's calls beside servers that decode the same bodies and return as many names.

A sample is what the kube-scheduler asks for one pod: filter of the candidates at ours and at the
others in turn, prioritize of the same names (which the scheduler asks only about pods with wishes
of their own), then a bind to the node that ours offers, of which the (fed) watch tells a moment
later. So each filter comes after a change. The others offer the first names, as many as ours does.
Then binds alone, from several connections at once. Times are the client's, over HTTP/1.1 and mutual
TLS, to the last byte of the answer; the API is a stub that answers at once. `bind_p50_ms` is
without the time of the call to it, `bind_with_api` with it.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from bench.cluster import fleet
from bench.cluster.extender import servers
from bench.cluster.extender.client import Client, request
from bench.processes import cpu_seconds, free_port, memory_mib, process, worker
from bench.report import emit, percentile, say
from kybernate.adapters.pki import Folder, Validity

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.report import Metrics

START_LIMIT = 120.0
"""Seconds in which a server must answer; ours reads all of the fleet first."""

OFFERED = 1
"""Names that filter answers, by the extender's own default."""

WARM_UP = 20
CONNECTIONS = 8
"""From which binds come at once."""


@dataclass
class Peer:
    """A server under test and what was seen of it."""

    name: str
    port: int
    pid: int
    client: Client
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    def call(self, verb: str, data: bytes) -> bytes:
        """One call, measured."""
        before = cpu_seconds(self.pid)
        took, answer = self.client.call(data)
        self.cpu[verb] = self.cpu.get(verb, 0.0) + cpu_seconds(self.pid) - before
        self.seconds.setdefault(verb, []).append(took)
        return answer

    def p(self, verb: str, percent: float) -> float:
        """A percentile in milliseconds."""
        return 1000 * percentile(self.seconds[verb], percent)


@click.command()
@click.option("--nodes", default=5000, show_default=True, help="Nodes with eight GPUs each.")
@click.option("--candidates", default=500, show_default=True, help="Names per call.")
@click.option("--pods", default=None, type=int, help="Bound pods; ten per node by default.")
@click.option("--samples", default=400, show_default=True, help="Pods to schedule, one by one.")
@click.option("--binds", default=1500, show_default=True, help="Binds from several connections.")
@click.option("--policy", default="default", show_default=True, help="Of our extender.")
@click.option("--traffic", is_flag=True, help="Each seat's traffic is known, as after some days.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(  # noqa: PLR0913
    *,
    nodes: int,
    candidates: int,
    pods: int | None,
    samples: int,
    binds: int,
    policy: str,
    traffic: bool,
    as_json: bool,
) -> None:
    """Measure filter, prioritize and bind."""
    count = 10 * nodes if pods is None else pods
    if not 0 < candidates <= nodes or samples + binds + WARM_UP > servers.PENDING:
        raise click.UsageError(
            f"candidates are at most the nodes, and {servers.PENDING} pods can be scheduled"
        )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kyb-bench-")))
        ours = [f"--nodes={nodes}", f"--pods={count}", f"--policy={policy}"]
        peers = start(stack, folder, [*ours, *(["--traffic"] if traffic else [])])
        run = Run(peers, nodes, candidates, count)
        run.alternate(samples)
        run.ask_api_times()
        rate = run.storm(binds, folder / "tls")
        metrics, baseline = run.figures(rate)
    emit("extender", metrics, baseline, as_json=as_json)


class Run:
    """The calls of one run."""

    def __init__(self, peers: dict[str, Peer], nodes: int, candidates: int, pods: int) -> None:
        self._peers = peers
        self._names = [fleet.node_name(number) for number in range(nodes)]
        self._candidates = candidates
        self._next = pods
        self._dice = random.Random(1)
        self._api: list[float] = []

    def alternate(self, samples: int) -> None:
        """Schedule pods one by one, after some that don't count."""
        for number in range(WARM_UP + samples):
            if number == WARM_UP:
                for peer in self._peers.values():
                    peer.seconds.clear()
                    peer.cpu.clear()
            self._schedule()

    def _schedule(self) -> None:
        pod = self._pod()
        first = self._dice.randrange(len(self._names))
        names = (self._names[first:] + self._names[:first])[: self._candidates]
        order = list(self._peers.values())
        self._dice.shuffle(order)
        answers: dict[tuple[str, str], bytes] = {}
        for verb in ("filter", "prioritize"):
            data = request(verb, {"Pod": pod, "Nodes": None, "NodeNames": names})
            answers |= {(verb, peer.name): peer.call(verb, data) for peer in order}
        (offered,) = orjson.loads(answers["filter", "ours"])["NodeNames"]
        check(self._peers["ours"].call("bind", _bind(pod, offered)))

    def _pod(self) -> dict[str, object]:
        self._next += 1
        return fleet.pod(self._next - 1)

    def ask_api_times(self) -> None:
        """What of the binds so far was spent in calls to the API."""
        get = f"GET {servers.API_SECONDS} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        _, answer = self._peers["ours"].client.call(get.encode())
        self._api = orjson.loads(answer)[WARM_UP:]

    def storm(self, count: int, tls: Path) -> float:
        """Binds per second over distinct nodes, from CONNECTIONS connections at once."""
        nodes = self._dice.sample(self._names, min(count, len(self._names)))
        calls = [_bind(self._pod(), node) for node in nodes]
        port = self._peers["ours"].port
        clients = [Client(port, tls) for _ in range(CONNECTIONS)]

        def some(at: int) -> None:
            for data in calls[at::CONNECTIONS]:
                check(clients[at].call(data)[1])

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            began = time.perf_counter()
            list(pool.map(some, range(CONNECTIONS)))
            took = time.perf_counter() - began
        for client in clients:
            client.close()
        return len(calls) / took

    def _own_bind(self) -> list[float]:
        """Each bind less its call to the API."""
        binds = self._peers["ours"].seconds["bind"]
        return [whole - api for whole, api in zip(binds, self._api, strict=True)]

    def figures(self, rate: float) -> tuple[Metrics, dict[str, object]]:
        """All metrics, and what they are compared with."""
        ours, flask = self._peers["ours"], self._peers["noop"]
        metrics: Metrics = {
            "filter_p50_ratio_noop": (ours.p("filter", 50) / flask.p("filter", 50), "x"),
            "filter_p99_ms": (ours.p("filter", 99), "ms"),
            "prioritize_p50_ratio_noop": (
                ours.p("prioritize", 50) / flask.p("prioritize", 50),
                "x",
            ),
            "bind_p50_ms": (1000 * percentile(self._own_bind(), 50), "ms"),
            "binds_per_s": (rate, "1/s"),
            "rss_mib": (memory_mib(ours.pid), "MiB"),
        }
        for verb, seen in ours.seconds.items():
            name = "bind_with_api" if verb == "bind" else verb
            for percent in (50, 95, 99):
                metrics[f"{name}_p{percent}_ms"] = (ours.p(verb, percent), "ms")
            metrics[f"{verb}_cpu_ms"] = (1000 * ours.cpu[verb] / len(seen), "ms")
        others = {name: _beside(peer) for name, peer in self._peers.items() if name != "ours"}
        return metrics, {"name": "servers that return the first names", **others}


def _beside(peer: Peer) -> dict[str, object]:
    found: dict[str, object] = {"rss_mib": round(memory_mib(peer.pid), 1)}
    for verb, seen in peer.seconds.items():
        found |= {f"{verb}_p{p}_ms": round(peer.p(verb, p), 3) for p in (50, 95, 99)}
        found[f"{verb}_cpu_ms"] = round(1000 * peer.cpu[verb] / len(seen), 3)
    return found


def _bind(pod: dict[str, object], node: str) -> bytes:
    meta = pod["metadata"]
    assert isinstance(meta, dict)
    return request(
        "bind",
        {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": node,
        },
    )


def check(answer: bytes) -> None:
    """A bind that fails makes the figures worthless."""
    if error := orjson.loads(answer)["Error"]:
        raise SystemExit(f"a bind failed: {error}")


def start(stack: ExitStack, folder: Path, given: list[str]) -> dict[str, Peer]:
    """Start all servers, ours with these options; they end with the stack."""
    tls = folder / "tls"
    Folder(tls).init([], Validity(), datetime.now(UTC))
    api = free_port()
    stack.enter_context(process(_python("api", api, tls)))
    access = folder / "kubeconfig"
    access.write_text(servers.kubeconfig(f"https://127.0.0.1:{api}", tls / "ca.crt"))
    fed = [f"--kubeconfig={access}", *given]
    commands: dict[str, Callable[[int], list[str]]] = {
        "noop": lambda port: _python("noop", port, tls),
        "ours": lambda port: _python("ours", port, tls, *fed),
    }
    if go := build_go(folder):
        commands["go"] = lambda port: [str(go), f"127.0.0.1:{port}", str(tls), str(OFFERED)]
    else:
        say("there is no Go here: without the server in Go")
    running = {}
    for name, command in commands.items():
        port = free_port()
        running[name] = port, stack.enter_context(process(command(port)))
        # Ours takes its time to read the fleet, and drops connections on which nothing comes.
        connect(port, tls, name).close()
        say(f"{name} answers")
    peers = {}
    for name, (port, master) in running.items():
        client = connect(port, tls, name)
        stack.callback(client.close)
        peers[name] = Peer(name, port, worker(master), client)
    return peers


def _python(kind: str, port: int, tls: Path, *more: str) -> list[str]:
    module = [sys.executable, "-m", "bench.cluster.extender.servers", kind]
    return [*module, f"--port={port}", f"--tls={tls}", *more]


def build_go(folder: Path) -> Path | None:
    """The server in Go, or None where there is no Go."""
    go = shutil.which("go")
    if go is None:
        return None
    target = folder / "noop"
    source = Path(__file__).with_name("noop.go")
    subprocess.run([go, "build", "-o", str(target), str(source)], check=True, timeout=300)
    return target


def connect(port: int, tls: Path, name: str) -> Client:
    """A connection as soon as the server takes one."""
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        with suppress(OSError):
            return Client(port, tls)
        time.sleep(0.1)
    raise SystemExit(f"{name} does not answer within {START_LIMIT:.0f} s")


if __name__ == "__main__":
    main()
