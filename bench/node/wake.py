"""What orchestration adds to a wake that must first park the group's other active seat.

Two empty models share one GPU of the zero-cost driver (nothing is copied; journal on a disk).
A sample is the time from a request through the proxy to its first byte while the *other* model is
active, less the same request to a model that is active already, both taken in turn.

With --connect a sample is a request on a new connection straight to the parked pod's address, from
before the connect to the first byte, and nothing is taken off; next to it, in turn, the same
request through the proxy. With --tier, too, the pod's seat is below RAM, and alone on its GPU
(`bench/node/wakebelow.py`).
"""

from __future__ import annotations

import time

import click

from bench.node import wakebelow
from bench.report import emit, median, percentile, say
from tests.cluster import Cluster, ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.kit.clients.direct import Direct
from tests.kit.clients.models import Answer, Models
from tests.kit.pods import Pods, SeatPod, ready

RESIDENCY = 0.05
"""Minimum residency in seconds: shorter than the pause between samples."""

PAUSE = 0.1
NAMES = ("left", "right")


@click.command()
@click.option("--samples", default=200, show_default=True, help="Wakes to measure.")
@click.option("--connect", is_flag=True, help="Requests to the pods themselves, by no proxy.")
@click.option(
    "--tier",
    type=click.Choice(["nvme", "object"]),
    help="With --connect: where the seat is parked; each of three servers SAMPLES/10 times.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(samples: int, connect: bool, tier: str | None, as_json: bool) -> None:
    """Measure the orchestration overhead of a wake."""
    if tier is not None:
        if not connect:
            raise click.UsageError("--tier goes with --connect: state both")
        wakebelow.measure(tier, max(1, samples // 10), as_json=as_json)
        return
    spec = ClusterSpec(
        nodes=("n1",),
        gpus=GpuSpec(count=1, zero_copy=True),
        images=("toy",),
        service_env={
            "agent": {
                "KYB_AGENT_MIN_RESIDENCY_S": str(RESIDENCY),
                "KYB_AGENT_IDLE_AFTER_S": str(RESIDENCY),
            }
        },
    )
    with running(spec, say) as cluster:
        if connect:
            _tell_connect(*_measure_connect(cluster, samples), as_json=as_json)
        else:
            _tell(*_measure(cluster, samples), as_json=as_json)


def _tell(waking: list[float], active: list[float], *, as_json: bool) -> None:
    base = median(active)
    overhead = [1000 * (value - base) for value in waking]
    metrics = {
        "overhead_p50_ms": (percentile(overhead, 50), "ms"),
        "overhead_p99_ms": (percentile(overhead, 99), "ms"),
        "active_p50_ms": (1000 * base, "ms"),
        "wake_p50_ms": (1000 * percentile(waking, 50), "ms"),
        "samples": (float(len(waking)), "wakes"),
    }
    baseline = {
        "name": "the same request to an active model",
        "p50_ms": round(1000 * base, 3),
        "p99_ms": round(1000 * percentile(active, 99), 3),
    }
    emit("wake", metrics, baseline, as_json=as_json)


def _tell_connect(straight: list[float], proxied: list[float], *, as_json: bool) -> None:
    metrics = {
        "connect_p50_ms": (1000 * percentile(straight, 50), "ms"),
        "connect_p99_ms": (1000 * percentile(straight, 99), "ms"),
        "samples": (float(len(straight)), "wakes"),
    }
    baseline = {
        "name": "the same request through the proxy",
        "p50_ms": round(1000 * percentile(proxied, 50), 3),
        "p99_ms": round(1000 * percentile(proxied, 99), 3),
    }
    emit("wake-connect", metrics, baseline, as_json=as_json)


def _measure(cluster: Cluster, samples: int) -> tuple[list[float], list[float]]:
    models = _prepare(cluster, Pods(cluster.api()))
    waking, active = [], []
    for number in range(samples):
        name = NAMES[number % 2]
        waking.append(_first_byte(models, name))
        time.sleep(PAUSE)
        active.append(_first_byte(models, name))
        time.sleep(PAUSE)
    return waking, active


def _measure_connect(cluster: Cluster, samples: int) -> tuple[list[float], list[float]]:
    """Each model in turn; two wakes straight, then two through the proxy."""
    pods = Pods(cluster.api())
    models = _prepare(cluster, pods)
    straight = {name: Direct.to(pods.get(name)) for name in NAMES}
    direct, proxied = [], []
    for _ in range((samples + 1) // 2):
        for name in NAMES:
            direct.append(_checked(name, straight[name].ask()))
            time.sleep(2 * PAUSE)
        for name in NAMES:
            proxied.append(_first_byte(models, name))
            time.sleep(2 * PAUSE)
    return direct, proxied


def _prepare(cluster: Cluster, pods: Pods) -> Models:
    """Both models up and asked a few times; `right` is active."""
    for name in NAMES:
        pods.create(SeatPod(name, bytes_="0", fill="0"))
    pods.wait(NAMES, ready, 90, "Ready")
    models = Models(cluster.proxy_url)
    for name in NAMES * 3:
        models.ask(name)
        time.sleep(PAUSE)
    return models


def _first_byte(models: Models, name: str) -> float:
    return _checked(name, models.ask(name))


def _checked(name: str, answer: Answer) -> float:
    if answer.status != 200 or not answer.intact:
        raise SystemExit(f"{name} answered {answer.status}: {answer.body}")
    return answer.first_byte


if __name__ == "__main__":
    main()
