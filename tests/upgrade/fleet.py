"""A cluster each part of which is of a release of its own, and can be replaced by another's."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.processes import free_port
from kybernate import keys
from kybernate.adapters.registry.client import Registry
from tests.cluster import Cluster, ClusterSpec, GpuSpec
from tests.cluster.cluster import running
from tests.cluster.processes.control import wait_until
from tests.cluster.processes.supervisor import ProcessSpec
from tests.cluster.start.readiness import answers
from tests.upgrade.versions import ORDER, version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.upgrade.versions import Version

NODE = "n1"
SUBNET = "10.116.0.0/16"
PROXY_WAITS_S = 1.0
"""Seconds for which a proxy goes on after the next one has taken its place."""
AGENT_LIMIT_S = 30.0
"""Seconds that `kybernate agent` may take."""

PARTS = (
    "webhook",
    "sidecar",
    "config",
    "registry",
    "extender",
    "plugin",
    "kyb-init",
    "agent",
    "proxy",
)
"""What can be of one release or the other, in the order in which an upgrade replaces them: see
docs/how-to/install/upgrade.md. kyb-init and sidecar are those that containers get from then on;
with the agent go its kyb-enter and CRIU, with `config` the definitions, policies and webhook
configurations."""

NEEDS = {"registry": ("config",)}
"""What has to be of the newer release before another part is: today's registry reads pods, which
its account may by today's `config/` only."""

_SEATS = {
    "profiles": [
        {"name": "1x", "resource": "kyb.ai/gpu-1x-seat", "groupSize": 1, "seatsPerGroup": 8}
    ]
}


@dataclass(slots=True)
class Fleet:
    """The cluster, the files that outlive its parts, and of which release each part is. `own_keys`:
    the node signs by its certificate's key and has those of namespaces from the registry, as all
    releases but the first one can."""

    cluster: Cluster
    folder: Path
    registry_port: int
    second_proxy: int
    own_keys: bool
    at: dict[str, str] = field(default_factory=dict)
    proxy_url: str = ""

    @property
    def node(self) -> str:
        """The name of the only node."""
        return NODE

    def of(self, part: str) -> Version:
        """The release of which this part is now."""
        return version(self.at[part])

    def put(self, part: str, release: str) -> None:
        """Have the part be of this release, and ready. Raises KybernateError."""
        if self.at[part] == release:
            return
        self.at[part] = release
        self._begin(part)

    def put_all(self, release: str) -> None:
        """Have all parts be of this release, with as few pauses as there can be."""
        changed = [part for part in PARTS if self.at[part] != release]
        self.at.update(dict.fromkeys(PARTS, release))
        if "webhook" in changed and "sidecar" in changed:
            changed.remove("sidecar")
        if "agent" in changed and "kyb-init" in changed:
            changed.remove("kyb-init")
        for part in changed:
            self._begin(part)

    def park(self, pod: str, tier: str) -> dict[str, Any]:
        """What the command of the agent's own release tells of parking the pod there."""
        socket = f"/proc/{self.cluster.node(NODE).pid}/root{keys.AGENT_SOCKET}"
        words = ("kybernate.cli", "agent", "--socket", socket, "park", pod, "--tier", tier)
        try:
            done = subprocess.run(
                [*self.of("agent").module(*words), "--json"],
                env=self.of("agent").environment,
                capture_output=True,
                text=True,
                timeout=AGENT_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            seat = self.seat(pod)
            return {"state": "unanswered", "why": f"{seat.get('state')}: {seat.get('reason')}"}
        if not done.stdout:
            return {"state": "unanswered", "why": done.stderr[-400:]}
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def seat(self, pod: str) -> dict[str, Any]:
        """What the node's status says of the pod's seat; {} if nothing."""
        status = self.cluster.api().get(f"{keys.GPU_NODES_PATH}/{NODE}").get("status") or {}
        found: dict[str, Any] = next((s for s in status.get("seats", ()) if s["pod"] == pod), {})
        return found

    def _begin(self, part: str) -> None:
        start = {
            "webhook": self._webhook,
            "sidecar": self._webhook,
            "config": self._config,
            "registry": self._registry,
            "extender": lambda: self._plain("extender"),
            "plugin": lambda: self._plain("plugin"),
            "kyb-init": self._agent,
            "agent": self._agent,
            "proxy": self._proxy,
        }
        start[part]()

    def _plain(self, part: str) -> None:
        name = f"{part}-{NODE}" if part == "plugin" else part
        self.cluster.restart_from(name, self.of(part).tree)

    def _webhook(self) -> None:
        sidecar = {"KYB_WEBHOOK_SIDECAR_IMAGE": self.of("sidecar").sidecar}
        self.cluster.restart_from("webhook", self.of("webhook").tree, sidecar)

    def _agent(self) -> None:
        tree = self.of("agent").tree
        self.cluster.restart_from(
            f"agent-{NODE}", tree, agent_programs(self.of("agent"), self.of("kyb-init"))
        )

    def _config(self) -> None:
        self.cluster.configure(_overlay(self.of("config")))

    def _registry(self) -> None:
        used, layout = self.of("registry"), self.cluster.layout
        settings = {
            "LISTEN": f"127.0.0.1:{self.registry_port}",
            "PROBE_LISTEN": f"127.0.0.1:{self.registry_port + 1}",
            "TLS_DIR": str(layout.tls),
            "DATABASE": f"sqlite:///{self.folder}/registry.db",
        }
        if self.own_keys:
            settings["WRAP_KEYS"] = str(self.folder / "keys")
        if used.knows("registry", "kubeconfig"):
            settings["KUBECONFIG"] = str(layout.kubeconfig("registry"))
        env = {f"KYB_REGISTRY_{name}": value for name, value in settings.items()}
        self._run("registry", used, env, f"http://127.0.0.1:{self.registry_port + 1}/readyz")

    def _proxy(self) -> None:
        """As its Deployment does: the new one is ready before the old one goes."""
        urls = (self.cluster.proxy_url, f"http://127.0.0.1:{self.second_proxy}")
        old, new = urls if self.proxy_url == urls[0] else urls[::-1]
        layout = self.cluster.layout
        env = {
            "KYB_PROXY_LISTEN": new.removeprefix("http://"),
            "KYB_PROXY_KUBECONFIG": str(layout.kubeconfig("proxy")),
            "KYB_PROXY_TLS_DIR": str(layout.tls),
        }
        names = {urls[0]: "proxy", urls[1]: "proxy-second"}
        self._run(names[new], self.of("proxy"), env, f"{new}/readyz")
        self.proxy_url = new
        time.sleep(PROXY_WAITS_S)
        self.cluster.process(names[old]).stop()

    def _run(self, name: str, used: Version, env: Mapping[str, str], ready: str) -> None:
        log = self.cluster.layout.logs / f"{name}.log"
        module = used.module(name.partition("-")[0])
        self.cluster.run(
            ProcessSpec(
                name=name,
                argv=tuple(module),
                env={**used.environment, "PYTHONUNBUFFERED": "1", **env},
                log=str(log),
                stop_limit=30.0,
            )
        )
        wait_until(lambda: answers(ready), 60, f"{name} isn't ready; see {log}")


def agent_programs(used: Version, init: Version) -> dict[str, str]:
    """The programs that the agent's image has."""
    return {
        "KYB_AGENT_KYB_INIT": str(init.kyb_init),
        "KYB_AGENT_KYB_ENTER": str(used.kyb_enter),
        "KYB_AGENT_CRIU": str(used.criu),
    }


def _overlay(used: Version) -> Path:
    return used.tree / "config" / "overlays" / "one-machine"


@contextmanager
def fleet(release: str, folder: Path) -> Iterator[Fleet]:
    """A cluster all of whose parts, certificates and keys are of this release."""
    used = version(release)
    # The registry's two, and the second proxy's.
    port = free_port(3)
    (folder / "objects").mkdir()
    used.command("artifacts", "keys", "--dir", str(folder / "keys"))
    (folder / "none").mkdir()
    own_keys = used.knows("registry", "signer_dir")
    agent = {
        "KYB_AGENT_ARTIFACT_KEYS": str(folder / ("none" if own_keys else "keys")),
        "KYB_AGENT_NVME_DIR": str(folder / "nvme"),
        "KYB_AGENT_OBJECT_STORE": str(folder / "objects"),
        "KYB_AGENT_TIER_RESIDENCY_S": "0",
        "KYB_AGENT_DUMP_RETRY_S": "5",
        "KYB_AGENT_REGISTRY_URL": f"https://127.0.0.1:{port}",
        **agent_programs(used, used),
    }
    spec = ClusterSpec(
        name="upg",
        nodes=(NODE,),
        subnet=SUBNET,
        gpus=GpuSpec(count=6),
        seats=_SEATS,
        images=("busybox", "toy", *(version(one).sidecar_image for one in ORDER)),
        overlay=_overlay(used),
        tree=used.tree,
        service_env={
            "agent": agent,
            "webhook": {"KYB_WEBHOOK_SIDECAR_IMAGE": used.sidecar},
        },
    )
    with running(spec, print) as up:
        parts = dict.fromkeys(PARTS, release)
        made = Fleet(up, folder, port, port + 2, own_keys, parts, up.proxy_url)
        made._begin("registry")
        tls = up.layout.tls
        Registry(f"https://127.0.0.1:{port}", tls, "controller").settle("a new registry")
        yield made
