"""The cluster as tests, benches and the demo use it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bench.processes import port_taken
from images.cache import cache_root, file_lock
from kybernate.errors import ConfigError, KybernateError, NotFoundError
from tests.cluster.parts import accounts, services
from tests.cluster.processes.control import Process, Supervisor, log_tail, wait_until
from tests.cluster.processes.podprocess import PodProcess
from tests.cluster.processes.procs import resident_mib
from tests.cluster.start import bringup, preflight, readiness, teardown
from tests.cluster.start.state import State

from .layout import Layout, Progress, silent, work_root
from .spec import AGENT_PORT, NODE_SERVICES, ClusterSpec, GpuSpec, Ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kybernate.adapters.k8s import Api
    from tests.cluster.processes.supervisor import ProcessSpec

LOCK_LIMIT = 300.0
"""Seconds that `up` waits for another `up` or `down` of the same folder."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a running cluster."""

    name: str
    ip: str
    cluster: Cluster

    @property
    def agent(self) -> Process:
        """The node agent's process."""
        return self.cluster.process(f"agent-{self.name}")

    @property
    def plugin(self) -> Process:
        """The device plugin's process."""
        return self.cluster.process(f"plugin-{self.name}")

    @property
    def kubelet(self) -> Process:
        """The kubelet's process."""
        return self.cluster.process(f"kubelet-{self.name}")

    @property
    def agent_address(self) -> str:
        """host:port of the agent's mutual TLS API."""
        return f"{self.ip}:{AGENT_PORT}"

    @property
    def simgpu_root(self) -> Path:
        """The simulated driver's folder, as the host sees it."""
        return self.cluster.layout.node(self.name).simgpu

    @property
    def pid(self) -> int:
        """The PID of the node's PID 1, as the host sees it."""
        return self.cluster.process(f"node-{self.name}").pid

    def run(self, *argv: str, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Runs a command inside the node's mount and PID namespaces."""
        entry = ("nsenter", "-m", "-p", "-t", str(self.pid), "--")
        return subprocess.run(
            [*entry, *argv], capture_output=True, text=True, timeout=limit, check=False
        )


class Cluster:
    """A running one-machine cluster, made by `up` or found by `attach`."""

    def __init__(self, spec: ClusterSpec, layout: Layout) -> None:
        self.spec = spec
        self.layout = layout
        self._base = spec.port_base
        self._supervisor = Supervisor(layout)
        self._apis: dict[str, Api] = {}

    @classmethod
    def up(cls, spec: ClusterSpec | None = None, progress: Progress = silent) -> Cluster:
        """A fresh cluster; one that stands in the same folder, or what is left of it, goes first.

        Raises KybernateError if something is missing (all of it named) or doesn't come up; then
        nothing is left running, and the logs stay.
        """
        spec = spec or ClusterSpec()
        preflight.require(spec)
        cluster = cls(spec, layout_of(spec))
        layout = cluster.layout
        with file_lock(layout.work.with_name(f"{layout.work.name}.lock"), LOCK_LIMIT):
            if teardown.down(layout):
                progress("took down what was left of a former cluster")
            cluster._start(progress)
        return cluster

    @classmethod
    def attach(cls, spec: ClusterSpec | None = None) -> Cluster:
        """The running cluster of the spec's folder. Raises NotFoundError if there's none."""
        spec = spec or ClusterSpec()
        layout = layout_of(spec)
        state = State.read(layout.state_file)
        if state is None or state.supervisor is None or not state.supervisor.alive():
            raise NotFoundError(f"no cluster runs in {layout.work}; `make cluster` brings it up")
        return cls(_from_facts(spec, state.facts), layout)

    def down(self) -> None:
        """Ends and removes everything. Raises KybernateError naming what is left, if anything."""
        self._apis.clear()
        take_down(self.layout)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig("admin")

    @property
    def ports(self) -> Ports:
        """The cluster's ports on 127.0.0.1, known once it is up."""
        if self._base is None:
            raise NotFoundError("the cluster isn't up, so it has no ports yet")
        return Ports(self._base)

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://127.0.0.1:{self.ports.apiserver}"

    @property
    def proxy_url(self) -> str:
        """The proxy's URL, without a slash at its end."""
        return f"http://127.0.0.1:{self.ports.proxy}"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes."""
        return tuple(self.node(name) for name in self.spec.node_names)

    def node(self, name: str) -> Node:
        """One node. Raises NotFoundError."""
        if name not in self.spec.node_names:
            known = ", ".join(self.spec.node_names) or "none"
            raise NotFoundError(f"no node is named {name}; there are: {known}")
        return Node(name, self.spec.node_ip(name), self)

    def simgpu_root(self, node: str) -> Path:
        """The simulated driver's folder of a node, as the host sees it."""
        return self.node(node).simgpu_root

    def api(self, account: str = "admin") -> Api:
        """The Kubernetes API as admin, agent, extender, webhook, proxy or scheduler."""
        from kybernate.adapters.k8s import Api  # noqa: PLC0415 - the import takes 0.4 s

        if account not in self._apis:
            path = self.layout.kubeconfig(account)
            if not path.exists():
                raise NotFoundError(f"account {account} has no kubeconfig {path}")
            self._apis[account] = Api(path, f"one-machine-{account}")
        return self._apis[account]

    def kubectl(self, *arguments: str, text: str | None = None, limit: float = 60.0) -> str:
        """kubectl as administrator; `text` is its input. Raises KybernateError."""
        access = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.layout.kubectl_cache}"]
        argv = [str(self.kubectl_path), *access, *arguments]
        run = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=limit, check=False
        )
        if run.returncode:
            raise KybernateError(f"kubectl {' '.join(arguments[:3])} failed: {run.stderr.strip()}")
        return run.stdout

    def establish(self, crds: Path) -> None:
        """Apply these CRDs; they are served then. Raises KybernateError, DeadlineError."""
        established = ("--for=condition=Established", "-f", str(crds), "--timeout=30s")

        def served() -> bool:
            try:
                self.kubectl("wait", *established)
            except KybernateError as error:
                # Of one that has no conditions yet kubectl says so, and doesn't wait.
                if "conditions accessor error" not in str(error):
                    raise
                return False
            return True

        self.kubectl("apply", "--server-side", "-f", str(crds))
        wait_until(served, 30.0, f"{crds} is not served")

    @property
    def kubectl_path(self) -> Path:
        """The kubectl of the cluster's version."""
        state = State.read(self.layout.state_file)
        return Path(state.facts["kubectl"]) if state else Path("kubectl")

    def process(self, name: str) -> Process:
        """A process such as `agent-n1`, `extender`, `kubelet-n2` or `apiserver`."""
        service, _, node = name.partition("-")
        if self.spec.node_pods and service in NODE_SERVICES and node in self.spec.node_names:
            return self._pod_process(service, node)
        return self._supervisor.process(name)

    def _pod_process(self, service: str, node: str) -> PodProcess:
        logs = self.layout.node(node).root / "pod-logs"
        return PodProcess(service, node, self.spec.cgroup(node), logs, self.api)

    def processes(self) -> list[dict[str, Any]]:
        """The supervisor's status, with each process's resident memory in MiB."""
        rows = self._supervisor.status()
        if self.spec.node_pods:
            pods = [(one, node) for one in NODE_SERVICES for node in self.spec.node_names]
            rows += [self._pod_process(*one).info for one in pods]
        for row in rows:
            row["rss_mib"] = resident_mib(row["pid"]) if row["pid"] else 0
        return rows

    def restart_from(
        self, name: str, tree: Path, env: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Has a service, such as `agent-n1`, be of another tree, with this environment besides
        that of the spec; ends when it is ready. Raises KybernateError."""
        service = name.partition("-")[0]
        given = {**self.spec.service_env.get(service, {}), **env}
        spec = replace(self.spec, tree=tree, service_env={service: given})
        for one in services.services(spec, self.layout, self.ports):
            if one.process.name == name:
                self._supervisor.add(one.process)
                readiness.service(one)

    def run(self, process: ProcessSpec) -> None:
        """Has the supervisor run a process, in place of one of the same name."""
        self._supervisor.add(process)

    def configure(self, overlay: Path) -> None:
        """Applies another kustomize folder; what only the former one had stays."""
        spec = replace(self.spec, overlay=overlay)
        objects = accounts.render(self.kubectl_path, spec, self.layout, self.ports)
        accounts.apply(self.kubectl_path, self.layout, objects)

    def restart_kubelet(self, node: str) -> None:
        """Stops and starts a node's kubelet; containers go on."""
        self.node(node).kubelet.restart()

    def log(self, name: str, lines: int = 40) -> str:
        """The end of a process's log."""
        process = self.process(name) if self.spec.node_pods else None
        if isinstance(process, PodProcess) and process.log_file:
            return log_tail(process.log_file, lines)
        return log_tail(self.layout.logs / f"{name}.log", lines)

    def _choose_ports(self) -> int:
        """Those of the spec if they are free, else any. Raises ConfigError."""
        if self._base is None:
            return Ports.free(port_taken).base
        for port in Ports(self._base).all():
            if port_taken(port):
                raise ConfigError(
                    "port_base",
                    f"port {port} on 127.0.0.1 is taken by another process; end it, or choose "
                    "another base",
                )
        return self._base

    def _start(self, progress: Progress) -> None:
        made = bringup.make(self.spec, progress)
        self.layout.work.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.layout.logs, ignore_errors=True)
        state = State(self.layout.state_file)
        started = time.monotonic()
        # Another cluster, of any checkout, sees which ports are taken once servers listen there.
        with file_lock(cache_root() / "ports.lock", LOCK_LIMIT):
            self._base = self._choose_ports()
            state.facts = _facts(self.spec, self._base, made.binaries.path("kubectl"))
            state.write()
            try:
                placed = bringup.Placed(self.spec, self.layout, self.ports)
                bringup.Bringup(placed, state, made, progress).run()
            except BaseException:
                if not os.environ.get("KEEP"):
                    teardown.down(self.layout)
                raise
        progress(f"cluster up in {time.monotonic() - started:.1f} s")


def layout_of(spec: ClusterSpec) -> Layout:
    """The paths of the cluster that the spec describes."""
    return Layout(spec.work or work_root() / spec.name)


def take_down(layout: Layout) -> bool:
    """Takes down what runs in a folder; False if nothing did."""
    with file_lock(layout.work.with_name(f"{layout.work.name}.lock"), LOCK_LIMIT):
        return teardown.down(layout)


@contextmanager
def running(spec: ClusterSpec | None = None, progress: Progress = silent) -> Iterator[Cluster]:
    """A fresh cluster that is taken down afterwards, unless KEEP is set."""
    cluster = Cluster.up(spec, progress)
    try:
        yield cluster
    finally:
        if not os.environ.get("KEEP"):
            cluster.down()


def _facts(spec: ClusterSpec, port_base: int, kubectl: Path) -> dict[str, Any]:
    return {
        "kubectl": str(kubectl),
        "nodes": list(spec.nodes),
        "control_plane_only": spec.control_plane_only,
        "services": sorted(spec.services),
        "port_base": port_base,
        "subnet": spec.subnet,
        "gpus": asdict(spec.gpus),
        "host_memory": spec.host_memory,
        "node_pods": spec.node_pods,
    }


def _from_facts(spec: ClusterSpec, facts: dict[str, Any]) -> ClusterSpec:
    return ClusterSpec(
        name=spec.name,
        work=spec.work,
        nodes=tuple(facts["nodes"]),
        control_plane_only=facts["control_plane_only"],
        services=frozenset(facts["services"]),
        port_base=facts["port_base"],
        subnet=facts["subnet"],
        gpus=GpuSpec(**facts["gpus"]),
        host_memory=facts["host_memory"],
        node_pods=facts["node_pods"],
    )
