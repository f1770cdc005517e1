"""How long the extender takes to know a cluster anew, and the memory that this takes.

A stub of the API server (TLS, pages of ready-made bytes) stands for the real one; all else is the
extender's own: client, watches, reading, ledger. Time runs from the start of the watches until the
extender would answer its first call, memory is the extender's process then, and after a look at
every node. The interpreter's own start and imports are told apart. The stub's CPU is told as
`stub_cpu_s`: it is no part of what is measured, but a page is waited for until it is there.
"""

from __future__ import annotations

import gc
import json
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import click
import orjson

from bench.cluster import fleet
from bench.cluster.extender.servers import kubeconfig
from bench.processes import REPOSITORY, memory_mib
from bench.report import emit, say
from extender.state.snapshot import Snapshot
from extender.state.watches import Watches
from kybernate import keys
from kybernate.adapters.k8s import Api
from kybernate.adapters.pki import Folder, Validity
from kybernate.core.placement import Demand
from kybernate.types import PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT = 120.0
PODS = "/api/v1/pods"


@click.command()
@click.option("--nodes", default=5000, show_default=True, help="Nodes with eight GPUs each.")
@click.option("--pods", default=50_000, show_default=True, help="Bound pods.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
@click.option("--rebuild", type=click.Path(path_type=Path), hidden=True)
def main(nodes: int, pods: int, rebuild: Path | None, as_json: bool) -> None:
    """Measure a rebuild of the ledger."""
    if rebuild is not None:
        click.echo(json.dumps(measure(rebuild)))
        return
    say(f"making {nodes} nodes and {pods} pods")
    lists = {
        keys.GPU_NODES_PATH: [orjson.dumps(fleet.gpu_node(number)) for number in range(nodes)],
        PODS: [orjson.dumps(pod) for pod in fleet.pods(nodes, pods)],
    }
    size = sum(map(len, lists[PODS])) / 2**20
    say(f"{size:.0f} MiB of pods")
    with tempfile.TemporaryDirectory(prefix="kyb-bench-") as folder:
        access = serve(lists, Path(folder))
        stub = time.process_time()
        run = subprocess.run(
            [sys.executable, "-m", "bench.cluster.ledger", f"--rebuild={access}"],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            timeout=2 * LIMIT,
            check=True,
        )
    seen: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    if (seen.pop("nodes"), seen.pop("claims")) != (nodes, pods):
        raise SystemExit("the ledger doesn't hold all nodes and pods")
    units = {"s": "s", "mib": "MiB"}
    metrics = {name: (value, units[name.rpartition("_")[2]]) for name, value in seen.items()}
    limits: dict[str, object] = {"name": "limits", "rebuild_s": 10, "rss_mib": 500}
    limits["stub_cpu_s"] = round(time.process_time() - stub, 3)
    emit("ledger", metrics, limits, as_json=as_json)


def measure(access: Path) -> dict[str, float]:
    """The figures of this process."""
    before = memory_mib(os.getpid())
    api = Api(access, "bench")
    snapshot = Snapshot(time.monotonic)
    watches = Watches(api, snapshot)
    began, cpu = time.perf_counter(), time.process_time()
    watches.start()
    while watches.not_ready():
        if time.perf_counter() - began > LIMIT:
            raise SystemExit(f"not ready after {LIMIT:.0f} s: {watches.not_ready()}")
        time.sleep(0.01)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    names = snapshot.names()
    began = time.perf_counter()
    demand = Demand(keys.seat_resource(2))
    snapshot.offer(PodRef("bench", "new", PodUid("new")), demand, names)
    first = time.perf_counter() - began
    gc.collect()
    claims = sum(len(view.claims) for view in snapshot.views(names).values() if view)
    found = {
        "rebuild_s": took,
        "rebuild_cpu_s": used,
        "first_filter_all_nodes_s": first,
        "rss_mib": memory_mib(os.getpid()),
        "rss_before_mib": before,
        "nodes": len(names),
        "claims": claims,
    }
    watches.stop()
    return found


def serve(lists: dict[str, list[bytes]], folder: Path) -> Path:
    """Serve the lists from now on; where the kubeconfig is."""
    tls = folder / "tls"
    Folder(tls).init([], Validity(), datetime.now(UTC))
    server = Stub(("127.0.0.1", 0), _Handler)
    server.lists = lists
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls / "extender.crt", tls / "extender.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    access = folder / "kubeconfig"
    access.write_text(kubeconfig(f"https://127.0.0.1:{server.server_port}", tls / "ca.crt"))
    return access


class Stub(ThreadingHTTPServer):
    """Lists in pages, and watches without an event."""

    daemon_threads = True
    lists: dict[str, list[bytes]]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if "resourceVersion" in query:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            threading.Event().wait(LIMIT)
            return
        lists: dict[str, list[bytes]] = self.server.lists  # type: ignore[attr-defined]
        body = _page(lists[address.path], query)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


def _page(items: list[bytes], query: dict[str, str]) -> bytes:
    first = int(query.get("continue", 0))
    after = first + int(query["limit"])
    meta = {"resourceVersion": "1000000", "continue": str(after) if after < len(items) else ""}
    head: Iterable[bytes] = (
        b'{"kind":"List","apiVersion":"v1","metadata":',
        orjson.dumps(meta),
        b',"items":[',
    )
    return b"".join((*head, b",".join(items[first:after]), b"]}"))


if __name__ == "__main__":
    main()
