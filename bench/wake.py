"""What orchestration adds to a wake that must first park the group's other active seat.

Two empty models share one GPU of the zero-cost driver (nothing is copied; the journal is synced).
A sample is the time from a request through the proxy to its first byte while the *other* model is
active, less the same request to a model that is active already, both taken in turn.
"""

from __future__ import annotations

import time

import click

from bench.report import emit, median, percentile, say
from tests.cluster import Cluster, ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.kit.models import Models
from tests.kit.pods import Pods, SeatPod, ready

RESIDENCY = 0.05
"""Minimum residency in seconds: shorter than the pause between samples."""

PAUSE = 0.1


@click.command()
@click.option("--samples", default=200, show_default=True, help="Wakes to measure.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(samples: int, as_json: bool) -> None:
    """Measure the orchestration overhead of a wake."""
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
        waking, active = _measure(cluster, samples)
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


def _measure(cluster: Cluster, samples: int) -> tuple[list[float], list[float]]:
    names = ("left", "right")
    pods = Pods(cluster.api())
    for name in names:
        pods.create(SeatPod(name, bytes_="0", fill="0"))
    pods.wait(names, ready, 90, "Ready")
    models = Models(cluster.proxy_url)
    for name in names * 3:
        models.ask(name)
        time.sleep(PAUSE)
    waking, active = [], []
    for number in range(samples):
        name = names[number % 2]
        waking.append(_first_byte(models, name))
        time.sleep(PAUSE)
        active.append(_first_byte(models, name))
        time.sleep(PAUSE)
    return waking, active


def _first_byte(models: Models, name: str) -> float:
    answer = models.ask(name)
    if answer.status != 200 or not answer.intact:
        raise SystemExit(f"{name} answered {answer.status}: {answer.body}")
    return answer.first_byte


if __name__ == "__main__":
    main()
