"""A control plane, the webhook, the registry, an agent's door, an extender that plans, and replicas
of the controller. No scheduler, kubelet or controller of Kubernetes runs."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.processes import free_port
from bench.report import say
from kybernate import keys
from kybernate.errors import ConflictError
from tests.cluster import ClusterSpec
from tests.cluster.cluster import running
from tests.kit.servers.agentdoor import Door, serve
from tests.kit.servers.controllerserver import Controller
from tests.kit.servers.planner import Extender
from tests.kit.servers.registryserver import Server
from tests.kit.servers.webhookserver import Webhook

if TYPE_CHECKING:
    from collections.abc import Iterator

    import grpc

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster

    Json = dict[str, Any]

NODE = "n1"
LEASE = "kyb-controller"
POOL = {"pool": "bench"}
"""Labels of that node alone."""
GPU = {"index": 0, "uuid": "GPU-0", "product": "H100", "memoryBytes": 1, "healthy": True}
_OTHERS = tuple(f"busy{number}" for number in range(32))
_SPEC = ClusterSpec(
    name="operator",
    control_plane_only=True,
    controller_manager=False,
    services=frozenset(),
    nodes=(NODE, *_OTHERS),
)


class Plane:
    """All of it but the controllers, which `replica` makes."""

    def __init__(self, cluster: Cluster, folder: Path, server: Server) -> None:
        self.cluster = cluster
        self.api: Api = cluster.api()
        self.door = Door()
        self.extender = Extender(cluster.layout.tls)
        self.server = server
        self._folder = folder
        self._made: list[Controller] = []
        self._agents: list[grpc.Server] = []
        self._others = iter(_OTHERS)

    def replica(self, **settings: str) -> Controller:
        """A replica of the controller, which has not started."""
        here = {"registry_url": self.server.url, "extender": self.extender.url, "artifacts_s": "2"}
        one = Controller(self.cluster, self._folder, free_port(), LEASE, **{**here, **settings})
        self._made.append(one)
        return one

    def node(self, name: str, status: Json, labels: Json | None = None) -> None:
        """A node that is ready, whose agent is the door. `status`: what its GPUNode says besides
        the agent's address."""
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.api.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels or {}}})
        self.api.patch(f"/api/v1/nodes/{name}/status", {"status": ready})
        server, port = serve(self.door, self.cluster.layout.tls, name)
        self._agents.append(server)
        self.gpu_node(name, {**status, "agent": {"address": f"127.0.0.1:{port}", "version": "0"}})

    def another(self) -> str:
        """A node that nobody has used, with two groups of one GPU each; its name. Raises
        SystemExit if there is none left."""
        name = next(self._others, "")
        if not name:
            raise SystemExit(f"{len(_OTHERS)} nodes are not enough: take fewer --rounds")
        gpus = [{**GPU, "index": index, "uuid": f"GPU-{index}"} for index in range(2)]
        of_each = {"resource": keys.seat_resource(1), "seats": 4, "activeSlots": 1}
        groups = [{"name": f"G{n}", "gpus": [f"GPU-{n}"], **of_each} for n in range(2)]
        self.node(name, {"gpus": gpus, "groups": groups, "driver": {"version": "580.1"}})
        return name

    def gpu_node(self, name: str, status: Json) -> None:
        """Have a GPUNode say this."""
        kind = {"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND}
        with contextlib.suppress(ConflictError):
            self.api.post(keys.GPU_NODES_PATH, {**kind, "metadata": {"name": name}})
        told = {"status": {"observedGeneration": 1, **status}}
        self.cluster.api("agent").patch(f"{keys.GPU_NODES_PATH}/{name}/status", told)

    def namespace(self, name: str) -> None:
        """With the account that pods get."""
        for path, meta in (("", name), (f"/{name}/serviceaccounts", "default")):
            with contextlib.suppress(ConflictError):
                self.api.post(f"/api/v1/namespaces{path}", {"metadata": {"name": meta}})

    def close(self) -> None:
        """End what was started here."""
        for one in self._made:
            one.kill()
        self.extender.stop()
        for server in self._agents:
            server.stop(None).wait()


@contextlib.contextmanager
def plane() -> Iterator[Plane]:
    """All up, with the GPUNode of one node."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running(_SPEC, say))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = Server(
            cluster.layout.tls, folder / "registry.log", f"sqlite:///{folder}/registry.db"
        )
        stack.callback(server.stop)
        server.start()
        webhook = Webhook(cluster, folder)
        webhook.start()
        stack.callback(webhook.stop)
        up = Plane(cluster, folder, server)
        stack.callback(up.close)
        tiers = [{"name": "ram"}, {"name": "nvme"}, {"name": "object"}]
        told = {"gpus": [GPU], "driver": {"version": "580.1"}, "tiers": tiers}
        up.node(NODE, told, POOL)
        yield up


def until(true: Any, limit: float, otherwise: str) -> None:
    """Wait for it. Raises SystemExit with `otherwise` if it takes more than `limit` seconds."""
    end = time.monotonic() + limit
    while not true():
        if time.monotonic() > end:
            raise SystemExit(otherwise)
        time.sleep(0.05)
