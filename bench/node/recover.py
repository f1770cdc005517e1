"""How soon seats wake again after the node's agent was killed (-9), and that nothing else notices.

Ten models hold seats on two GPUs: two are active, eight parked. The agent is killed; a request to
a parked model is sent at once. A sample is the time from the kill to that request's answer, less
the time that the supervisor waited before it started the agent again.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from bench.report import emit, percentile, say
from tests.cluster import Cluster, ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.kit.clients.models import Models
from tests.kit.pods import Pods, SeatPod, ready

MODELS = tuple(f"m{number}" for number in range(10))


@click.command()
@click.option("--kills", default=10, show_default=True, help="How often the agent is killed.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(kills: int, as_json: bool) -> None:
    """Measure the agent's recovery."""
    profile = {"name": "1x", "resource": "kyb.ai/gpu-1x-seat", "groupSize": 1, "seatsPerGroup": 5}
    spec = ClusterSpec(
        nodes=("n1",), gpus=GpuSpec(count=2), images=("toy",), seats={"profiles": [profile]}
    )
    with running(spec, say) as cluster:
        samples, backoffs, disturbed = _measure(cluster, kills)
    metrics = {
        "recover_p50_s": (percentile(samples, 50), "s"),
        "recover_max_s": (max(samples), "s"),
        "disturbed": (float(disturbed), "processes"),
        "kills": (float(len(samples)), "kills"),
    }
    baseline = {
        "name": "the supervisor's wait before it starts the agent again, not counted",
        "p50_s": round(percentile(backoffs, 50), 3),
    }
    emit("recover", metrics, baseline, as_json=as_json)
    if disturbed:
        raise SystemExit(1)


def _measure(cluster: Cluster, kills: int) -> tuple[list[float], list[float], int]:
    pods = Pods(cluster.api())
    for name in MODELS:
        pods.create(SeatPod(name, bytes_="2GiB"))
    pods.wait(MODELS, ready, 120, "Ready")
    models = Models(cluster.proxy_url)
    counters = {name: models.ask(name).counter for name in MODELS}
    before = _processes(pods, cluster)
    samples, backoffs = [], []
    for number in range(kills):
        time.sleep(2.0)
        name = _parked(models, cluster)[number % 8]
        seconds, backoff = _kill(cluster, name, counters)
        say(f"kill {number + 1}: {name} answered after {seconds:.3f} s (+{backoff:.3f} s back-off)")
        samples.append(seconds)
        backoffs.append(backoff)
    for name in MODELS:
        answer = models.ask(name)
        if not answer.intact or answer.counter != counters[name] + 1:
            raise SystemExit(f"{name} lost state: {answer.body}")
    return samples, backoffs, len(before ^ _processes(pods, cluster))


def _kill(cluster: Cluster, name: str, counters: dict[str, int]) -> tuple[float, float]:
    agent = cluster.node("n1").agent
    starts = agent.starts
    killed = time.time()
    agent.kill9()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(Models(cluster.proxy_url).ask, name)
        while agent.starts == starts:
            time.sleep(0.005)
        backoff = agent.started_at - killed
        answer = asked.result()
        answered = time.time()
    counters[name] += 1
    if answer.status != 200 or not answer.intact or answer.counter != counters[name]:
        raise SystemExit(f"{name} answered {answer.status}: {answer.body}")
    return answered - killed - backoff, backoff


def _parked(models: Models, cluster: Cluster) -> list[str]:
    """The eight models that aren't active, as the node's status says."""
    status = cluster.api().get("/apis/kyb.ai/v1alpha1/gpunodes/n1")["status"]
    parked = sorted(seat["model"] for seat in status["seats"] if seat["state"] == "parked")
    if len(parked) != 8:
        time.sleep(1.0)
        return _parked(models, cluster)
    return parked


def _processes(pods: Pods, cluster: Cluster) -> set[str]:
    """Every container's ID and restart count, and every process of the node's pods."""
    found = set()
    for pod in pods.all().values():
        for status in pod["status"]["containerStatuses"]:
            found.add(f"{status['containerID']} {status['restartCount']}")
    cgroups = Path("/sys/fs/cgroup/freezer") / cluster.spec.cgroup("n1")
    for procs in cgroups.glob("**/kyb/cgroup.procs"):
        found.update(f"pid {pid}" for pid in procs.read_text().split())
    return found


if __name__ == "__main__":
    main()
