"""A cluster on this machine whose agents have an object store, and a registry where pods go on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import say
from images import criu
from tests.cluster import ClusterSpec
from tests.cluster.cluster import layout_of, running
from tests.cluster.layout import REPOSITORY, work_root
from tests.cluster.spec import GpuSpec
from tests.kit.servers.registryserver import Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.cluster import Cluster

ENTER = REPOSITORY / "build" / "kyb-enter"


@contextlib.contextmanager
def site(name: str, subnet: str, images: tuple[str, ...], *, nodes: int) -> Iterator[Cluster]:
    """So many nodes with a GPU each. Of several there is a registry, too. Raises KybernateError."""
    engine = criu.for_this_machine(say)
    work_root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work_root()) as made:
        folder = Path(made)
        (folder / "objects").mkdir()
        words = [sys.executable, "-m", "kybernate.cli", "artifacts", "keys", "--dir"]
        subprocess.run([*words, str(folder / "keys")], check=True, cwd=REPOSITORY, timeout=60)
        agent = {
            "KYB_AGENT_CRIU": str(engine),
            "KYB_AGENT_KYB_ENTER": str(ENTER),
            "KYB_AGENT_ARTIFACT_KEYS": str(folder / "keys"),
            "KYB_AGENT_OBJECT_STORE": str(folder / "objects"),
            "KYB_AGENT_TIER_RESIDENCY_S": "0",
        }

        def spec(env: Mapping[str, Mapping[str, str]]) -> ClusterSpec:
            return ClusterSpec(
                name=name,
                nodes=tuple(f"n{number + 1}" for number in range(nodes)),
                subnet=subnet,
                gpus=GpuSpec(count=1),
                images=(*images, "sidecar"),
                service_env=env,
            )

        if nodes == 1:
            agent["KYB_AGENT_NVME_DIR"] = str(folder / "nvme")
            with running(spec({"agent": agent}), say) as up:
                yield up
            return
        layout = layout_of(spec({}))
        registry = Server(
            layout.tls,
            folder / "registry.log",
            f"sqlite:///{folder}/registry.db",
            CLUSTER="kubernetes",
            KUBECONFIG=str(layout.kubeconfig("registry")),
        )
        agent["KYB_AGENT_REGISTRY_URL"] = registry.url
        controller = {"KYB_CONTROLLER_REGISTRY_URL": registry.url}
        with running(spec({"agent": agent, "controller": controller}), say) as up:
            registry.start()
            try:
                registry.client().settle("a new registry")
                yield up
            finally:
                registry.stop()
