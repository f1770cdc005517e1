"""What a cluster shall be: pure values, checked when they are made."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.errors import ConfigError

from .layout import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

GIB = 1 << 30
TIB = 1 << 40
FIRST_PORT = 16440
PORTS = 11
NODE_SERVICES = ("agent", "plugin")
NODE_IMAGES = ("agent", "device-plugin")
HOST_SERVICES = ("extender", "webhook", "proxy", "controller")
ALL_SERVICES = frozenset((*NODE_SERVICES, *HOST_SERVICES))
OVERLAY = REPOSITORY / "config" / "overlays" / "one-machine"
TEST_IMAGES = ("busybox",)

_NAME = re.compile(r"[a-z][a-z0-9]{0,7}")

PROFILE_SIZES = (1, 2, 4)
"""GPUs per group of the profiles that a node offers, as far as it has that many GPUs."""

SEATS_PER_GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """The simulated GPUs of each node.

    `memory` is the paper size of one GPU in bytes; `scale` says how many paper bytes stand for
    one real byte. `zero_copy` makes parking and waking free of copying, to measure the rest.
    """

    count: int = 4
    memory: int = 80 * GIB
    scale: int = 1024
    product: str = "NVIDIA H100 80GB HBM3"
    zero_copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """One cluster.

    `name` (short, lower case) prefixes bridges, cgroups and the work folder. `subnet` is an IPv4
    /16: node i gets the i-th /24 of it. `port_base` is the first of eleven ports on 127.0.0.1
    (None: the first eleven that are free). `host_memory` is the memory in bytes that the nodes show
    (None: the machine's own). `services` are those of ours that run. `overlay` is the kustomize
    folder that is applied (None: nothing). `service_env` adds environment per service, for
    instance {"agent": {"KYB_AGENT_IDLE_AFTER_S": "0.2"}}. `state_size` puts the agent's journal on
    a file system of its own of that size, such as "8m", so that it can be filled. `seats` is what
    the device plugin's file says (None: eight seats on each group of one, two and four GPUs). With
    `node_pods` agent and plugin run as the DaemonSets of config/, as on any cluster; without it
    they are processes of the node's, which start faster and can be traced. `runtime` is what
    containerd runs in place of runc. `tree` is the code that our services, their certificates and
    kyb-init are of: a folder like this repository's, with its own `build`.
    """

    name: str = "kyb"
    nodes: tuple[str, ...] = ("n1", "n2")
    control_plane_only: bool = False
    controller_manager: bool = True
    subnet: str = "10.88.0.0/16"
    port_base: int | None = None
    gpus: GpuSpec = field(default_factory=GpuSpec)
    host_memory: int | None = 2 * TIB
    services: frozenset[str] = ALL_SERVICES
    images: tuple[str, ...] = (*TEST_IMAGES, "toy", "sidecar")
    overlay: Path | None = OVERLAY
    seats: Mapping[str, object] | None = None
    service_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    node_pods: bool = False
    state_size: str | None = None
    runtime: Path | None = None
    work: Path | None = None
    tree: Path = REPOSITORY

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError("name", f"{self.name!r} must be 1-8 lower-case letters or digits")
        for node in self.nodes:
            if not _NAME.fullmatch(node):
                raise ConfigError("nodes", f"{node!r} must be 1-8 lower-case letters or digits")
        if len(set(self.nodes)) != len(self.nodes) or len(self.nodes) > 200:
            raise ConfigError("nodes", "names must differ, and there may be at most 200")
        if not self.control_plane_only and not self.nodes:
            raise ConfigError("nodes", "name at least one, or set control_plane_only")
        unknown = self.services - ALL_SERVICES
        if unknown:
            known = ", ".join(sorted(ALL_SERVICES))
            raise ConfigError("services", f"{min(unknown)} is unknown; there are {known}")
        self._check_network()

    def _check_network(self) -> None:
        try:
            network = ipaddress.IPv4Network(self.subnet)
        except ValueError as error:
            raise ConfigError("subnet", f"{self.subnet} isn't an IPv4 network: {error}") from error
        if network.prefixlen != 16:
            raise ConfigError("subnet", f"{self.subnet} must be a /16")
        if self.port_base is not None and not 1024 <= self.port_base <= 65000:
            raise ConfigError("port_base", f"{self.port_base} must be in 1024-65000")

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes that get a kubelet: none if there's only a control plane."""
        return () if self.control_plane_only else self.nodes

    @property
    def running_services(self) -> frozenset[str]:
        """The services that this cluster runs; without config/ they have no accounts."""
        if self.overlay is None:
            return frozenset()
        return self.services - set(NODE_SERVICES) if self.control_plane_only else self.services

    @property
    def process_services(self) -> frozenset[str]:
        """Those of the running services that the supervisor runs."""
        return self.running_services - (frozenset(NODE_SERVICES) if self.node_pods else set())

    @property
    def all_images(self) -> tuple[str, ...]:
        """The images that the nodes need."""
        ours: tuple[str, ...] = ("sidecar",) if "webhook" in self.running_services else ()
        ours += NODE_IMAGES if self.node_pods else ()
        return tuple(dict.fromkeys(("pause", *self.images, *ours)))

    @property
    def seats_config(self) -> Mapping[str, object]:
        """The content of the device plugin's file."""
        if self.seats is not None:
            return self.seats
        return {
            "profiles": [
                {
                    "name": f"{size}x",
                    "resource": keys.seat_resource(size),
                    "groupSize": size,
                    "seatsPerGroup": SEATS_PER_GROUP,
                }
                for size in PROFILE_SIZES
                if size <= self.gpus.count
            ]
        }

    def number(self, node: str) -> int:
        """The node's number, from 1."""
        return self.nodes.index(node) + 1

    def node_subnet(self, node: str) -> str:
        """The /24 of the node's pods."""
        first = ipaddress.IPv4Network(self.subnet).network_address
        return f"{first + 256 * self.number(node)}/24"

    def node_ip(self, node: str) -> str:
        """The node's address: that of its bridge."""
        first = ipaddress.IPv4Network(self.subnet).network_address
        return str(first + 256 * self.number(node) + 1)

    def bridge(self, node: str) -> str:
        """The node's bridge (at most 15 bytes)."""
        return f"{self.name}{self.number(node)}"

    def cgroup(self, node: str) -> str:
        """The cgroup that holds everything of the node's kubelet."""
        return f"{self.name}-{node}"


@dataclass(frozen=True, slots=True)
class Ports:
    """The TCP ports on 127.0.0.1, counted from one base."""

    base: int

    @classmethod
    def free(cls, taken: Callable[[int], bool]) -> Ports:
        """The first ports from FIRST_PORT on of which none is taken. Raises ConfigError."""
        for base in range(FIRST_PORT, 32000, PORTS):
            if not any(taken(port) for port in cls(base).all()):
                return cls(base)
        raise ConfigError("port_base", "no eleven ports in a row are free on 127.0.0.1")

    @property
    def apiserver(self) -> int:
        """kube-apiserver (TLS)."""
        return self.base + 3

    @property
    def etcd(self) -> int:
        """etcd's clients (plain)."""
        return self.base

    @property
    def etcd_peer(self) -> int:
        """etcd's peers (plain)."""
        return self.base + 1

    @property
    def controller_manager(self) -> int:
        """kube-controller-manager (TLS)."""
        return self.base + 2

    @property
    def scheduler(self) -> int:
        """kube-scheduler (TLS)."""
        return self.base + 4

    @property
    def extender(self) -> int:
        """The extender's verbs (mutual TLS)."""
        return self.base + 5

    @property
    def extender_probe(self) -> int:
        """The extender's probes and metrics (plain)."""
        return self.base + 6

    @property
    def webhook(self) -> int:
        """The webhook (TLS)."""
        return self.base + 7

    @property
    def webhook_probe(self) -> int:
        """The webhook's probes and metrics (plain)."""
        return self.base + 8

    @property
    def proxy(self) -> int:
        """The proxy (plain)."""
        return self.base + 9

    @property
    def controller(self) -> int:
        """The controller's probes and metrics (plain)."""
        return self.base + 10

    def all(self) -> tuple[int, ...]:
        """Every port on 127.0.0.1."""
        return tuple(range(self.base, self.base + PORTS))


AGENT_PORT = 9443
"""The agent's mutual TLS port on its node's address."""

AGENT_PROBE_PORT = 9444
PLUGIN_PROBE_PORT = 9445
KUBELET_PORT = 10250
KUBELET_HEALTH_PORT = 10248
