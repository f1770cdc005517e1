"""Bringing a cluster up, step by step. What can go side by side does."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kybernate import keys
from kybernate.errors import ConfigError, KybernateError

from . import accounts, binaries, configs, host, images, pki, prefix, services
from .control import Supervisor, log_tail, wait_until
from .layout import REPOSITORY
from .nodes import READY_LIMIT, NodeBuilder
from .spec import NODE_SERVICES, Ports
from .supervisor import ProcessSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.adapters.k8s import Api

    from .layout import Layout, Progress
    from .spec import ClusterSpec
    from .state import State

SIGKILL = 9


@dataclass(frozen=True, slots=True)
class Made:
    """What must be built before anything starts."""

    binaries: binaries.Binaries
    tools: prefix.Toolbox | None
    images: list[images.Image]
    simgpu: Path | None


def make(spec: ClusterSpec, progress: Progress) -> Made:
    """Builds or fetches what the cluster needs and the cache lacks."""
    if spec.control_plane_only:
        return Made(binaries.ensure(binaries.CONTROL_PLANE, progress), None, [], None)
    tools = prefix.ensure(progress)
    built = images.build(["pause", *spec.images], progress)
    return Made(tools.binaries, tools, built, _simgpu() if spec.gpus.count else None)


def _simgpu() -> Path:
    from tests.simgpu import build  # noqa: PLC0415 - a control plane alone needs no driver

    return build(services.SIMGPU_BUILD)


class Bringup:
    """One run of `up`. The cluster's folder is empty when it starts."""

    def __init__(
        self, spec: ClusterSpec, layout: Layout, state: State, made: Made, progress: Progress
    ) -> None:
        self._spec = spec
        self._layout = layout
        self._state = state
        self._made = made
        self._progress = progress
        self._ports = Ports(spec.port_base)
        self._supervisor = Supervisor(layout)
        self._server = f"https://127.0.0.1:{self._ports.apiserver}"

    def run(self) -> None:
        """Everything, until all that was asked for is ready. Raises KybernateError."""
        self._check_ports()
        self._folders()
        self._state.supervisor = self._supervisor.launch()
        self._state.write()
        self._control_plane_identity()
        self._add("etcd", configs.etcd)
        self._add("apiserver", configs.apiserver)
        with ThreadPoolExecutor(max_workers=4) as pool:
            runtimes = self._start_nodes(pool)
            self._wait_apiserver()
            self._progress("API server ready")
            if self._spec.controller_manager:
                self._add("controller-manager", configs.controller_manager)
            self._objects()
            self._start_services(node_part=False)
            for name, runtime in runtimes.items():
                runtime.result()
                NodeBuilder.start_kubelet(self._builder(), name)
            if runtimes:
                self._progress(f"containerd ready on {', '.join(runtimes)}")
            self._start_services(node_part=True)
        self._wait_ready()

    def _check_ports(self) -> None:
        for port in self._ports.all():
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError as error:
                    raise ConfigError(
                        "port_base",
                        f"port {port} on 127.0.0.1 is taken by another process; end it, or "
                        "choose another base with --port-base",
                    ) from error

    def _folders(self) -> None:
        layout = self._layout
        for folder in (layout.pki, layout.kubeconfigs, layout.configs, layout.logs):
            folder.mkdir(parents=True, exist_ok=True)
        (layout.configs / "resolv.conf").write_text("nameserver 127.0.0.1\n")

    def _control_plane_identity(self) -> None:
        layout = self._layout
        authority = pki.Authority(layout.pki)
        authority.service_account_keys()
        for identity in pki.identities(self._spec.node_names):
            authority.issue(identity)
            user = pki.certificate_user(layout.pki, identity.file)
            text = pki.kubeconfig(self._server, layout.pki / "ca.crt", user)
            accounts.write_secret(layout.kubeconfig(identity.file), text)

    def _add(self, name: str, argv: Callable[..., list[str]]) -> None:
        self._supervisor.add(
            ProcessSpec(
                name=name,
                argv=tuple(argv(self._made.binaries, self._layout, self._ports)),
                log=str(self._layout.logs / f"{name}.log"),
                stop_signal=SIGKILL if name == "apiserver" else 15,
            )
        )

    def _wait_apiserver(self) -> None:
        context = ssl.create_default_context(cafile=str(self._layout.pki / "ca.crt"))
        admin = self._layout.pki / "admin"
        context.load_cert_chain(f"{admin}.crt", f"{admin}.key")
        log = self._layout.logs / "apiserver.log"
        wait_until(
            lambda: answers(f"{self._server}/readyz", context),
            READY_LIMIT,
            lambda: f"the API server isn't ready:\n{log_tail(log)}",
        )

    def _objects(self) -> None:
        """config/, the services' accounts, and the scheduler, which has one of them."""
        spec, layout = self._spec, self._layout
        ours = spec.overlay is not None
        if spec.overlay is not None:
            kubectl = self._made.binaries.path("kubectl")
            accounts.apply_overlay(kubectl, layout, spec.overlay, self._ports)
            accounts.write_kubeconfigs(self._api(), services.ACCOUNTS, layout, self._server)
            self._mutual_tls()
            self._progress("configuration applied")
        if not spec.control_plane_only:
            text = configs.scheduler_config(layout, self._ports, ours=ours)
            (layout.configs / "scheduler.json").write_text(text)
            self._add("scheduler", configs.scheduler)

    def _api(self) -> Api:
        from kybernate.adapters.k8s import Api  # noqa: PLC0415 - the import takes 0.4 s

        return Api(self._layout.kubeconfig("admin"), "one-machine")

    def _mutual_tls(self) -> None:
        argv = [
            sys.executable,
            "-m",
            "kybernate.cli",
            "pki",
            "init",
            "--dir",
            str(self._layout.tls),
        ]
        for node in self._spec.nodes:
            argv += ["--node", node]
        run = subprocess.run(
            argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
        )
        if run.returncode:
            raise KybernateError(f"`kybernate pki init` failed: {run.stderr.strip()}")

    def _builder(self) -> NodeBuilder:
        if self._made.tools is None:
            raise KybernateError("a control plane alone has no nodes")
        return NodeBuilder(
            self._spec, self._layout, self._made.tools, self._state, self._supervisor
        )

    def _start_nodes(self, pool: ThreadPoolExecutor) -> dict[str, Future[None]]:
        """Nodes come up while the API server does; each future ends with its images imported."""
        if not self._spec.node_names:
            return {}
        host.mount_tmpfs(self._state, self._layout.ram)
        builder = self._builder()
        for name in self._spec.node_names:
            builder.prepare(name)
            self._install_gpus(name)

        def bring(name: str) -> None:
            builder.start_runtime(name)
            for image in self._made.images:
                builder.import_image(name, image)

        return {name: pool.submit(bring, name) for name in self._spec.node_names}

    def _install_gpus(self, name: str) -> None:
        if self._made.simgpu is None:
            return
        from tests import simgpu  # noqa: PLC0415 - a control plane alone needs no driver

        node = self._layout.node(name)
        described = simgpu.parse(gpu_description(self._spec), name=name)
        simgpu.install(described, node.simgpu, self._made.simgpu)
        simgpu.make_device_nodes(described, node.dev)
        simgpu.write_vendor_cdi(described, node.cdi)

    def _start_services(self, *, node_part: bool) -> None:
        seats = services.seats_file(self._layout)
        seats.write_text(yaml.safe_dump(dict(self._spec.seats), sort_keys=False))
        for service in services.services(self._spec, self._layout, self._ports):
            if (service.process.inside is not None) == node_part:
                self._supervisor.add(service.process)

    def _wait_ready(self) -> None:
        if self._spec.node_names:
            self._wait_nodes()
            self._progress(f"nodes ready: {', '.join(self._spec.node_names)}")
        for service in services.services(self._spec, self._layout, self._ports):
            log = Path(service.process.log)
            wait_until(
                lambda url=service.ready_url: answers(url),  # type: ignore[misc]
                READY_LIMIT,
                f"{service.process.name} isn't ready ({service.ready_url}); see {log}",
            )
        if self._spec.controller_manager:
            self._wait_default_account()
        if set(NODE_SERVICES) <= self._spec.running_services and self._spec.node_names:
            self._wait_seats()

    def _wait_nodes(self) -> None:
        api = self._api()

        def ready() -> bool:
            rows = api.get("/api/v1/nodes")["items"]
            usable = {row["metadata"]["name"] for row in rows if node_usable(row)}
            return usable >= set(self._spec.node_names)

        wait_until(ready, READY_LIMIT, self._why_not_ready, every=0.1)

    def _why_not_ready(self) -> str:
        tails = [
            f"kubelet of {name}:\n{log_tail(self._layout.logs / f'kubelet-{name}.log')}"
            for name in self._spec.node_names
        ]
        return "not every node became Ready:\n" + "\n".join(tails)

    def _wait_default_account(self) -> None:
        """Pods are refused until the controller manager has made their service account."""
        api = self._api()

        def exists() -> bool:
            rows = api.get("/api/v1/namespaces/default/serviceaccounts")["items"]
            return bool(rows)

        wait_until(exists, READY_LIMIT, "the controller manager makes no service accounts")

    def _wait_seats(self) -> None:
        api = self._api()

        def offered() -> bool:
            rows = api.get("/api/v1/nodes")["items"]
            return all(seats_of(row) > 0 for row in rows)

        wait_until(
            offered,
            READY_LIMIT,
            f"the nodes offer no seats; see {self._layout.logs}/plugin-*.log",
            every=0.1,
        )


def gpu_description(spec: ClusterSpec) -> dict[str, Any]:
    """The simulated driver's description of one node: pairs of GPUs share NVLink and a socket."""
    gpus = spec.gpus
    return {
        "scale": gpus.scale,
        "zero_cost": gpus.zero_copy,
        "gpus": [
            {"product": gpus.product, "memory": gpus.memory, "numa": index // 2}
            for index in range(gpus.count)
        ],
        "links": [
            {"a": index, "b": index + 1, "kind": "NV18"} for index in range(0, gpus.count - 1, 2)
        ],
    }


def node_usable(node: dict[str, Any]) -> bool:
    """Ready, and open for pods."""
    conditions = node.get("status", {}).get("conditions", [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not node.get("spec", {}).get("taints")


def seats_of(node: dict[str, Any]) -> int:
    """How many seats, of whatever size, the node can give."""
    allocatable = node.get("status", {}).get("allocatable", {})
    return sum(
        int(amount)
        for resource, amount in allocatable.items()
        if keys.seat_resource_size(resource) is not None
    )


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """True if a GET is answered with 200 within two seconds."""
    try:
        with urllib.request.urlopen(url, timeout=2, context=context) as answer:  # noqa: S310 - our own processes on loopback and bridges
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
