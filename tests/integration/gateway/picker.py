"""The endpoint picker of the Gateway API's inference extension as a process, for one InferencePool
of an API server, and what an Envoy has to be told of it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import yaml

from bench.processes import free_port
from kybernate.errors import KybernateError
from tests.cluster.processes.control import wait_until
from tests.cluster.start.readiness import answers
from tests.kit.gobuild import Program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster import Cluster

    Json = dict[str, Any]

_MODULE = "sigs.k8s.io/gateway-api-inference-extension"
PICKER = Program(
    "epp",
    f"{_MODULE}/cmd/epp",
    "which picks endpoints for a gateway, from source: three minutes or more",
    ("-ldflags=-s -w",),
)
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
_CRDS = "config/crd/bases"
_LIMIT = 60.0


class Picker:
    """The picker of the InferencePool `pool`, whose pods have the label app=`pool` and listen on
    this port, with this EndpointPickerConfig and further flags; until `close`. Raises
    KybernateError."""

    def __init__(
        self, cluster: Cluster, folder: Path, pool: str, port: int, config: Json, *flags: str
    ) -> None:
        self.port, self._health, metrics = free_port(), free_port(), free_port()
        self.metrics = f"http://127.0.0.1:{metrics}/metrics"
        self.pool: Json = {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {"name": pool},
            "spec": {
                "selector": {"matchLabels": {"app": pool}},
                "targetPorts": [{"number": port}],
                "endpointPickerRef": {"name": pool, "port": {"number": self.port}},
            },
        }
        program, crds = PICKER.ensure(print), PICKER.module(_MODULE) / _CRDS
        cluster.establish(crds)
        cluster.api().post(POOLS, self.pool)
        (folder / "picker.yaml").write_text(yaml.safe_dump(config))
        self._log = folder / "picker.log"
        words = [
            *(f"--pool-name={pool}", "--pool-namespace=default", f"--grpc-port={self.port}"),
            *(f"--metrics-port={metrics}", "--metrics-endpoint-auth=false"),
            *(f"--grpc-health-port={self._health}", "--secure-serving=false"),
            f"--config-file={folder / 'picker.yaml'}",
            *flags,
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(program), *words],
                env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "NAMESPACE": "default"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._ready, _LIMIT, f"the picker isn't ready; see {self._log}")

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise KybernateError(f"the picker has ended:\n{self._log.read_text()[-2000:]}")
        return answers(self.metrics)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
