"""A pod that starts as a copy of a SnapshotTemplate's warmed-up pod, beside one that starts cold.

On a real kubelet: from the pod's creation to its first answer, in turn, a cold start and a copy.
`python` is the toy model server after two seconds of CPU in which Python compiles source code, as
the imports of a model server do; `llama` is llama.cpp's server, which loads a model.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from bench.node.parkload import WORKLOADS, Workload
from bench.report import Metrics, emit, median, say, skip
from images import criu
from kybernate import keys
from kybernate.errors import KybernateError
from tests.cluster import ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.layout import REPOSITORY, work_root
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import GpuSpec
from tests.kit.clients.served import Served
from tests.kit.pods import IMAGE, PORT, Pods, SeatPod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster import Cluster

    Body = dict[str, object]

LIMIT = 180.0
IMPORTS_S = 2.0
_SERVER = "tests.workloads.toy_server"
_IMPORTS = f"""
import runpy, sys, time
source = "\\n".join(f"def f{{n}}(a, b=2, *c): return [a + b * x for x in c]" for n in range(500))
while time.process_time() < {IMPORTS_S}: exec(compile(source, "a module", "exec"), {{}})
sys.argv[:] = ["toy", "--model=toy", "--port={PORT}", "--bytes=1GiB", "--fill=1MiB"]
runpy.run_module("{_SERVER}", run_name="__main__")
"""
_CHAT = {"model": "toy", "messages": [{"role": "user", "content": "hello"}]}
TEMPLATE = "bench"


def pod(workload: str, name: str, **notes: str) -> SeatPod:
    """Of one name or another, with the same container."""
    if workload == "python":
        more: Body = {"image": IMAGE, "args": ["-c", _IMPORTS]}
        return SeatPod(name, vram="1Gi", annotations=notes, more=more)
    known: Workload = WORKLOADS[workload]
    limits = {"memory": "3Gi", keys.seat_resource(1): "1"}
    more = {
        "image": known.image_name,
        "args": [],
        "ports": [{"containerPort": known.port}],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": limits},
    }
    return SeatPod(name, vram="1Gi", annotations=notes, more=more)


def asked(workload: str) -> tuple[int, str, Body]:
    """Port, path and body of the request that is answered once it serves."""
    if workload == "python":
        return PORT, "/v1/chat/completions", dict(_CHAT)
    return WORKLOADS[workload].port, "/completion", {"prompt": "a seat", "n_predict": 1}


@contextlib.contextmanager
def site() -> Iterator[Cluster]:
    """One node with a GPU and an object store."""
    engine = criu.for_this_machine(say)
    work_root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work_root()) as made:
        folder = Path(made)
        (folder / "objects").mkdir()
        words = [sys.executable, "-m", "kybernate.cli", "artifacts", "keys", "--dir"]
        subprocess.run([*words, str(folder / "keys")], check=True, cwd=REPOSITORY, timeout=60)
        agent = {
            "KYB_AGENT_CRIU": str(engine),
            "KYB_AGENT_KYB_ENTER": str(REPOSITORY / "build" / "kyb-enter"),
            "KYB_AGENT_ARTIFACT_KEYS": str(folder / "keys"),
            "KYB_AGENT_NVME_DIR": str(folder / "nvme"),
            "KYB_AGENT_OBJECT_STORE": str(folder / "objects"),
            "KYB_AGENT_TIER_RESIDENCY_S": "0",
        }
        spec = ClusterSpec(
            name="template",
            nodes=("n1",),
            subnet="10.89.0.0/16",
            gpus=GpuSpec(count=1),
            images=("toy", "llama", "sidecar"),
            service_env={"agent": agent},
        )
        with running(spec, say) as up:
            yield up


def first_answer(cluster: Cluster, workload: str, made: SeatPod) -> float:
    """Seconds from the creation of the pod to its first answer. It is gone afterwards."""
    pods, (port, path, body) = Pods(cluster.api()), asked(workload)
    began = time.monotonic()
    pods.create(made)
    while time.monotonic() < began + LIMIT:
        with contextlib.suppress(OSError):
            ip = str(pods.get(made.name)["status"].get("podIP") or "")
            if ip and Served(ip).http(path, port, body, limit=30).ok:
                seconds = time.monotonic() - began
                pods.delete([made.name])
                pods.gone([made.name], 60)
                return seconds
        time.sleep(0.02)
    raise SystemExit(f"{made.name} does not answer within {LIMIT:g} s\n{pods.story(made.name)}")


def make(cluster: Cluster, workload: str) -> float:
    """Have the template made; in how many seconds it was."""
    _, path, body = asked(workload)
    template = {
        "apiVersion": keys.API_VERSION,
        "kind": keys.SNAPSHOT_TEMPLATE_KIND,
        "metadata": {"name": TEMPLATE},
        "spec": {
            "template": {
                "metadata": {"annotations": {keys.VRAM: "1Gi"}},
                "spec": pod(workload, "any").manifest()["spec"],
            },
            "warmUp": [{"post": path, "body": body}],
        },
    }
    began = time.monotonic()
    cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(template))
    wait = f"--timeout={LIMIT:g}s"
    cluster.kubectl("wait", "--for=condition=Ready", wait, f"stpl/{TEMPLATE}", limit=LIMIT + 10)
    seconds = time.monotonic() - began
    wait_until(lambda: not Pods(cluster.api()).all(), 60, "the template's pod stays")
    return seconds


def measure(cluster: Cluster, workload: str, samples: int) -> Metrics:
    """Cold starts and copies, in turn."""
    made = make(cluster, workload)
    source = {keys.RESTORE_FROM: f"template/{TEMPLATE}", keys.RESTORE_ELSE: "fail"}
    cold, copies = [], []
    for number in range(samples):
        cold.append(first_answer(cluster, workload, pod(workload, f"cold-{number}")))
        warm = replace(pod(workload, f"copy-{number}"), annotations=source)
        copies.append(first_answer(cluster, workload, warm))
        say(f"{workload} {number + 1}: cold {cold[-1]:.2f} s, copy {copies[-1]:.2f} s")
    status = json.loads(cluster.kubectl("get", "stpl", TEMPLATE, "-o", "json"))["status"]
    cluster.kubectl("delete", "stpl", TEMPLATE)
    return {
        f"{workload}_cold_p50_s": (median(cold), "s"),
        f"{workload}_copy_p50_s": (median(copies), "s"),
        f"{workload}_ratio": (median(cold) / median(copies), "x"),
        f"{workload}_made_s": (made, "s"),
        f"{workload}_mib": (status["artifact"]["bytes"] / (1 << 20), "MiB"),
    }


@click.command()
@click.option("--workload", "workloads", multiple=True, type=click.Choice(("python", "llama")))
@click.option("--samples", default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(workloads: tuple[str, ...], samples: int, as_json: bool) -> None:
    """Measure first answers of copies against cold starts; of both workloads without --workload."""
    if not (REPOSITORY / "build" / "kyb-enter").exists():
        skip("template", "it needs kyb-enter; run make native")
        return
    metrics: Metrics = {}
    try:
        with site() as cluster:
            for one in workloads or ("python", "llama"):
                metrics |= measure(cluster, one, samples)
    except KybernateError as error:
        raise SystemExit(str(error)) from error
    known = {"name": "the same pod started cold, in turn", "imports_s": IMPORTS_S}
    emit("template", metrics, known, as_json=as_json)


if __name__ == "__main__":
    main()
