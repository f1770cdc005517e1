"""A node that is cut off: all of it runs on, and nothing gets from it to the rest of the cluster.

Agents and kubelets of a one-machine cluster reach everybody on loopback, where nothing can be cut.
So those of one node take another way: a cable into a network namespace, behind which somebody
passes on what comes. The kernel drops what is sent while the cable is out, as it does on a machine
whose switch has failed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kybernate import keys
from kybernate.lib import netns
from tests.cluster.layout import REPOSITORY
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import AGENT_PORT
from tests.kit.node.cable import THERE, ip, lay_cable, take_cable

if TYPE_CHECKING:
    from tests.e2e.tiers.test_restores import Site

NAME = "kybcut"
_API = "kubernetes.default.svc"
_REGISTRY = f"{keys.CN_REGISTRY}.{keys.NAMESPACE}.svc"
"""Names that the certificates are for."""
_MOST = 1 << 16
_READY_S = 90.0


class Partition:
    """As a context: the node's agent and kubelet, and who calls that agent, go by a cable, which is
    in. Afterwards all is as it was."""

    def __init__(self, site: Site, node: str, folder: Path) -> None:
        self._site, self._node, self._folder = site, site.cluster.node(node), folder
        self._kubeconfig = site.cluster.layout.kubeconfig(f"node-{node}")
        self._before = self._kubeconfig.read_text()
        self._bridge = site.cluster.spec.bridge(node)
        self._relays: list[_Relay] = []

    def __enter__(self) -> Self:
        lay_cable(NAME)
        cluster = self._site.cluster
        api = self._passed_on("127.0.0.1", cluster.ports.apiserver)
        registry = self._passed_on("127.0.0.1", self._site.registry_port)
        agent = self._passed_on(self._node.ip, AGENT_PORT)
        hosts = self._folder / "hosts"
        hosts.write_text(f"{THERE} {_API} {_REGISTRY}\n{Path('/etc/hosts').read_text()}")
        assert not self._node.run("mount", "--bind", str(hosts), "/etc/hosts").returncode
        self._kubeconfig.write_text(_by_way_of(self._before, api))
        self._node.kubelet.restart()
        ours = self._folder / "agent.kubeconfig"
        ours.write_text(_by_way_of(cluster.layout.kubeconfig("agent").read_text(), api))
        told = {
            "KYB_AGENT_KUBECONFIG": str(ours),
            "KYB_AGENT_REGISTRY_URL": f"https://{_REGISTRY}:{registry}",
            "KYB_AGENT_ADVERTISE": f"{THERE}:{agent}",
        }
        cluster.restart_from(f"agent-{self._node.name}", REPOSITORY, told)
        return self

    def __exit__(self, *_: object) -> None:
        self._node.kubelet.signal(signal.SIGCONT)
        self.heal()
        self._kubeconfig.write_text(self._before)
        self._node.kubelet.restart()
        self._node.run("umount", "/etc/hosts")
        self._site.cluster.restart_from(f"agent-{self._node.name}", REPOSITORY)
        for relay in self._relays:
            relay.close()
        take_cable(NAME)
        wait_until(self.is_ready, _READY_S, "the node doesn't come back")

    def cut(self) -> None:
        """Nothing gets out, nothing in; nor to and from its pods."""
        ip("-n", NAME, "link", "set", "eth0", "down")
        ip("link", "set", self._bridge, "down")

    def heal(self) -> None:
        """All gets through again."""
        ip("link", "set", self._bridge, "up")
        ip("-n", NAME, "link", "set", "eth0", "up")

    def is_ready(self) -> bool:
        """Whether Kubernetes believes so of the node."""
        status = self._site.cluster.api().get(f"/api/v1/nodes/{self._node.name}")["status"]
        return any((c["type"], c["status"]) == ("Ready", "True") for c in status["conditions"])

    def _passed_on(self, host: str, port: int) -> int:
        """The port behind the cable that leads there."""
        relay = _Relay((host, port))
        self._relays.append(relay)
        return relay.port


def processes(uid: str) -> list[int]:
    """What runs of a pod, on whichever node."""
    found = []
    for cgroup in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            if uid in cgroup.read_text():
                found.append(int(cgroup.parent.name))
    return found


def workload(uid: str) -> list[int]:
    """Those of them that are its server."""
    found = []
    for pid in processes(uid):
        with suppress(OSError):
            if b"toy_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _by_way_of(kubeconfig: str, port: int) -> str:
    told = json.loads(kubeconfig)
    told["clusters"][0]["cluster"]["server"] = f"https://{_API}:{port}"
    return json.dumps(told)


class _Relay:
    """Listens behind the cable, and passes on what comes."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = netns.as_admin(_listen_behind)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Who is connected stays so until either side hangs up."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(near,), daemon=True).start()

    def _pass_on(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(self._target) as far:
            back = threading.Thread(target=partial(_pump, far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()


def _listen_behind() -> socket.socket:
    space = os.open(f"/run/netns/{NAME}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        netns.enter(space, "net")
        return socket.create_server((THERE, 0), backlog=128)
    finally:
        os.close(space)


def _pump(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while some := source.recv(_MOST):
            to.sendall(some)
    with suppress(OSError):
        to.shutdown(socket.SHUT_WR)
