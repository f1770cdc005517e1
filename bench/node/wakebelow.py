"""A connection straight to a pod whose seat is below RAM: from before the connect to the answer.

One node of a real cluster with the agent as config/below-ram has it run. Three servers that nobody
here wrote are parked by the agent and called, in turn.
"""

from __future__ import annotations

import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.node.seatverbs import SeatVerbs
from bench.report import emit, percentile, say
from tests.cluster import ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.cluster.fetched import nodejs, servers
from tests.cluster.layout import work_root
from tests.cluster.processes.control import wait_until
from tests.kit import belowram
from tests.kit.pods import Pods, SeatPod, ready
from tests.kit.servers import s3

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PORT = 8080
START, ANSWER = 120.0, 20.0
REQUEST = b"GET / HTTP/1.0\r\n\r\n"
_NODE = f"require('http').createServer((_, out) => out.end('node is here')).listen({PORT})"
SERVERS = {
    "nginx": (servers.NAME, ("nginx", "-c", "/etc/nginx.conf")),
    "python": (servers.NAME, ("python3", "-m", "http.server", "--directory", "/data", str(PORT))),
    "node": (nodejs.NAME, ("-e", _NODE)),
}
"""By name, the image and its arguments."""
PAUSE = 0.3
"""Seconds after an answer in which the wake's own work ends."""


def measure(tier: str, samples: int, *, as_json: bool) -> None:
    """Each server `samples` times."""
    work_root().mkdir(parents=True, exist_ok=True)
    taken: dict[str, list[float]] = {}
    awake: list[float] = []
    with (
        tempfile.TemporaryDirectory(dir=work_root()) as folder,
        s3.server(Path(folder) / "s3", say) as store,
    ):
        where = {"KYB_AGENT_OBJECT_STORE": store.url, **store.environment}
        below = belowram.made(Path(folder) / "below", where, say)
        with running(_spec(below.overlay), say) as cluster:
            pods = Pods(cluster.api())
            for name in SERVERS:
                pods.create(_seat(name))
                pod = pods.wait([name], ready, START, "Ready")[name]
                address = str(pod["status"]["podIP"])
                _serving(name, address)
                with SeatVerbs.of(cluster.node("n1"), pod) as verbs:
                    taken[name] = list(_wakes(verbs, address, tier, samples))
                awake += [_first_byte(address) for _ in range(samples)]
                pods.delete([name], grace=0)
                pods.gone([name], START)
    _tell(tier, taken, awake, as_json=as_json)


def _wakes(verbs: SeatVerbs, address: str, tier: str, samples: int) -> Iterator[float]:
    for _ in range(samples):
        verbs.park(tier)
        time.sleep(PAUSE)
        yield _first_byte(address)
        time.sleep(PAUSE)


def _first_byte(address: str) -> float:
    began = time.monotonic()
    with socket.create_connection((address, PORT), ANSWER) as link:
        link.sendall(REQUEST)
        if not link.recv(1):
            raise SystemExit(f"the server at {address} hung up")
        return time.monotonic() - began


def _serving(name: str, address: str) -> None:
    wait_until(lambda: _answers(address), START, f"{name} doesn't serve")


def _answers(address: str) -> bool:
    try:
        return _first_byte(address) > 0
    except OSError:
        return False


def _tell(
    tier: str, taken: Mapping[str, list[float]], awake: list[float], *, as_json: bool
) -> None:
    every = [one for some in taken.values() for one in some]
    metrics = {
        "connect_p50_ms": (1000 * percentile(every, 50), "ms"),
        "connect_p99_ms": (1000 * percentile(every, 99), "ms"),
        **{f"{name}_p50_ms": (1000 * percentile(some, 50), "ms") for name, some in taken.items()},
        "samples": (float(len(every)), "wakes"),
    }
    baseline = {
        "name": "the same connection while the server is awake",
        "p50_ms": round(1000 * percentile(awake, 50), 3),
    }
    emit(f"wake-connect-{tier}", metrics, baseline, as_json=as_json)


def _spec(overlay: Path) -> ClusterSpec:
    return ClusterSpec(
        name="wakeb",
        nodes=("n1",),
        subnet="10.84.0.0/16",
        gpus=GpuSpec(count=1),
        images=("servers", "node", "sidecar"),
        node_pods=True,
        overlay=overlay,
        service_env={"agent": {"KYB_AGENT_TIER_RESIDENCY_S": "0"}},
    )


def _seat(name: str) -> SeatPod:
    more = {
        "image": SERVERS[name][0],
        "args": list(SERVERS[name][1]),
        "ports": [{"containerPort": PORT}],
    }
    return SeatPod(name, vram="1Gi", node="n1", more=more)
