"""The own controller of JobSet, LeaderWorkerSet or Kueue as a process beside a cluster, with its
CRDs and its webhooks in that cluster, as its module brings them."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import yaml

from bench.processes import free_port
from kybernate import keys
from kybernate.adapters.pki import Leaf, issue, make_authority
from kybernate.errors import KybernateError
from tests.cluster.processes.control import wait_until
from tests.cluster.start.readiness import answers
from tests.kit.gobuild import Program

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.cluster import Cluster

    Json = dict[str, Any]

_TOLD = "which owns pods, from source: two minutes or more"
_SLOWLY = "which starts jobs by quota, from source: ten minutes or more"
_FLAGS = ("-ldflags=-s -w",)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a controller is from: its `module`, where that has its CRDs and its webhooks, the API
    group and version of its configuration, and the `label` that only pods of its own have.

    `config` is more of its configuration, `hooked` the API groups whose webhooks it then serves, if
    not all, and `words` are of its command line. In `certificates` it wants one for its metrics,
    whatever its configuration says: it gets an /etc of its own, with its webhooks' one there.
    """

    program: Program
    module: str
    crd: str
    webhooks: str
    group: str
    label: str
    config: Mapping[str, object] = field(default_factory=dict)
    hooked: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    certificates: str = ""


SOURCES = {
    "jobset": Source(
        Program("jobset", "sigs.k8s.io/jobset", _TOLD, _FLAGS, beside="owners"),
        "sigs.k8s.io/jobset",
        "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
        "config/components/webhook/manifests.yaml",
        "config.jobset.x-k8s.io/v1alpha1",
        "jobset.sigs.k8s.io/jobset-name",
    ),
    "lws": Source(
        Program("lws", "sigs.k8s.io/lws/cmd", _TOLD, _FLAGS, beside="owners"),
        "sigs.k8s.io/lws",
        "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
        "config/webhook/manifests.yaml",
        "config.lws.x-k8s.io/v1alpha1",
        "leaderworkerset.sigs.k8s.io/name",
    ),
    "kueue": Source(
        Program("kueue", "sigs.k8s.io/kueue/cmd/kueue", _SLOWLY, _FLAGS),
        "sigs.k8s.io/kueue",
        "config/components/crd/bases",
        "config/components/webhook/manifests.yaml",
        "config.kueue.x-k8s.io/v1beta2",
        "kueue.x-k8s.io/queue-name",
        {"integrations": {"frameworks": ["batch/job"]}},
        frozenset({"batch", "kueue.x-k8s.io"}),
        ("--feature-gates=VisibilityOnDemand=false",),
        "/etc/kueue/metrics/certs",
    ),
}
_LIMIT = 60.0

QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
QUEUED = {"kueue.x-k8s.io/queue-name": "seats"}
"""The label of a Job that Kueue is to start once there is quota."""


def make_queue(cluster: Cluster) -> None:
    """Kueue's queue for Jobs of the namespace default, with quota for one seat of one GPU."""
    name = QUEUED["kueue.x-k8s.io/queue-name"]
    meta = {"apiVersion": QUEUES.removeprefix("/apis/"), "metadata": {"name": name}}
    quotas = [
        {"name": of, "nominalQuota": most}
        for of, most in (("cpu", "4"), ("memory", "64Gi"), (keys.seat_resource(1), "1"))
    ]
    groups = {
        "coveredResources": [one["name"] for one in quotas],
        "flavors": [{"name": name, "resources": quotas}],
    }
    whole = {"namespaceSelector": {}, "resourceGroups": [groups]}
    local = {**meta, "kind": "LocalQueue", "spec": {"clusterQueue": name}}
    api = cluster.api()
    api.post(f"{QUEUES}/resourceflavors", {**meta, "kind": "ResourceFlavor", "spec": {}})
    api.post(f"{QUEUES}/clusterqueues", {**meta, "kind": "ClusterQueue", "spec": whole})
    api.post(f"{QUEUES}/namespaces/default/localqueues", local)


class Owner:
    """The controller `name` (see `SOURCES`), until `close`. Raises KybernateError."""

    def __init__(self, cluster: Cluster, folder: Path, name: str) -> None:
        self._cluster, self._folder, self._name = cluster, folder, name
        self._source = SOURCES[name]
        self._command = self._source.program.ensure(print)
        module = self._source.program.module(self._source.module)
        self._port, self._health = free_port(), free_port()
        self._log = folder / "log"
        folder.mkdir()
        cluster.establish(module / self._source.crd)
        self._hooks = folder / "webhooks.yaml"
        self._hooks.write_text(yaml.safe_dump_all(self._webhooks(module, self._certified())))
        self._process = self._started()
        try:
            wait_until(self._ready, _LIMIT, f"{name}'s controller isn't ready; see {self._log}")
            cluster.kubectl("apply", "-f", str(self._hooks))
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Take its webhooks out of the way of other pods, and end it, also where the API server is
        gone; its CRD stays."""
        try:
            self._cluster.kubectl("delete", "--ignore-not-found", "-f", str(self._hooks))
        finally:
            self._end()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _certified(self) -> bytes:
        """The certificate of who has signed the webhooks' own."""
        now, day = datetime.now(UTC), timedelta(days=1)
        authority = make_authority(f"{self._name}-webhooks", day, now)
        leaf = issue(authority, Leaf(self._name, addresses=("127.0.0.1",), server=True), day, now)
        (self._folder / "tls.crt").write_bytes(leaf.certificate_pem)
        (self._folder / "tls.key").write_bytes(leaf.key_pem)
        return authority.certificate_pem

    def _webhooks(self, module: Path, authority: bytes) -> list[Json]:
        text = (module / self._source.webhooks).read_text()
        found: list[Json] = list(yaml.safe_load_all(text))
        for one in found:
            one["webhooks"] = [hook for hook in one["webhooks"] if self._serves(hook)]
            one["metadata"]["name"] = f"{self._name}-{one['kind'].lower()}"
            for hook in one["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {
                    "url": f"https://127.0.0.1:{self._port}{path}",
                    "caBundle": base64.b64encode(authority).decode(),
                }
                if hook["rules"][0]["resources"] == ["pods"]:
                    owned = {"key": self._source.label, "operator": "Exists"}
                    hook["objectSelector"] = {"matchExpressions": [owned]}
        return found

    def _serves(self, hook: Json) -> bool:
        hooked = self._source.hooked
        return not hooked or set(hook["rules"][0]["apiGroups"]) <= hooked

    def _started(self) -> subprocess.Popen[bytes]:
        config = {
            "apiVersion": self._source.group,
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "webhook": {
                "host": "127.0.0.1",
                "port": self._port,
                "certDir": str(self._folder),
            },
            **self._source.config,
        }
        file = self._folder / "config.yaml"
        file.write_text(yaml.safe_dump(config))
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*self._apart(), str(self._command), f"--config={file}", *self._source.words],
                env={**os.environ, "KUBECONFIG": str(self._cluster.kubeconfig)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _apart(self) -> list[str]:
        if not (folder := self._source.certificates):
            return []
        files = f"{self._folder}/tls.crt {self._folder}/tls.key"
        laid = f"mount -t tmpfs tmpfs /etc && mkdir -p {folder} && cp {files} {folder}"
        return ["unshare", "--mount", "sh", "-c", f'{laid} && exec "$0" "$@"']

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise KybernateError(f"{self._name} has ended:\n{self._log.read_text()[-2000:]}")
        return answers(f"http://127.0.0.1:{self._health}/readyz") and _listens(self._port)


def _listens(port: int) -> bool:
    with closing(socket.socket()) as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
