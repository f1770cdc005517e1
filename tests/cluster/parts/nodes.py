"""One node: its own mount and PID namespace, with containerd and a kubelet in it."""

from __future__ import annotations

import os
import shlex
import socket
import stat
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.layout import COVERED
from tests.cluster.parts import configs, host
from tests.cluster.processes.control import log_tail, wait_until
from tests.cluster.processes.supervisor import ProcessSpec

if TYPE_CHECKING:
    from tests.cluster.fetched.layers import Image
    from tests.cluster.fetched.prefix import Toolbox
    from tests.cluster.layout import Layout, NodeLayout
    from tests.cluster.processes.control import Supervisor
    from tests.cluster.spec import ClusterSpec
    from tests.cluster.start.state import State

READY_LIMIT = 60.0
"""Seconds that a daemon has to answer."""

_KEPT_DEVICES = ("pts", "shm", "mqueue", "hugepages")


@dataclass(frozen=True, slots=True)
class NodeBuilder:
    """Makes the nodes of one cluster."""

    spec: ClusterSpec
    layout: Layout
    tools: Toolbox
    state: State
    supervisor: Supervisor

    def prepare(self, name: str) -> None:
        """Folders, configuration, network and cgroup of a node; starts no process."""
        node = self.layout.node(name)
        for source in node.binds():
            source.mkdir(parents=True, exist_ok=True)
        if self.spec.state_size is not None:
            host.mount_tmpfs(self.state, node.root / "lib-kyb" / "state", self.spec.state_size)
        (node.root / "cni").mkdir(exist_ok=True)
        (node.root / "cni" / "10-bridge.conflist").write_text(configs.cni(self.spec, node))
        gpus = gpu_spec_file(self.layout, name) if self.spec.gpus.count else None
        config = configs.containerd(
            node, self.tools.cni, self.spec.runtime or self.tools.runc, gpus
        )
        (self.layout.configs / f"containerd-{name}.toml").write_text(config)
        kubelet = configs.kubelet_config(self.spec, self.layout, name)
        (self.layout.configs / f"kubelet-{name}.json").write_text(kubelet)
        if self.spec.host_memory is not None:
            real = Path("/proc/meminfo").read_text()
            node.meminfo.write_text(configs.meminfo(real, self.spec.host_memory))
        copy_devices(node.dev)
        network = f"{self.spec.node_ip(name)}/24"
        host.make_bridge(self.state, self.spec.bridge(name), network)
        host.make_cgroup(self.state, self.spec.cgroup(name))

    def start_runtime(self, name: str) -> None:
        """The namespaces and containerd. Raises DeadlineError if it doesn't answer."""
        node = self.layout.node(name)
        node.up_file.unlink(missing_ok=True)
        self.supervisor.add(self._holder(node))
        log = self.layout.logs / f"node-{name}.log"
        wait_until(
            node.up_file.exists,
            READY_LIMIT,
            lambda: f"node {name}: its mounts can't be made:\n{log_tail(log)}",
            every=0.01,
        )
        self.supervisor.add(self._containerd(node))
        log = self.layout.logs / f"containerd-{name}.log"
        wait_until(
            lambda: connects(node.cri_socket),
            READY_LIMIT,
            lambda: f"node {name}: containerd doesn't answer:\n{log_tail(log)}",
            every=0.02,
        )

    def import_image(self, name: str, image: Image) -> None:
        """Puts an image into the node's containerd. Raises KybernateError."""
        socket_path = str(self.layout.node(name).cri_socket)
        ctr = str(self.tools.ctr)
        host.run(
            ctr,
            "-a",
            socket_path,
            "-n",
            "k8s.io",
            "images",
            "import",
            "--local",  # by itself it sends every byte, those too that the node has
            str(image.archive),
            limit=300,
        )

    def start_kubelet(self, name: str) -> None:
        """The kubelet; it retries until the API server is there."""
        binaries = self.tools.binaries
        self.supervisor.add(
            ProcessSpec(
                name=f"kubelet-{name}",
                argv=tuple(configs.kubelet(binaries, self.spec, self.layout, name)),
                env={"PATH": self.tools.path},
                log=str(self.layout.logs / f"kubelet-{name}.log"),
                inside=f"node-{name}",
            )
        )

    def _holder(self, node: NodeLayout) -> ProcessSpec:
        flags = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = holder_script(node, self.tools.pause, paper=self.spec.host_memory is not None)
        return ProcessSpec(
            name=f"node-{node.name}",
            argv=("unshare", *flags, "sh", "-ec", script),
            log=str(self.layout.logs / f"node-{node.name}.log"),
            forks=True,
            restart=False,
        )

    def _containerd(self, node: NodeLayout) -> ProcessSpec:
        config = self.layout.configs / f"containerd-{node.name}.toml"
        return ProcessSpec(
            name=f"containerd-{node.name}",
            argv=(str(self.tools.containerd), "-c", str(config)),
            env={"PATH": self.tools.path},
            log=str(self.layout.logs / f"containerd-{node.name}.log"),
            inside=f"node-{node.name}",
        )


def gpu_spec_file(layout: Layout, node: str) -> Path:
    """From where the node's runtime nvidia starts its containers; written before containerd."""
    return layout.configs / f"nvidia-{node}.json"


def holder_script(node: NodeLayout, pause: Path, *, paper: bool) -> str:
    """The shell script that makes a node's mounts and then becomes its PID 1.

    The folders to mount over must exist. They are made in overlays that only the node sees, so
    that the host's stay as they are: removing one from the host would unmount it in every node.
    """
    lines = []
    for name in _KEPT_DEVICES:
        source = Path("/dev", name)
        lines.append(f"if [ -d {source} ]; then mount --rbind {source} {node.dev / name}; fi")
    for covered in COVERED:
        upper, work = node.cover(covered)
        lines.append(f"mkdir -p {upper} {work}")
        options = f"lowerdir={covered},upperdir={upper},workdir={work}"
        lines.append(f"mount -t overlay -o {options} kyb {covered}")
    for source, target in node.binds().items():
        lines.append(f"mkdir -p {target}")
        lines.append(f"mount --rbind {source} {target}")
    if paper:
        lines.append(f"mount --bind {node.meminfo} /proc/meminfo")
    # As systemd leaves it: mounts and unmounts reach the pods that ask for them.
    lines.append("mount --make-rshared /")
    lines.append(f": > {node.up_file}")
    lines.append(f"exec {shlex.quote(str(pause))}")
    return "\n".join(lines)


def copy_devices(target: Path) -> None:
    """A /dev like the host's, but without its GPUs."""
    target.mkdir(parents=True, exist_ok=True)
    for folder in (*_KEPT_DEVICES, "net"):
        (target / folder).mkdir(exist_ok=True)
    for entry in [*Path("/dev").iterdir(), *Path("/dev/net").glob("*")]:
        if entry.name.startswith("nvidia"):
            continue
        found = entry.lstat()
        copy = target / entry.relative_to("/dev")
        with suppress(FileExistsError):
            if stat.S_ISLNK(found.st_mode):
                copy.symlink_to(os.readlink(entry))
            elif stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
                os.mknod(copy, found.st_mode, found.st_rdev)
                copy.chmod(stat.S_IMODE(found.st_mode))


def connects(path: Path) -> bool:
    """True if a server accepts on the unix socket; a socket file alone proves nothing."""
    with closing(socket.socket(socket.AF_UNIX)) as link:
        link.settimeout(1.0)
        try:
            link.connect(str(path))
        except OSError:
            return False
        return True
