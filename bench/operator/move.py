"""A pod that goes to another node by a plan that is approved, while somebody calls it all the time.

`kubectl kyb move` and `approve` on a real cluster, the client behind the proxy. The pause is the
longest time for which the client waits; its pre-copy has it wait once before, more shortly. Before
each move the same pod is put into the object store by its agent, fetched from there, and woken:
what a dump, a transfer and a restore take one after another (the baseline). All memory is new
before each, so that nothing of it is in the store; a second time all of it is (`known`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
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
_SERVER = """
import os, sys
from tests.workloads import toy_server
memory = [bytearray(os.urandom(1 << 20)) for _ in range({mib})]
complete = toy_server.Handler._complete
def renewed(self, request):
    for part in memory if request.get("renew") else ():
        part[:] = os.urandom(1 << 20)
    complete(self, request)
toy_server.Handler._complete = renewed
sys.argv[:] = ["toy", "--model=toy", "--port={port}", "--bytes=1GiB", "--fill=1MiB"]
toy_server.main()
"""


@dataclass(frozen=True, slots=True)
class Apart:
    """Seconds put away, fetched, woken."""

    away: float
    fetched: float
    woken: float

    @property
    def all(self) -> float:
        """One after another."""
        return self.away + self.fetched + self.woken


@dataclass(frozen=True, slots=True)
class Sample:
    """The two pauses of a move (s), and what it takes apart, with nothing and with all of it in the
    store."""

    pause: float
    before: float
    new: Apart
    known: Apart


class Caller:
    """Somebody who calls the model all the time, through the proxy. `waited`: the longest time for
    which an answer was waited for (s); `before`: the second longest; `wrong`: answers that a pod of
    before would not give."""

    def __init__(self, url: str) -> None:
        self._models = Models(url)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers, self.wrong, self._last = 0, 0, 0
        self.before = self.waited = 0.0

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
            self.before, self.waited = sorted((self.before, self.waited, found.seconds))[1:]
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

    def renew(self) -> None:
        """All its memory is other than before."""
        self._asked(renew=True)

    def apart(self) -> Apart:
        """To put it into the object store, to fetch it, and to its first answer then."""
        return Apart(self._parked("object"), self._parked("nvme"), self._asked())

    def _asked(self, *, renew: bool = False) -> float:
        """Seconds to its answer."""
        models = Models(self._cluster.proxy_url)
        answer = models.ask("toy", limit=LIMIT, renew=renew)
        models.close()
        if not (answer.status == 200 and answer.intact):
            raise SystemExit(f"it answers {answer.status}")
        return answer.seconds

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

    def move(self) -> tuple[float, float]:
        """To the other node; the two longest times for which a client waited (s)."""
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
        return caller.waited, caller.before

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
        moved.renew()
        new, known = moved.apart(), moved.apart()
        moved.renew()
        sample = Sample(*moved.move(), new, known)
        say(f"{number}: {sample}")
        if number:  # the first one fills caches
            found.append(sample)
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
    pause = median([one.pause for one in rounds])
    new, known = (
        median([one.new.all for one in rounds]),
        median([one.known.all for one in rounds]),
    )
    metrics = {
        "pause_ratio": (pause / new, "x"),
        "pause_ratio_known": (pause / known, "x"),
        "pause_p50_s": (pause, "s"),
        "precopy_pause_p50_s": (median([one.before for one in rounds]), "s"),
        "away_p50_s": (median([one.new.away for one in rounds]), "s"),
        "away_known_p50_s": (median([one.known.away for one in rounds]), "s"),
        "fetched_p50_s": (median([one.new.fetched for one in rounds]), "s"),
        "woken_p50_s": (median([one.new.woken for one in rounds]), "s"),
        "mib": (float(mib), "MiB"),
    }
    how = {"name": "into the object store and back, one after another", "limit": 0.8}
    emit("operator.move", metrics, how, as_json=as_json)


if __name__ == "__main__":
    main()
