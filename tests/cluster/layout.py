"""Where the harness keeps things: a cache shared by all targets, and one folder per cluster."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from images.cache import REPOSITORY, Progress, cache_root, digest_of, silent
from kybernate.errors import ConfigError

__all__ = [
    "REPOSITORY",
    "Layout",
    "NodeLayout",
    "Progress",
    "cache_root",
    "silent",
    "work_root",
]

SOCKET_PATH_LIMIT = 107
"""A unix socket's path may have at most this many bytes."""

COVERED = (Path("/run"), Path("/var/lib"), Path("/var/log"))
"""Folders of the host that a node sees, but changes only for itself."""

_LONGEST_SOCKET = "nodename/kubelet/pod-resources/kubelet.sock"


def work_root() -> Path:
    """The folder of running clusters: $KYB_WORK, by default one of this checkout's own, so that
    tests of two checkouts do not end each other's clusters."""
    return Path(os.environ.get("KYB_WORK") or f"/var/tmp/kyb-{digest_of(str(REPOSITORY))[:6]}")


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one cluster below its folder `work`."""

    work: Path

    def __post_init__(self) -> None:
        longest = len(str(self.work)) + 1 + len(_LONGEST_SOCKET)
        if any(self.work.is_relative_to(folder) for folder in COVERED):
            raise ConfigError(
                "KYB_WORK", f"{self.work} lies in a folder that nodes cover; use /var/tmp/…"
            )
        if not re.fullmatch(r"[-+./\w]*", str(self.work), re.ASCII):
            raise ConfigError("KYB_WORK", f"{self.work} must have no blanks or special characters")
        if not self.work.is_absolute():
            raise ConfigError("KYB_WORK", f"{self.work} must be an absolute path")
        if longest > SOCKET_PATH_LIMIT:
            spare = SOCKET_PATH_LIMIT - 1 - len(_LONGEST_SOCKET)
            raise ConfigError(
                "KYB_WORK",
                f"{self.work} is too long for the unix sockets below it; "
                f"choose a path of at most {spare} bytes",
            )

    @property
    def state_file(self) -> Path:
        """What `down` needs to know about the cluster, written before each act."""
        return self.work / "cluster.json"

    @property
    def processes_file(self) -> Path:
        """What the supervisor runs: names, PIDs, start times."""
        return self.work / "processes.json"

    @property
    def supervisor_socket(self) -> Path:
        """The supervisor answers here."""
        return self.work / "sup.sock"

    @property
    def pki(self) -> Path:
        """Certificates and keys of the control plane."""
        return self.work / "pki"

    @property
    def kubeconfigs(self) -> Path:
        """One kubeconfig per account."""
        return self.work / "kubeconfig"

    @property
    def configs(self) -> Path:
        """Configuration files of the control plane, the nodes and the services."""
        return self.work / "cfg"

    @property
    def kubectl_cache(self) -> Path:
        """kubectl's discovery cache, which must not outlive the cluster."""
        return self.work / "kubectl"

    @property
    def tls(self) -> Path:
        """The mutual TLS folder of our services."""
        return self.work / "tls"

    @property
    def logs(self) -> Path:
        """One log file per process."""
        return self.work / "log"

    @property
    def ram(self) -> Path:
        """A tmpfs: the nodes' /dev and simulated device memory."""
        return self.work / "ram"

    def kubeconfig(self, account: str) -> Path:
        """The kubeconfig of `account`."""
        return self.kubeconfigs / f"{account}.kubeconfig"

    def node(self, name: str) -> NodeLayout:
        """The paths of one node."""
        return NodeLayout(name, self.work / name, self.ram / name)


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The folders of one node, as the host sees them."""

    name: str
    root: Path
    ram: Path

    def binds(self) -> dict[Path, Path]:
        """Host folder → path inside the node's mount namespace."""
        return {
            self.root / "kubelet": Path("/var/lib/kubelet"),
            self.root / "containerd": Path("/run/containerd"),
            self.root / "cdi": Path("/var/run/cdi"),
            self.root / "pod-logs": Path("/var/log/pods"),
            self.root / "container-logs": Path("/var/log/containers"),
            self.root / "run-kyb": Path("/run/kyb"),
            self.root / "lib-kyb": Path("/var/lib/kyb"),
            self.root / "netns": Path("/run/netns"),
            self.root / "cni-results": Path("/var/lib/cni"),
            self.simgpu: Path("/run/simgpu"),
            self.dev: Path("/dev"),
        }

    def cover(self, folder: Path) -> tuple[Path, Path]:
        """The upper and work folders of the node's overlay over a folder of the host."""
        base = self.ram / "cover" / folder.name
        return base / "upper", base / "work"

    @property
    def simgpu(self) -> Path:
        """The simulated driver's folder: device memory, records, faults."""
        return self.ram / "simgpu"

    @property
    def dev(self) -> Path:
        """The node's /dev."""
        return self.ram / "dev"

    @property
    def cdi(self) -> Path:
        """The node's /var/run/cdi."""
        return self.root / "cdi"

    @property
    def cri_socket(self) -> Path:
        """containerd's socket, as the host sees it."""
        return self.root / "containerd" / "containerd.sock"

    @property
    def meminfo(self) -> Path:
        """The file bound over the node's /proc/meminfo."""
        return self.root / "meminfo"

    @property
    def up_file(self) -> Path:
        """Exists once the node's mounts are made."""
        return self.root / "up"
