"""What the node's agent costs at rest, and whether it grows or slows down over many swaps.

At rest: eight GPUs, 24 seats (one of each three active), no traffic; CPU over a while and memory.
Then eight seats, two on each of four GPUs, are parked and woken in turn, all four GPUs at once, by
a stream that speaks as a proxy does. The driver costs nothing, all else is real: containers,
kyb-init, freezer, helpers, journal. A cycle is one seat parked and the other woken in its place.
At last one sidecar, at rest as long as the agent was.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import grpc
import requests

from bench.node import sidecar
from bench.processes import cpu_seconds, line_of, memory_mib
from bench.report import emit, median, percentile, say
from kybernate import keys
from kybernate.gen import agent_pb2
from kybernate.gen import agent_pb2 as pb
from kybernate.lib import rpc
from tests.cluster import Cluster, ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.kit.pods import Pods, SeatPod, ready

GPUS = 8
SEATS_PER_GPU = 3
SOAKED_GPUS = 4
LIMIT = 60.0
"""Seconds that one swap may take."""
CHECK_EVERY = 500
PROFILE = {
    "name": "1x",
    "resource": keys.seat_resource(1),
    "groupSize": 1,
    "seatsPerGroup": SEATS_PER_GPU,
}


@click.command()
@click.option("--cycles", default=50_000, show_default=True, help="Swaps, over all GPUs together.")
@click.option("--rest", default=60.0, show_default=True, help="Seconds to watch the agent at rest.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(cycles: int, rest: float, as_json: bool) -> None:
    """Measure the agent at rest and over many swaps."""
    spec = ClusterSpec(
        nodes=("n1",),
        gpus=GpuSpec(count=GPUS, zero_copy=True),
        images=("toy",),
        services=frozenset({"extender", "webhook", "agent", "plugin"}),
        seats={"profiles": [PROFILE]},
        service_env={"agent": {"KYB_AGENT_MIN_RESIDENCY_S": "0", "KYB_AGENT_IDLE_AFTER_S": "0"}},
    )
    with running(spec, say) as cluster:
        _fill(cluster)
        idle = _at_rest(cluster, rest)
        soak = asyncio.run(_soak(cluster, cycles))
    beside = sidecar.measure(rest)
    idle["sidecar_rss_mib"] = (beside.rss_mib, "MiB")
    idle["sidecar_cpu_percent"] = (beside.cpu_percent, "% of a core")
    emit(
        "soak",
        {**idle, **soak.metrics()},
        {"name": "the first tenth of the same run"},
        as_json=as_json,
    )


def _fill(cluster: Cluster) -> None:
    pods = Pods(cluster.api())
    names = [f"m{number}" for number in range(GPUS * SEATS_PER_GPU)]
    for name in names:
        pods.create(SeatPod(name, bytes_="0", fill="0"))
    pods.wait(names, ready, 240, "Ready")


# --- at rest ----------------------------------------------------------------------------------


def _at_rest(cluster: Cluster, seconds: float) -> dict[str, tuple[float, str]]:
    time.sleep(10.0)
    agent = cluster.node("n1").agent.pid
    helpers = _children(agent)
    before, began = [cpu_seconds(agent), sum(map(cpu_seconds, helpers))], time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    own, theirs = cpu_seconds(agent) - before[0], sum(map(cpu_seconds, helpers)) - before[1]
    return {
        "agent_cpu_percent": (100 * own / took, "% of a core"),
        "agent_rss_mib": (memory_mib(agent), "MiB"),
        "helpers": (float(len(helpers)), "processes"),
        "helpers_cpu_percent": (100 * theirs / took, "% of a core"),
        "helpers_pss_mib": (sum(memory_mib(one, "Pss", "smaps_rollup") for one in helpers), "MiB"),
    }


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found + [one for child in found for one in _children(child)]


# --- swaps ------------------------------------------------------------------------------------


@dataclass
class Soak:
    """All that is seen while it runs. Times in seconds, in the order in which swaps ended."""

    times: list[float] = field(default_factory=list)
    sizes: list[tuple[float, int, int]] = field(default_factory=list)
    checked: int = 0
    seconds: float = 0.0

    def metrics(self) -> dict[str, tuple[float, str]]:
        """The figures."""
        tenth = max(1, len(self.times) // 10)
        first, last = self.times[:tenth], self.times[-tenth:]
        growth = [self._growth(which) for which in range(3)]
        return {
            "cycles": (float(len(self.times)), "swaps"),
            "cycles_per_s": (len(self.times) / self.seconds, "swaps/s"),
            "growth_ratio": (max(growth), "last tenth / first tenth"),
            "growth_memory_ratio": (growth[0], "last tenth / first tenth"),
            "growth_descriptors_ratio": (growth[1], "last tenth / first tenth"),
            "growth_threads_ratio": (growth[2], "last tenth / first tenth"),
            "p99_ratio": (percentile(last, 99) / percentile(first, 99), "last tenth / first tenth"),
            "p50_ms": (1000 * percentile(self.times, 50), "ms"),
            "p99_ms": (1000 * percentile(self.times, 99), "ms"),
            "checked": (float(self.checked), "answers"),
        }

    def _growth(self, which: int) -> float:
        tenth = max(1, len(self.sizes) // 10)
        values = [size[which] for size in self.sizes]
        return median(values[-tenth:]) / median(values[:tenth])


class Stream:
    """One stream to the agent, as a proxy keeps it. Seats are granted to it alone."""

    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:
        self._call = call
        self._one = asyncio.Lock()
        self._granted: dict[str, asyncio.Event] = {}
        self.seats: dict[str, pb.Seat] = {}
        self.answered: dict[str, int] = {}

    async def begin(self) -> None:
        """Say hello."""
        hello = pb.Hello(proxy=f"soak-{os.getpid()}", version=1)
        await self._write(pb.ProxyReport(hello=hello))

    async def _write(self, report: pb.ProxyReport) -> None:
        async with self._one:
            await self._call.write(report)

    async def read(self) -> None:
        """Obey orders, for ever."""
        while (order := await self._call.read()) is not grpc.aio.EOF:
            match order.WhichOneof("kind"):
                case "seat":
                    self.seats[order.seat.uid] = order.seat
                case "grant":
                    self._event(order.grant.uid).set()
                case "drain":
                    lease = order.drain
                    self._event(lease.uid).clear()
                    done = pb.Drained(uid=lease.uid, generation=lease.generation)
                    await self._write(pb.ProxyReport(drained=done))
                case "revoke":
                    self._event(order.revoke.uid).clear()
                case _:
                    pass
        raise SystemExit("the agent ended the stream")

    async def wake(self, uid: str) -> float:
        """Ask for a seat that is parked; the seconds until it is granted."""
        began = time.perf_counter()
        await self._demand(uid, waiting=1)
        await asyncio.wait_for(self._event(uid).wait(), LIMIT)
        took = time.perf_counter() - began
        self.answered[uid] = self.answered.get(uid, 0) + 1
        await self._demand(uid, waiting=0)
        return took

    async def _demand(self, uid: str, waiting: int) -> None:
        demand = pb.Demand(uid=uid, waiting=waiting, requests=self.answered.get(uid, 0))
        await self._write(pb.ProxyReport(demand=demand))

    def _event(self, uid: str) -> asyncio.Event:
        return self._granted.setdefault(uid, asyncio.Event())


async def _soak(cluster: Cluster, cycles: int) -> Soak:
    soak = Soak()
    async with _channel(cluster) as channel:
        stream = Stream(rpc.Stub(channel, agent_pb2.DESCRIPTOR, "NodeAgent").Serve())
        await stream.begin()
        reader = asyncio.create_task(stream.read())
        await asyncio.sleep(1.0)
        groups = _pairs(stream)
        began = time.perf_counter()
        work = [_swap(stream, soak, pair, cycles // len(groups)) for pair in groups]
        sampler = asyncio.create_task(_sample(cluster, soak))
        everything = asyncio.ensure_future(asyncio.gather(*work))
        ends: set[asyncio.Future[Any]] = {reader, everything}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if reader.done():
            reader.result()
        await everything
        soak.seconds = time.perf_counter() - began
        sampler.cancel()
        reader.cancel()
    return soak


def _channel(cluster: Cluster) -> grpc.aio.Channel:
    tls = cluster.layout.tls
    credentials = grpc.ssl_channel_credentials(
        *((tls / name).read_bytes() for name in ("ca.crt", "proxy.key", "proxy.crt"))
    )
    options = [("grpc.ssl_target_name_override", keys.agent_server_name("n1"))]
    return grpc.aio.secure_channel(cluster.node("n1").agent_address, credentials, options)


def _pairs(stream: Stream) -> list[tuple[str, str]]:
    """Two seats of each of the first GPUs."""
    groups: dict[str, list[str]] = {}
    for seat in stream.seats.values():
        groups.setdefault(seat.group, []).append(seat.uid)
    chosen = sorted(groups.items())[:SOAKED_GPUS]
    return [(uids[0], uids[1]) for _, uids in chosen]


async def _swap(stream: Stream, soak: Soak, pair: tuple[str, str], cycles: int) -> None:
    for uid in pair:
        await stream.wake(uid)
    for number in range(cycles):
        uid = pair[number % 2]
        soak.times.append(await stream.wake(uid))
        if number % CHECK_EVERY == 0:
            await asyncio.to_thread(_check, stream.seats[uid])
            soak.checked += 1
            say(f"{stream.seats[uid].group}: {number} of {cycles}")


def _check(seat: pb.Seat) -> None:
    """The workload answers: it runs, and nobody started it anew unseen."""
    answer = requests.get(f"http://{seat.address}/health", timeout=LIMIT)
    if answer.status_code != 200 or seat.generation < 1:
        raise SystemExit(f"{seat.pod} answered {answer.status_code}: {answer.text}")


async def _sample(cluster: Cluster, soak: Soak) -> None:
    pid = cluster.node("n1").agent.pid
    folder = Path(f"/proc/{pid}")
    while True:
        threads = line_of(pid, "Threads")
        soak.sizes.append((memory_mib(pid), len(list((folder / "fd").iterdir())), threads))
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    main()
