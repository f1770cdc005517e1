"""Bringing a cluster up, step by step. What can go side by side does."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from kybernate.errors import KybernateError
from tests.cluster.fetched import binaries, images, prefix
from tests.cluster.parts import accounts, configs, host, pki, services
from tests.cluster.parts.nodes import READY_LIMIT, NodeBuilder, gpu_spec_file
from tests.cluster.processes.control import Supervisor
from tests.cluster.processes.supervisor import ProcessSpec
from tests.cluster.spec import NODE_SERVICES, Ports
from tests.cluster.start import readiness

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from tests.cluster.fetched.layers import Image
    from tests.cluster.layout import Layout, Progress
    from tests.cluster.spec import ClusterSpec
    from tests.cluster.start.state import State

SIGKILL = 9


@dataclass(frozen=True, slots=True)
class Made:
    """What must be built before anything starts."""

    binaries: binaries.Binaries
    tools: prefix.Toolbox | None
    images: list[Image]
    simgpu: Path | None


def make(spec: ClusterSpec, progress: Progress) -> Made:
    """Builds or fetches what the cluster needs and the cache lacks."""
    if spec.control_plane_only:
        return Made(binaries.ensure(binaries.CONTROL_PLANE, progress), None, [], None)
    tools = prefix.ensure(progress)
    built = images.build(spec.all_images, progress)
    return Made(tools.binaries, tools, built, _simgpu() if spec.gpus.count else None)


def _simgpu() -> Path:
    from tests.simgpu import build  # noqa: PLC0415 - a control plane alone needs no driver

    return build(services.SIMGPU_BUILD)


class Placed(NamedTuple):
    """A spec with its place on this machine."""

    spec: ClusterSpec
    layout: Layout
    ports: Ports


class Bringup:
    """One run of `up`. The cluster's folder is empty when it starts."""

    def __init__(self, cluster: Placed, state: State, made: Made, progress: Progress) -> None:
        self._spec, layout, ports = cluster
        self._layout = layout
        self._state = state
        self._made = made
        self._progress = progress
        self._ports = ports
        self._supervisor = Supervisor(layout)
        self._answers = threading.Event()
        self._server = f"https://127.0.0.1:{self._ports.apiserver}"

    def run(self) -> None:
        """Everything, until all that was asked for is ready. Raises KybernateError."""
        self._folders()
        self._state.supervisor = self._supervisor.launch()
        self._state.write()
        self._control_plane_identity()
        self._add("etcd", configs.etcd)
        self._add("apiserver", configs.apiserver)
        with ThreadPoolExecutor(max_workers=6) as pool:
            api = pool.submit(self._connect)
            objects = pool.submit(self._render)
            try:
                nodes = self._start_nodes(pool)
                readiness.apiserver(self._layout, self._server)
            finally:
                self._answers.set()
            self._progress("API server ready")
            if self._spec.controller_manager:
                self._add("controller-manager", configs.controller_manager)
            self._objects(api.result(), objects.result())
            self._start_services(node_part=False)
            for node in nodes:
                node.result()
            self._start_services(node_part=True)
        self._wait_ready(api.result())

    def _folders(self) -> None:
        layout = self._layout
        for folder in (layout.pki, layout.kubeconfigs, layout.configs, layout.logs):
            folder.mkdir(parents=True, exist_ok=True)
        (layout.configs / "resolv.conf").write_text("nameserver 127.0.0.1\n")

    def _control_plane_identity(self) -> None:
        layout = self._layout
        authority = pki.Authority(layout.pki)
        authority.service_account_keys()
        # Kubelets' ones also where none runs: tests have what such a node would.
        names = self._spec.nodes
        for identity in pki.identities(names, [self._spec.node_ip(name) for name in names]):
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

    def _connect(self) -> Api:
        from kybernate.adapters.k8s import Api  # noqa: PLC0415 - the import takes 0.4 s

        return Api(self._layout.kubeconfig("admin"), "one-machine")

    def _render(self) -> str | None:
        """What doesn't need the API server: our objects, and our services' certificates."""
        if self._spec.overlay is None:
            return None
        accounts.mutual_tls(self._layout, self._spec.nodes, self._spec.tree)
        kubectl = self._made.binaries.path("kubectl")
        return accounts.render(kubectl, self._spec, self._layout, self._ports)

    def _objects(self, api: Api, objects: str | None) -> None:
        """config/, the services' accounts, and the scheduler, which has one of them."""
        layout = self._layout
        readiness.make_default_account(api)
        if objects is not None:
            accounts.apply(self._made.binaries.path("kubectl"), layout, objects)
            names = services.accounts_of(self._spec.tree)
            accounts.write_kubeconfigs(api, names, layout, self._server)
            readiness.kinds(api)
            readiness.policies(api)
            self._progress("configuration applied")
        if not self._spec.control_plane_only:
            ours = "extender" in self._spec.running_services
            text = configs.scheduler_config(layout, self._ports, ours=ours)
            (layout.configs / "scheduler.json").write_text(text)
            self._add("scheduler", configs.scheduler)

    def _builder(self) -> NodeBuilder:
        if self._made.tools is None:
            raise KybernateError("a control plane alone has no nodes")
        return NodeBuilder(
            self._spec, self._layout, self._made.tools, self._state, self._supervisor
        )

    def _start_nodes(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Nodes come up while the API server does; each future ends with its kubelet started.

        A kubelet that finds no API server waits longer each time: it is started when there is one.
        """
        if not self._spec.node_names:
            return []
        host.mount_tmpfs(self._state, self._layout.ram)
        builder = self._builder()
        for name in self._spec.node_names:
            builder.prepare(name)
            self._install_gpus(name)

        def bring(name: str) -> None:
            builder.start_runtime(name)
            for image in self._made.images:
                builder.import_image(name, image)
            self._answers.wait(READY_LIMIT)
            builder.start_kubelet(name)

        return [pool.submit(bring, name) for name in self._spec.node_names]

    def _install_gpus(self, name: str) -> None:
        if self._made.simgpu is None:
            return
        from tests import simgpu  # noqa: PLC0415 - a control plane alone needs no driver
        from tests.cluster.parts import gpuruntime  # noqa: PLC0415

        node = self._layout.node(name)
        described = simgpu.parse(gpu_description(self._spec), name=name)
        simgpu.install(described, node.simgpu, self._made.simgpu)
        simgpu.make_device_nodes(described, node.dev)
        simgpu.write_vendor_cdi(described, node.cdi)
        if self._made.tools is not None:
            text = gpuruntime.base_spec(self._made.tools.ctr, described)
            gpu_spec_file(self._layout, name).write_text(text)

    def _start_services(self, *, node_part: bool) -> None:
        seats = services.seats_file(self._layout)
        seats.write_text(yaml.safe_dump(dict(self._spec.seats_config), sort_keys=False))
        for service in services.services(self._spec, self._layout, self._ports):
            if (service.process.inside is not None) == node_part:
                self._supervisor.add(service.process)

    def _wait_ready(self, api: Api) -> None:
        spec = self._spec
        if spec.node_names:
            readiness.nodes(api, self._layout, spec.node_names)
            self._progress(f"nodes ready: {', '.join(spec.node_names)}")
        for service in services.services(spec, self._layout, self._ports):
            readiness.service(service)
        if spec.node_pods and spec.node_names:
            readiness.node_pods(api, spec)
        if spec.node_names and spec.running_services >= set(NODE_SERVICES):
            readiness.seats(api, self._layout)
            self._progress("seats offered")


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
