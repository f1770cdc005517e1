"""A pod that goes to another node by a plan that is approved, while somebody calls it all the time.

`kubectl kyb move` and `approve` on a real cluster, the client behind the proxy. The pause is the
longest time for which the client waits. Before each move the same pod is put into the object store
by its agent, fetched from there, and woken: what a dump, a transfer and a restore take one after
another (the baseline).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench import hostmemory
from bench.operator.site import ENTER, site
from bench.report import emit, median, say, skip
from kybernate import keys
from kybernate.errors import KybernateError
from tests.cluster.processes.control import wait_until
from tests.kit.clients.kubectl import Kubectl
from tests.kit.clients.models import Models
from tests.kit.pods import IMAGE, PORT, Pods, SeatPod, ready

if TYPE_CHECKING:
    from tests.cluster import Cluster

    Json = dict[str, Any]

LIMIT = 300.0
APPS = "/apis/apps/v1/namespaces/default/deployments"
RBAL = f"/apis/{keys.API_VERSION}/namespaces/default/rebalancerequests"
LABELS = {"app": "moved"}
Sample = tuple[float, float, float, float]
"""Seconds put away, fetched, woken, and the pause of a move."""
_SERVER = """
import os, runpy, sys
memory = [os.urandom(1 << 20) for _ in range({mib})]
sys.argv[:] = ["toy", "--model=toy", "--port={port}", "--bytes=1GiB", "--fill=1MiB"]
runpy.run_module("tests.workloads.toy_server", run_name="__main__")
"""


class Caller:
    """Somebody who calls the model all the time, through the proxy. `waited`: the longest time for
    which an answer was waited for (s); `wrong`: answers that a pod of before would not give."""

    def __init__(self, url: str) -> None:
        self._models = Models(url)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers, self.wrong, self.waited, self._last = 0, 0, 0.0, 0

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LIMIT)
        self._models.close()

    def _run(self) -> None:
        while not self._over.is_set():
            found = self._models.ask("toy", limit=LIMIT)
            right = (
                found.status == 200
                and found.intact
                and found.counter == (self._last or found.counter - 1) + 1
            )
            self._last = found.counter if found.status == 200 else 0
            self.answers, self.wrong = self.answers + 1, self.wrong + (not right)
            self.waited = max(self.waited, found.seconds)
            self._over.wait(0.01)


class Moved:
    """The pod of a Deployment, whose process has `mib` MiB of random memory."""

    def __init__(self, cluster: Cluster, folder: Path, mib: int) -> None:
        self._cluster, self._api = cluster, cluster.api()
        self._kubectl = Kubectl(cluster.kubectl_path, folder, cluster.kubeconfig)
        self._pods = Pods(self._api)
        limits = {"memory": f"{mib + 1024}Mi", keys.seat_resource(1): "1"}
        more = {
            "image": IMAGE,
            "args": ["-c", _SERVER.format(mib=mib, port=PORT)],
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": limits},
        }
        made = SeatPod("toy", vram="1Gi", more=more).manifest()
        meta = {**made["metadata"], "labels": {**made["metadata"]["labels"], **LABELS}}
        del meta["name"]
        template = {"metadata": meta, "spec": made["spec"]}
        spec = {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template}
        self._api.post(APPS, {"metadata": {"name": "moved"}, "spec": spec})
        self.pod = self._serving("")

    def _serving(self, but: str) -> Json:
        """The only pod, once it is Ready and not the one of this UID."""
        found: list[Json] = []

        def there() -> bool:
            found[:] = [p for p in self._pods.all().values() if p["metadata"]["uid"] != but]
            return len(found) == 1 and ready(found[0])

        wait_until(there, LIMIT, "no pod serves")
        return found[0]

    def apart(self) -> tuple[float, float, float]:
        """Seconds to put it into the object store, to fetch it, and to its first answer then."""
        away, fetched = self._parked("object"), self._parked("nvme")
        models = Models(self._cluster.proxy_url)
        answer = models.ask("toy", limit=LIMIT)
        models.close()
        if not (answer.status == 200 and answer.intact):
            raise SystemExit(f"it answers {answer.status} after it was woken")
        return away, fetched, answer.seconds

    def _parked(self, tier: str) -> float:
        """Seconds until it is parked there."""
        name, node = self.pod["metadata"]["name"], self.pod["spec"]["nodeName"]
        socket = f"/proc/{self._cluster.node(node).pid}/root{keys.AGENT_SOCKET}"
        words = [sys.executable, "-m", "kybernate.cli", "agent", "--socket", socket, "park", name]
        done = subprocess.run(
            [*words, "--tier", tier, "--json"],
            capture_output=True, text=True, timeout=LIMIT, check=True,
        )  # fmt: skip
        found = json.loads(done.stdout)
        return float(found["ended_at"]) - float(found["created_at"])

    def move(self) -> float:
        """To the other node; the longest time for which a client waited (s)."""
        name, uid, node = (
            *(self.pod["metadata"][one] for one in ("name", "uid")),
            self.pod["spec"]["nodeName"],
        )
        other = "n2" if node == "n1" else "n1"
        with Caller(self._cluster.proxy_url) as caller:
            wait_until(lambda: caller.answers > 3, LIMIT, "nobody answers")
            self._said("move", name, "--to", other)
            (asked,) = self._api.get(RBAL)["items"]
            self._said("approve", asked["metadata"]["name"])
            since = caller.answers
            wait_until(lambda: caller.answers > since + 10, LIMIT, "nobody answers any more")
        self._api.delete(f"{RBAL}/{asked['metadata']['name']}")
        self.pod = self._serving(uid)
        if caller.wrong or self.pod["spec"]["nodeName"] != other:
            raise SystemExit(f"{caller.wrong} of {caller.answers} answers are wrong")
        return caller.waited

    def _said(self, *words: str) -> None:
        done = self._kubectl("kyb", *words, "--timeout", "80s")
        if done.returncode:
            told = self._cluster.kubectl("get", "rbal,ckpt,pods", "-o", "yaml")
            raise SystemExit(f"kubectl kyb {' '.join(words)}: {done.stdout}{done.stderr}\n{told}")
        say(done.stdout.strip())


def measure(cluster: Cluster, folder: Path, mib: int, samples: int) -> list[Sample]:
    """Moves of one pod."""
    moved = Moved(cluster, folder, mib)
    found: list[Sample] = []
    for number in range(samples + 1):
        away, fetched, woken = moved.apart()
        pause = moved.move()
        apart = f"put away {away:.2f} s, fetched {fetched:.2f} s, woken {woken:.2f} s"
        say(f"{number}: {apart}, moved {pause:.2f} s")
        if number:  # the first one fills caches
            found.append((away, fetched, woken, pause))
        time.sleep(1.0)
    return found


@click.command()
@click.option("--mib", default=1024, show_default=True, help="Memory of the workload.")
@click.option("--samples", default=3, show_default=True, help="Moves.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(mib: int, samples: int, as_json: bool) -> None:
    """Measure the pause of a move through the operator."""
    if not ENTER.exists():
        skip("operator.move", "it needs kyb-enter; run make native")
        return
    try:
        with (
            hostmemory.kept(mib),
            tempfile.TemporaryDirectory() as folder,
            site("opmove", "10.97.0.0/16", ("toy",), nodes=2) as cluster,
        ):
            rounds = measure(cluster, Path(folder), mib, samples)
    except KybernateError as error:
        raise SystemExit(str(error)) from error
    away, fetched, woken, pause = (median([one[at] for one in rounds]) for at in range(4))
    metrics = {
        "pause_ratio": (pause / (away + fetched + woken), "x"),
        "pause_p50_s": (pause, "s"),
        "away_p50_s": (away, "s"),
        "fetched_p50_s": (fetched, "s"),
        "woken_p50_s": (woken, "s"),
        "mib": (float(mib), "MiB"),
    }
    known = {"name": "into the object store and back, one after another", "limit": 0.8}
    emit("operator.move", metrics, known, as_json=as_json)


if __name__ == "__main__":
    main()
