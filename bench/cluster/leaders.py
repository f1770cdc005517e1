"""A storm of binds while the leader of three extenders is killed again and again.

Each of 16 clients does what a kube-scheduler behind a Service does: filter over a sample of the
nodes, bind to one that passed, and after an error all of it again, perhaps at another replica.
Every group has a single seat, so that one pod too many shows. In the end the last leader's
ledger is compared with the API server, claim by claim.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import requests
import yaml

from bench.cluster import fleet
from bench.processes import free_port
from bench.report import emit, percentile, say
from kybernate import keys
from kybernate.adapters.k8s import Watcher
from kybernate.adapters.pki import Folder, Validity
from kybernate.core.views.dump import decode
from kybernate.errors import ConflictError
from tests.cluster import ClusterSpec
from tests.cluster.cluster import running
from tests.cluster.given import with_token
from tests.cluster.parts.accounts import token

if TYPE_CHECKING:
    from tests.cluster import Cluster

    Json = dict[str, Any]

NAMESPACE = "kube-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{keys.NAMESPACE}/leases"
LEASE = "kyb-extender"
RESOURCE = keys.seat_resource(1)
REPLICAS = 3
CLIENTS = 16
SAMPLE = 40
"""Nodes that a client asks about per filter."""

SPEC = ClusterSpec(
    name="kyblead", control_plane_only=True, controller_manager=False, services=frozenset()
)
LEASE_S = 3
CALL_S = 1.0
LIMIT_S = 60.0
"""Seconds without any progress after which the storm has failed."""


class Replica:
    """One extender as a process; ports stay the same over restarts."""

    def __init__(self, folder: Path, number: int, kubeconfig: Path) -> None:
        self.port, probe = free_port(), free_port()
        self.probe = f"http://127.0.0.1:{probe}"
        self._log = folder / f"extender-{number}.log"
        settings = {
            "LISTEN": f"127.0.0.1:{self.port}",
            "PROBE_LISTEN": f"127.0.0.1:{probe}",
            "KUBECONFIG": str(kubeconfig),
            "TLS_DIR": str(folder / "tls"),
            "LEASE": LEASE,
            "LEASE_S": str(LEASE_S),
            "API_TIMEOUT_S": str(CALL_S),
            "POLICY": "spread",
            "LOG_LEVEL": "ERROR",
        }
        ours = {f"KYB_EXTENDER_{name}": value for name, value in settings.items()}
        self._environ = {**os.environ, **ours}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and don't wait."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "extender"],
                env=self._environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL to it and its worker."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def leads(self) -> bool:
        """Whether it says that it leads."""
        with suppress(requests.RequestException):
            return (
                "kyb_extender_leading 1.0" in requests.get(f"{self.probe}/metrics", timeout=2).text
            )
        return False


class Clients:
    """What the schedulers do, and what they are told."""

    def __init__(self, replicas: list[Replica], tls: Path, nodes: list[str]) -> None:
        self.done: dict[str, str] = {}
        """Node by UID of the pods whose bind was called a success."""
        self.errors: Counter[str] = Counter()
        self.last = time.monotonic()
        self.mine = threading.local()
        self._clients = itertools.count()
        self._sessions: list[requests.Session] = []
        self.contradictions = 0
        self._replicas = replicas
        self._tls = tls
        self._nodes = nodes

    def place(self, pod: Json) -> None:
        """Bind a pod, however often it takes."""
        rng = random.Random(pod["metadata"]["uid"])
        while time.monotonic() - self.last < LIMIT_S:
            if self._attempt(pod, rng):
                return
            time.sleep(rng.uniform(0.02, 0.1))

    def ask(self, verb: str, body: Json) -> Json | None:
        """The answer of whoever answers; None for an error, after which another one is asked."""
        return self._call("POST", f"v1/{verb}", body)

    def dump(self) -> Json | None:
        """The leader's ledger, or None as for `ask`."""
        return self._call("GET", "dump", None)

    def _call(self, method: str, path: str, body: Json | None) -> Json | None:
        mine = self.mine
        if not hasattr(mine, "session"):
            mine.session = self._session()
            mine.random = random.Random(next(self._clients))
            mine.port = mine.random.choice(self._replicas).port
        url = f"https://127.0.0.1:{mine.port}/{path}"
        try:
            answer = mine.session.request(method, url, json=body, timeout=5 * CALL_S)
        except requests.RequestException as error:
            self.errors[type(error).__name__] += 1
        else:
            if answer.status_code == 200:
                found: Json = answer.json()
                return found
            self.errors[f"HTTP {answer.status_code}"] += 1
        mine.port = mine.random.choice(self._replicas).port
        return None

    def _attempt(self, pod: Json, rng: random.Random) -> bool:
        sample = rng.sample(self._nodes, min(SAMPLE, len(self._nodes)))
        found = self.ask("filter", {"Pod": pod, "NodeNames": sample})
        if not found or not found["NodeNames"]:
            return False
        meta, node = pod["metadata"], rng.choice(found["NodeNames"])
        body = {"PodName": meta["name"], "PodNamespace": NAMESPACE, "PodUID": meta["uid"]}
        answer = self.ask("bind", {**body, "Node": node})
        if answer is None:
            return False
        if "is bound to" in answer["Error"]:
            # As the scheduler would see by its own watch: an earlier bind was done after all.
            node = answer["Error"].partition("is bound to ")[2].split()[0]
        elif answer["Error"]:
            self.errors["refused"] += 1
            return False
        before = self.done.setdefault(meta["uid"], node)
        self.contradictions += before != node
        self.last = time.monotonic()
        return True

    def close(self) -> None:
        """Close the connections of all threads, which have ended."""
        while self._sessions:
            self._sessions.pop().close()

    def _session(self) -> requests.Session:
        session = requests.Session()
        self._sessions.append(session)
        session.trust_env = False
        session.verify = str(self._tls / "ca.crt")
        session.cert = (str(self._tls / "scheduler.crt"), str(self._tls / "scheduler.key"))
        return session


@click.command()
@click.option("--pods", default=1000, show_default=True, help="Pods to bind.")
@click.option("--kills", default=10, show_default=True, help="Leaders to kill meanwhile.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(pods: int, kills: int, as_json: bool) -> None:
    """Kill leaders during a storm of binds; count lost and doubly bound pods."""
    with running(SPEC, say) as cluster, tempfile.TemporaryDirectory() as folder:
        storm = Storm(cluster, Path(folder), pods)
        try:
            storm.run(kills)
            metrics = storm.figures()
        finally:
            storm.end()
    baseline = {"name": "none: the API server is the truth", "errors_met": storm.clients.errors}
    emit("leaders", metrics, baseline, as_json=as_json)


class Storm:
    """One run."""

    def __init__(self, cluster: Cluster, folder: Path, pods: int) -> None:
        self._api = cluster.api()
        self._bound: dict[str, set[str]] = {}
        self._recoveries: list[float] = []
        self._took = 0.0
        lasts = timedelta(days=1)
        Folder(folder / "tls").init([], Validity(lasts, lasts, timedelta(hours=1)), _now())
        kubeconfig = folder / "kubeconfig"
        mine = yaml.safe_load(cluster.kubeconfig.read_text())
        kubeconfig.write_text(json.dumps(with_token(mine, token(self._api, "extender"))))
        self.replicas = [Replica(folder, number, kubeconfig) for number in range(REPLICAS)]
        say(f"{pods} pods, and seats for a fifth more")
        self._nodes = [self._node(number) for number in range(-(-pods * 6 // 5 // fleet.GPUS))]
        self._pods = self._make_pods(pods)
        self.clients = Clients(self.replicas, folder / "tls", self._nodes)
        self._watch = Watcher(self._api, PODS, {}, self._note, "pods")

    def run(self, kills: int) -> None:
        """Bind all pods; kill the leader each time that another part of them is bound."""
        with suppress(ConflictError):
            self._api.post(LEASES, {"metadata": {"name": LEASE}})
        self._watch.start()
        for replica in self.replicas:
            replica.start()
        self._leader()
        began = self.clients.last = time.monotonic()
        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            killer = pool.submit(self._kill_leaders, kills)
            for pod in self._pods:
                pool.submit(self.clients.place, pod)
            killer.result()
        self._took = time.monotonic() - began

    def end(self) -> None:
        """End every process."""
        for replica in self.replicas:
            replica.kill()
        self._watch.stop()
        self.clients.close()
        self._api.close()

    def figures(self) -> dict[str, tuple[float, str]]:
        """What is true in the end, and what was said."""
        truth = {p["metadata"]["uid"]: p for p in self._api.get(PODS)["items"]}
        ours = [truth[pod["metadata"]["uid"]] for pod in self._pods]
        bound = [pod for pod in ours if pod["spec"].get("nodeName")]
        seats = Counter(map(_seat, bound))
        held = {(pod["metadata"]["uid"], *_seat(pod)) for pod in bound}
        twice = sum(len(nodes) > 1 for nodes in self._bound.values())
        wrong = sum(
            truth[uid]["spec"].get("nodeName") != node for uid, node in self.clients.done.items()
        )
        return {
            "lost": (float(sum(not pod["spec"].get("nodeName") for pod in ours)), "pods"),
            "double_bound": (float(twice + wrong + self.clients.contradictions), "pods"),
            "ledger_diff": (float(self._differences(held)), "claims"),
            "overfull_groups": (float(sum(count > 1 for count in seats.values())), "groups"),
            "pods": (float(len(self._pods)), "pods"),
            "kills": (float(len(self._recoveries)), "kills"),
            "recovery_p50_s": (percentile(self._recoveries, 50), "s"),
            "recovery_max_s": (max(self._recoveries), "s"),
            "storm_s": (self._took, "s"),
        }

    def _kill_leaders(self, kills: int) -> None:
        for number in range(kills):
            wanted = len(self._pods) * (number + 1) // (kills + 1)
            while len(self.clients.done) < wanted and self._moves():
                time.sleep(0.005)
            leader, began = self._leader(), time.monotonic()
            leader.kill()
            bound = len(self.clients.done)
            time.sleep(0.2)
            leader.start()
            while len(self.clients.done) <= bound + CLIENTS and self._moves():
                time.sleep(0.005)
            self._recoveries.append(time.monotonic() - began)
            say(f"kill {number + 1}: {bound} bound, again after {self._recoveries[-1]:.1f} s")

    def _moves(self) -> bool:
        return time.monotonic() - self.clients.last < LIMIT_S

    def _leader(self) -> Replica:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for replica in self.replicas:
                if replica.leads():
                    return replica
            time.sleep(0.02)
        raise SystemExit("no replica leads; see the extenders' logs")

    def _differences(self, held: set[tuple[str, str, str]]) -> int:
        """Claims of the last leader's ledger that aren't true, and true ones that it lacks."""
        deadline = time.monotonic() + LIMIT_S
        while (found := self.clients.dump()) is None:
            if time.monotonic() > deadline:
                raise SystemExit("no replica answers")
            time.sleep(0.05)
        claims = decode(found).claims
        return len({(one.pod.uid, one.node, str(one.group)) for one in claims} ^ held)

    def _note(self, _kind: str, item: Json) -> None:
        node = item["spec"].get("nodeName")
        if node:
            self._bound.setdefault(item["metadata"]["uid"], set()).add(f"{node}/{_seat(item)[1]}")

    def _node(self, number: int) -> str:
        made = fleet.gpu_node(number)
        name, groups = fleet.node_name(number), made["status"]["groups"]
        body = {"apiVersion": keys.API_VERSION, "kind": "GPUNode", "metadata": {"name": name}}
        with suppress(ConflictError):
            self._api.post(keys.GPU_NODES_PATH, body)
        single = [{**one, "seats": 1} for one in groups if one["resource"] == RESOURCE]
        status = {**made["status"], "groups": single}
        self._api.patch(f"{keys.GPU_NODES_PATH}/{name}/status", {"status": status})
        return name

    def _make_pods(self, count: int) -> list[Json]:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        with suppress(ConflictError):
            self._api.post(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
        with ThreadPoolExecutor(8) as pool:
            made = (_pod(f"storm-{number:04}") for number in range(count))
            return list(pool.map(lambda pod: self._api.post(PODS, pod), made))


def _pod(name: str) -> Json:
    container = {"name": "c", "image": "none", "resources": {"limits": {RESOURCE: "1"}}}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "schedulerName": keys.SCHEDULER_NAME,
            "automountServiceAccountToken": False,
            "containers": [container],
        },
    }


def _seat(pod: Json) -> tuple[str, str]:
    notes = pod["metadata"].get("annotations") or {}
    return pod["spec"]["nodeName"], notes.get(keys.ASSIGNED_GROUP, "")


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    main()
