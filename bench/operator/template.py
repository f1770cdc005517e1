"""A pod that starts as a copy of a SnapshotTemplate's warmed-up pod, beside one that starts cold.

On a real kubelet: from the pod's creation to its first answer, in turn, a cold start and a copy.
`python` is the toy model server after two seconds of CPU in which Python compiles source code, as
the imports of a model server do; `llama` is llama.cpp's server, which loads a model.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click
import yaml

from bench.node.parkload import WORKLOADS, Workload
from bench.operator.site import ENTER, site
from bench.report import Metrics, emit, median, say, skip
from kybernate import keys
from kybernate.errors import KybernateError
from tests.cluster.processes.control import wait_until
from tests.kit.clients.served import Served
from tests.kit.pods import IMAGE, PORT, Pods, SeatPod

if TYPE_CHECKING:
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
    if not ENTER.exists():
        skip("operator.template", "it needs kyb-enter; run make native")
        return
    metrics: Metrics = {}
    try:
        with site("template", "10.89.0.0/16", ("toy", "llama"), nodes=1) as cluster:
            for one in workloads or ("python", "llama"):
                metrics |= measure(cluster, one, samples)
    except KybernateError as error:
        raise SystemExit(str(error)) from error
    known = {"name": "the same pod started cold, in turn", "imports_s": IMPORTS_S}
    emit("operator.template", metrics, known, as_json=as_json)


if __name__ == "__main__":
    main()
