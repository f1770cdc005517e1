"""Seats that always want one GPU: is it held, do they get their shares, what do swaps take?

Training seats with weights share a simulated GPU on one node of a real cluster; each really has
64 MiB on it, which each swap copies out and in. Who held the GPU is read from the driver's own log,
what swaps took from the agent's metrics. With --servers, models on the same GPU are asked through
the proxy meanwhile; how long they take then says what a request waits for.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click
import requests
from prometheus_client.parser import text_string_to_metric_families

from bench.report import emit, percentile, say
from kybernate import keys
from tests.cluster import ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.cluster.spec import AGENT_PROBE_PORT
from tests.kit.clients.models import Models
from tests.kit.pods import Pods, SeatPod, ready
from tests.simgpu.log import Event, read_log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.report import Metrics
    from tests.cluster import Cluster
    from tests.simgpu.log import Record

MIB = 1 << 20
WEIGHTS = (1, 1, 2, 4)
SIZE, BESIDE, RESERVE = 64 * MIB, 32 * MIB, 16 * MIB
PAUSE = 15.0
"""Mean seconds between two requests to a server."""
START = 240.0
_HELD = "kyb_agent_turn_seconds_total"
_SWAPS = "kyb_agent_turn_swap_seconds_total"
_POLL = 0.05


@click.command()
@click.option("--seconds", default=600.0, show_default=True, help="How long they share the GPU.")
@click.option("--settle", default=120.0, show_default=True, help="Seconds from Ready to the look.")
@click.option("--servers", default=0, show_default=True, help="Models that are asked meanwhile.")
@click.option("--seed", default=1, show_default=True, help="When requests come.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(seconds: float, settle: float, servers: int, seed: int, *, as_json: bool) -> None:
    """Measure how seats that nobody calls share a GPU."""
    with running(_spec(), say) as cluster:
        uids = _fill(cluster, servers)
        asking = [_Asking(cluster, f"server{n}", seed + n) for n in range(servers)]
        time.sleep(settle)  # starts take turns, too: what they had is evened out
        try:
            before = _Counters.at_advance(cluster)
            for one in asking:
                one.start()
            time.sleep(seconds)
            after = _Counters.at_advance(cluster)
        finally:
            for one in asking:
                one.stop()
        records = read_log(cluster.node("n1").simgpu_root)
    waits = [wait for one in asking for wait in one.waits]
    metrics = figures(records, uids, before, after)
    if asking:
        metrics["request_p50_s"] = percentile(waits, 50), "s"
        metrics["request_p99_s"] = percentile(waits, 99), "s"
        metrics["requests"] = float(len(waits)), "requests"
    due = {"name": "shares by weight", "shares": [w / sum(WEIGHTS) for w in WEIGHTS]}
    emit("turns", metrics, due, as_json=as_json)
    if any(one.failed for one in asking):
        raise SystemExit("requests failed: " + "; ".join(f for one in asking for f in one.failed))


def _spec() -> ClusterSpec:
    profile = {"name": "1x", "resource": keys.seat_resource(1), "groupSize": 1, "seatsPerGroup": 16}
    return ClusterSpec(
        name="turns",
        nodes=("n1",),
        subnet="10.87.0.0/16",
        gpus=GpuSpec(count=1, memory=SIZE + 3 * BESIDE, scale=1),
        host_memory=None,
        images=("toy",),
        seats={"profiles": [profile]},
        service_env={
            "agent": {"KYB_AGENT_RESERVE_BYTES": str(RESERVE)},
            "extender": {"KYB_EXTENDER_RESERVE_BYTES": str(RESERVE)},
        },
    )


def _fill(cluster: Cluster, servers: int) -> list[str]:
    """All pods, Ready; the UIDs of the training seats in the order of `WEIGHTS`."""
    pods = Pods(cluster.api())
    turns = {f"training{n}": f"always,weight={weight}" for n, weight in enumerate(WEIGHTS)}
    turns |= {f"server{n}": "on-request" for n in range(servers)}
    for name, turn in turns.items():
        size, vram = str(SIZE), str(SIZE + BESIDE)
        pods.create(SeatPod(name, vram=vram, bytes_=size, fill=size, annotations={keys.TURN: turn}))
    found = pods.wait(turns, ready, START, "Ready")
    return [found[f"training{n}"]["metadata"]["uid"] for n in range(len(WEIGHTS))]


# --- what is seen -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Counters:
    """The agent's counters in seconds, and when it advanced them (monotonic)."""

    at: float
    held: float
    swaps: dict[str, float]

    @classmethod
    def at_advance(cls, cluster: Cluster) -> _Counters:
        """As of the next time that the agent brings them up to now."""
        first = cls._read(cluster)
        while (now := cls._read(cluster)).held == first.held:
            time.sleep(_POLL)
        return now

    @classmethod
    def _read(cls, cluster: Cluster) -> _Counters:
        url = f"http://{cluster.node('n1').ip}:{AGENT_PROBE_PORT}/metrics"
        held, swaps = 0.0, {"turn": 0.0, "request": 0.0}
        text = requests.get(url, timeout=10, proxies={"http": ""}).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _HELD:
                    held += sample.value
                elif sample.name == _SWAPS:
                    swaps[sample.labels["cause"]] = sample.value
        return cls(time.monotonic(), held, swaps)


@dataclass
class _Asking:
    """A client that asks one model now and then."""

    cluster: Cluster
    model: str
    seed: int
    waits: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Ask from now on."""
        self._thread = threading.Thread(target=self._run, name=self.model, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; waits for the answer that is under way."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        dice, models = random.Random(self.seed), Models(self.cluster.proxy_url)
        while not self._over.wait(dice.expovariate(1 / PAUSE)):
            answer = models.ask(self.model)
            if answer.status != 200 or not answer.intact:
                self.failed.append(f"{self.model} answered {answer.status}: {answer.body}")
            self.waits.append(answer.first_byte)
        models.close()


# --- what it comes to ---------------------------------------------------------------------------


def figures(
    records: Iterable[Record], uids: list[str], before: _Counters, after: _Counters
) -> Metrics:
    """Shares of the time between the two looks. `held_ratio`: the seats computed, by the agent;
    `driver_held_ratio`: anybody had memory of the GPU, by the driver."""
    took = after.at - before.at
    held = held_seconds(records, before.at, after.at)
    mine = [held.get(uid, 0.0) for uid in uids]
    total = sum(mine) or 1.0
    due = [weight / sum(WEIGHTS) for weight in WEIGHTS]
    off = [abs(got / total - share) for got, share in zip(mine, due, strict=True)]
    metrics: Metrics = {
        "held_ratio": ((after.held - before.held) / took, "of the time"),
        "driver_held_ratio": (sum(held.values()) / took, "of the time"),
        "share_error": (max(off), "of the time held"),
        "swap_share": ((after.swaps["turn"] - before.swaps["turn"]) / took, "of the time"),
        "request_swap_share": (
            (after.swaps["request"] - before.swaps["request"]) / took,
            "of the time",
        ),
        "seconds": (took, "s"),
    }
    for number, got in enumerate(mine):
        metrics[f"share_{number}"] = got / total, "of the time held"
    return metrics


def held_seconds(records: Iterable[Record], begin: float, end: float) -> dict[str, float]:
    """Seconds between the two times (monotonic) in which each pod had memory of a GPU."""
    held: dict[str, float] = defaultdict(float)
    has: dict[tuple[str, int, int], int] = {}
    at = begin
    for record in records:
        now = min(max(record.at_ns / 1e9, begin), end)
        for holder in {process[0] for process, size in has.items() if size}:
            held[holder] += now - at
        at = now
        process = (record.holder, record.pid, record.pidns)
        gone = record.event in {Event.CLOSE, Event.RECLAIM}
        has[process] = 0 if gone else record.held
    for holder in {process[0] for process, size in has.items() if size}:
        held[holder] += end - at
    return dict(held)


if __name__ == "__main__":
    main()
