"""Agents as pods get certificates for their nodes' own keys, as soon as a registry signs."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.kit.pods import SeatPod, ready
from tests.kit.servers.registryserver import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e


@pytest.fixture
def registry(cluster: Cluster, tmp_path: Path) -> Iterator[Server]:
    """A registry that certifies agents."""
    tls, access = cluster.layout.tls, str(cluster.layout.kubeconfig("registry"))
    settings = {"CLUSTER": "kubernetes", "KUBECONFIG": access, "SIGNER_DIR": str(tls)}
    database = f"sqlite:///{tmp_path}/registry.db"
    made = Server(tls, tmp_path / "registry.log", database, **settings)
    made.start()
    yield made
    made.kill()


def is_own(cluster: Cluster, node: str) -> bool:
    """Whether what the agent of this node shows at its door is for the node's own key."""
    status = cluster.api().get(f"{keys.GPU_NODES_PATH}/{node}")["status"]
    host, _, port = status["agent"]["address"].rpartition(":")
    found = ssl.get_server_certificate((host, int(port)), timeout=5)
    certificate = x509.load_pem_x509_certificate(found.encode())
    return certificate.issuer.rfc4514_string() == f"CN={keys.CN_AGENTS}"


def test_each_node_gets_a_certificate_for_its_own_key(
    cluster: Cluster, registry: Server, pods: Pods, models: Models
) -> None:
    pods.create(SeatPod("own-keys"))
    pods.wait(["own-keys"], ready, 60, "Ready")
    for node in cluster.nodes:
        file = Path(f"/proc/{node.pid}/root/var/lib/kyb/identity/agent.pem")
        wait_until(file.exists, 60, f"node {node.name} has no certificate")
        wait_until(partial(is_own, cluster, node.name), 10, f"node {node.name} shows another")
    # The proxy's stream goes on.
    assert models.ask("own-keys").status == 200
