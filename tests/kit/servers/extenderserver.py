"""The extender as a process, with its own account, and pods and nodes that are only objects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import requests
import yaml

from bench.processes import free_port
from kybernate import keys
from kybernate.adapters.pki import Folder, Validity
from kybernate.errors import NotFoundError
from tests.cluster.given import with_token
from tests.cluster.parts.accounts import token

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.cluster.given import GivenCluster

NAMESPACE = "kube-system"
"""Where the admission webhook is not asked: no webhook runs beside these tests."""

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ONE, TWO = keys.seat_resource(1), keys.seat_resource(2)
LIMIT_S = 60.0


def until(condition: Any, what: str, limit: float = LIMIT_S) -> Any:
    """Waits for a condition to give something true, and returns that."""
    deadline = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {limit:.0f} s: {what}"
        time.sleep(0.02)
    return found


class Extender:
    """A running extender and ways to call it."""

    def __init__(self, folder: Path, kubeconfig: Path, tls: Path, **settings: str) -> None:
        """`settings` are further ones, named as in the environment without their prefix."""
        self.tls = tls
        self._folder = folder
        self.port, self.probe_port = free_port(), free_port()
        self._environ = {
            **os.environ,
            "KYB_EXTENDER_LISTEN": f"127.0.0.1:{self.port}",
            "KYB_EXTENDER_PROBE_LISTEN": f"127.0.0.1:{self.probe_port}",
            "KYB_EXTENDER_KUBECONFIG": str(kubeconfig),
            "KYB_EXTENDER_TLS_DIR": str(self.tls),
            "KYB_EXTENDER_POLICY": "spread",
            **{f"KYB_EXTENDER_{name}": value for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def set(self, **settings: str) -> None:
        """Further settings for its next start."""
        self._environ |= {f"KYB_EXTENDER_{name}": value for name, value in settings.items()}

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        until(self._ready, "the extender is ready; see its log")

    def launch(self) -> None:
        """Start it."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "extender"],
                env=self._environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, *, kill: bool = False) -> int:
        """End it, and return its exit status. Killed, it gets no chance to clean up."""
        assert self._process is not None
        if kill:
            os.killpg(self._process.pid, 9)
        else:
            self._process.terminate()
        return self._process.wait(LIMIT_S)

    @property
    def pid(self) -> int:
        """Its process, whose group has no other member but its workers."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """All that it said since the first start."""
        return (self._folder / "log").read_text()

    def session(self, name: str = "scheduler") -> requests.Session:
        """A client that shows this certificate."""
        session = requests.Session()
        session.trust_env = False
        session.verify = str(self.tls / "ca.crt")
        session.cert = (str(self.tls / f"{name}.crt"), str(self.tls / f"{name}.key"))
        return session

    def post(self, verb: str, body: Any, name: str = "scheduler") -> requests.Response:
        """One call on a connection of its own."""
        with self.session(name) as session:
            return session.post(f"https://127.0.0.1:{self.port}/{verb}", json=body, timeout=LIMIT_S)

    def ask(self, verb: str, body: Any) -> Any:
        """The answer of a call that must be answered, once all that it needs has been listed:
        after a broken connection a list begins anew, and the scheduler asks again."""
        end = time.monotonic() + LIMIT_S
        while True:
            answer = self.post(f"v1/{verb}", body)
            listing = answer.status_code == 503 and "the first list of" in answer.text
            if not listing or time.monotonic() > end:
                break
            time.sleep(0.05)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def bind(self, pod: dict[str, Any], node: str, uid: str | None = None) -> str:
        """Bind a pod; the error, or the empty string."""
        meta = pod["metadata"]
        body = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": uid or meta["uid"],
            "Node": node,
        }
        return str(self.ask("bind", body)["Error"])

    def filter(self, pod: dict[str, Any], *nodes: str) -> dict[str, Any]:
        """The answer of filter for the pod with a wish: all that fit are offered, none is held."""
        wish: Any = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}
        asking = {**pod, "spec": {**pod["spec"], "affinity": wish}}
        return self.offer(asking, *nodes)

    def offer(self, pod: dict[str, Any], *nodes: str) -> dict[str, Any]:
        """The answer of filter."""
        answer: dict[str, Any] = self.ask("filter", {"Pod": pod, "NodeNames": list(nodes)})
        return answer

    def probe(self, path: str) -> requests.Response:
        """A call on the plain port."""
        return requests.get(f"http://127.0.0.1:{self.probe_port}/{path}", timeout=5)

    def answers(self, probe: str) -> bool:
        """Whether the probe is answered, and well."""
        with suppress(requests.ConnectionError):
            return self.probe(probe).ok
        return False

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        return self.answers("readyz")


class World:
    """What a test makes in the cluster, and takes away again."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._made: list[str] = []

    def node(self, seats: int = 2) -> str:
        """A node's GPUs: G0 and G1 with `seats` each, and G01 with one."""
        name = f"node-{uuid.uuid4().hex[:8]}"
        gpus = [f"GPU-{name}-{index}" for index in (0, 1)]
        groups = [("G0", ONE, gpus[:1], seats), ("G1", ONE, gpus[1:], seats), ("G01", TWO, gpus, 1)]
        body = {"apiVersion": keys.API_VERSION, "kind": "GPUNode", "metadata": {"name": name}}
        self._make(keys.GPU_NODES_PATH, body)
        status = {
            "gpus": [
                {"index": i, "uuid": u, "product": "H100", "memoryBytes": 80 << 30, "healthy": True}
                for i, u in enumerate(gpus)
            ],
            "links": [{"a": gpus[0], "b": gpus[1], "kind": "nvlink"}],
            "groups": [
                {"name": n, "resource": r, "gpus": g, "seats": s, "activeSlots": 1}
                for n, r, g, s in groups
            ],
        }
        self.api.patch(f"{keys.GPU_NODES_PATH}/{name}/status", {"status": status})
        return name

    def pod(
        self,
        resource: str | None = ONE,
        *,
        priority: str | None = None,
        scheduler: str = keys.SCHEDULER_NAME,
        cpu: str = "0",
        **notes: str,
    ) -> dict[str, Any]:
        """A pending pod. Annotations are named without their `kyb.ai/`."""
        limits = {resource: "1"} if resource else {}
        resources = {"limits": limits, "requests": {"cpu": cpu}}
        container = {"name": "model", "image": "none", "resources": resources}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"pod-{uuid.uuid4().hex[:8]}",
                "annotations": {f"kyb.ai/{key}": value for key, value in notes.items()},
            },
            "spec": {
                "schedulerName": scheduler,
                **({"priorityClassName": priority} if priority else {}),
                "automountServiceAccountToken": False,
                "containers": [container],
            },
        }
        return self._make(PODS, body)

    def again(self, pod: dict[str, Any]) -> dict[str, Any]:
        """A new pod like an old one, which must be gone, and of its name."""
        meta = pod["metadata"]
        kept = {"name": meta["name"], "annotations": meta.get("annotations", {})}
        spec = {**pod["spec"], "volumes": []}
        return self.api.post(PODS, {**pod, "metadata": kept, "spec": spec, "status": {}})

    def read(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The pod as it is now."""
        return self.api.get(f"{PODS}/{pod['metadata']['name']}")

    def group(self, pod: dict[str, Any]) -> str | None:
        """The group that was written into the pod."""
        found = self.read(pod)["metadata"].get("annotations", {}).get(keys.ASSIGNED_GROUP)
        return None if found is None else str(found)

    def make(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Any other object, which is taken away in the end."""
        return self._make(path, body)

    def delete(self, pod: dict[str, Any]) -> None:
        """Delete a pod at once."""
        with suppress(NotFoundError):
            self.api.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})

    def clear(self) -> None:
        """Take away all that was made."""
        for path in reversed(self._made):
            with suppress(NotFoundError):
                self.api.delete(path, {"gracePeriodSeconds": 0})

    def _make(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        made = self.api.post(path, body)
        self._made.append(f"{path}/{made['metadata']['name']}")
        return made


class Extenders:
    """Makes extenders, each with its own account's token."""

    def __init__(self, cluster: Cluster | GivenCluster, api: Api, folder: Path) -> None:
        self._kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text())
        self._token = token(api, "extender")
        self._folder = folder
        self.tls = folder / "tls"
        lasts = timedelta(days=1)
        validity = Validity(lasts, lasts, timedelta(hours=1))
        Folder(self.tls).init([], validity, datetime.now(UTC))

    def make(self, name: str, server: str | None = None, **settings: str) -> Extender:
        """One that isn't started yet; `server` is where it finds the API server, if elsewhere."""
        folder = self._folder / name
        folder.mkdir()
        mine = with_token(deepcopy(self._kubeconfig), self._token)
        if server:
            for entry in mine["clusters"]:
                entry["cluster"] = {**entry["cluster"], "server": server}
        (folder / "kubeconfig").write_text(json.dumps(mine))
        return Extender(folder, folder / "kubeconfig", self.tls, **settings)
