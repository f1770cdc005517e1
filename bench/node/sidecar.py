"""What a sidecar costs beside a parked workload: resident memory, and CPU at rest.

At rest means what the kubelet does to it all day: each of its three probes every ten seconds, the
default. Before that it answers some hundreds of probes of every kind, so that its memory is that
of a sidecar which has been at work.
"""

from __future__ import annotations

import http.client
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import grpc

from bench.processes import cpu_seconds, memory_mib
from bench.report import emit, say

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
HTTP_PORT, GRPC_PORT, TCP_PORT = 15480, 15481, 15482
CHECK = "/grpc.health.v1.Health/Check"
PERIOD = 10.0
"""Seconds between two probes of a kind: the kubelet's default."""
WARM_UP = 300
START_LIMIT = 10.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Memory in MiB (the most it ever had), CPU in percent of a core, CPU per probe in ms."""

    rss_mib: float
    cpu_percent: float
    probe_ms: float


def measure(seconds: float) -> Cost:
    """Run one sidecar for this long at rest, on this machine's own ports 15480 to 15482."""
    with tempfile.TemporaryDirectory(prefix="kyb-") as folder:
        path = Path(folder) / "init.sock"
        with _process_1(path), _sidecar(path) as process:
            before = cpu_seconds(process.pid)
            for _ in range(WARM_UP):
                _probe_all()
            probe_ms = 1000 * (cpu_seconds(process.pid) - before) / (3 * WARM_UP)
            used = _rest(process.pid, seconds)
            return Cost(memory_mib(process.pid, "VmHWM"), 100 * used / seconds, probe_ms)


def _rest(pid: int, seconds: float) -> float:
    """CPU seconds used while the kubelet's usual probes are answered."""
    before, until = cpu_seconds(pid), time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        _probe_all()
        time.sleep(min(PERIOD, left))
    return cpu_seconds(pid) - before


@contextmanager
def _process_1(path: Path) -> Iterator[None]:
    """Says "parked" to whoever connects, as kyb-init does."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    payload = "\0".join(("state", "parked", "1000", "1", "parked in RAM")).encode()
    kept: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                kept.append(server.accept()[0])
                kept[-1].sendall(struct.pack(">I", len(payload)) + payload)

    threading.Thread(target=serve, daemon=True).start()
    yield
    for one in (server, *kept):
        one.close()


@contextmanager
def _sidecar(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [
        f"--socket={path}",
        "--liveness=http:8000:timeout=1:grace=300",
        "--readiness=grpc:50051:timeout=1",
        "--startup=tcp:8000:timeout=1",
        "--cooperate=vllm:8000",
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [sys.executable, "-m", "sidecar", *arguments], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        _await_port(process)
        yield process
    finally:
        process.terminate()
        process.wait(START_LIMIT)


def _await_port(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", TCP_PORT), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the sidecar does not listen; is another one on ports 15480 to 15482?")
        time.sleep(0.05)


def _probe_all() -> None:
    """One round of the kubelet's: each probe on a connection of its own."""
    for port in (HTTP_PORT, TCP_PORT):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/health", headers={"Connection": "close"})
        if connection.getresponse().status != 200:
            raise SystemExit(f"the probe at port {port} is not answered well")
        connection.close()
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"127.0.0.1:{GRPC_PORT}", options) as channel:
        if channel.unary_unary(CHECK)(b"", timeout=5) != b"\x08\x01":
            raise SystemExit("the gRPC probe is not answered well")


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="How long it is at rest.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(seconds: float, as_json: bool) -> None:
    """Measure a sidecar."""
    say(f"a sidecar beside a parked workload, {seconds:g} s at rest")
    cost = measure(seconds)
    metrics = {
        "sidecar_rss_mib": (cost.rss_mib, "MiB"),
        "sidecar_cpu_percent": (cost.cpu_percent, "percent"),
        "sidecar_probe_ms": (cost.probe_ms, "ms"),
    }
    emit("sidecar", metrics, {"name": "a core, and the pod's limit of 32 MiB"}, as_json=as_json)


if __name__ == "__main__":
    main()
