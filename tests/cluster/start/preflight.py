"""What the scripts can't bring: checked before anything starts, and all of it told at once."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from images import debs
from kybernate.errors import ConfigError, KybernateError
from tests.cluster.fetched import binaries, prefix
from tests.cluster.layout import cache_root, work_root
from tests.cluster.parts.services import KYB_INIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.cluster.spec import ClusterSpec

GIB = 1 << 30
BUILD_DISK = 8 * GIB
"""Free bytes that building Kubernetes needs: Go's module and build caches, and the result."""

RUN_DISK = 2 * GIB
BUILD_MEMORY = 4 * GIB
RUN_MEMORY = 4 * GIB
NETWORK_LIMIT = 5.0
"""Seconds for one attempt to reach a registry."""

_TOOLS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "umount": "mount",
    "ip": "iproute2",
}


_MODULES = ("cryptography", "kubernetes", "grpc", "yaml")


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that is missing, and the command or act that mends it."""

    what: str
    mend: str

    def __str__(self) -> str:
        return f"{self.what}\n      → {self.mend}"


@dataclass(frozen=True, slots=True)
class Machine:
    """What the checks look at; a test gives its own."""

    system: str
    architecture: str
    root: bool
    python: tuple[int, int]
    which: Callable[[str], str | None]
    free_disk: Callable[[Path], int]
    free_memory: int
    reachable: Callable[[str], bool]
    cgroups: bool
    keyring: bool
    to_build: Callable[[Sequence[str]], list[str]]
    unpacked: bool
    mirror: Callable[[], str]
    go_proxy: Callable[[], str | None]
    modules: Callable[[str], bool]
    kyb_init: bool


def this_machine() -> Machine:
    """The machine that this runs on."""
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        root=os.geteuid() == 0,
        python=sys.version_info[:2],
        which=shutil.which,
        free_disk=_free_disk,
        free_memory=_available_memory(),
        reachable=_reachable,
        cgroups=Path("/sys/fs/cgroup/cgroup.controllers").exists()
        or Path("/sys/fs/cgroup/memory").is_dir(),
        keyring=debs.KEYRING.exists(),
        to_build=binaries.to_build,
        unpacked=prefix.cached(),
        mirror=debs.mirror,
        go_proxy=_go_proxy,
        modules=lambda name: importlib.util.find_spec(name) is not None,
        kyb_init=KYB_INIT.exists(),
    )


def require(spec: ClusterSpec) -> None:
    """Raises KybernateError that lists everything missing."""
    missing = check(spec, this_machine())
    if missing:
        raise KybernateError(report(missing))


def report(missing: list[Missing]) -> str:
    """All that is missing, with what mends it."""
    lines = [f"This machine can't run the cluster yet; {len(missing)} missing:"]
    lines += [f"  {number}. {one}" for number, one in enumerate(missing, 1)]
    return "\n".join(lines)


def check(spec: ClusterSpec, machine: Machine) -> list[Missing]:
    """Everything that is missing for this cluster on this machine."""
    nodes = not spec.control_plane_only
    wanted = binaries.ALL if nodes else binaries.CONTROL_PLANE
    to_build = machine.to_build(wanted)
    found = list(_platform(machine))
    if nodes:
        found += _node_tools(machine)
    found += _made_here(spec, machine)
    found += _build_tools(machine, to_build)
    found += _room(machine, building=bool(to_build))
    found += _network(machine, building=bool(to_build), unpacking=nodes and not machine.unpacked)
    return found


def _platform(machine: Machine) -> Iterator[Missing]:
    if machine.system != "Linux" or machine.architecture != "x86_64":
        yield Missing(
            f"Linux on x86-64 (this is {machine.system} on {machine.architecture})",
            "use such a machine, virtual or not",
        )
    if not machine.root:
        yield Missing(
            "root, for mounts, namespaces and cgroups", "sudo -E make, with the same target"
        )
    if machine.python < (3, 11):
        yield Missing(
            f"Python 3.11 or newer (this is {machine.python[0]}.{machine.python[1]})",
            "apt-get install python3.11-venv, then make setup PYTHON=python3.11",
        )


def _node_tools(machine: Machine) -> Iterator[Missing]:
    for tool, package in _TOOLS.items():
        if machine.which(tool) is None:
            yield Missing(f"the command {tool}", f"apt-get install {package}")
    if not machine.cgroups:
        yield Missing(
            "cgroups mounted at /sys/fs/cgroup", "mount -t cgroup2 cgroup2 /sys/fs/cgroup"
        )
    for tool, package in (("gcc", "gcc libc6-dev"), ("make", "make")):
        if machine.which(tool) is None:
            yield Missing(f"the command {tool}", f"apt-get install {package}")
    if machine.unpacked:
        return
    for tool, package in (("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        if machine.which(tool) is None:
            yield Missing(f"Debian's {tool}", f"use a Debian host; there, {package} brings it")
    if not machine.keyring:
        yield Missing("the keys of Debian's archive", "apt-get install debian-archive-keyring")


def _made_here(spec: ClusterSpec, machine: Machine) -> Iterator[Missing]:
    absent = [name for name in _MODULES if not machine.modules(name)]
    if absent:
        yield Missing(f"the Python packages {', '.join(absent)} in {sys.executable}", "make setup")
    if "agent" in spec.running_services and not machine.kyb_init:
        yield Missing(f"kyb-init ({KYB_INIT})", "make native")


def _build_tools(machine: Machine, to_build: list[str]) -> Iterator[Missing]:
    if to_build and machine.which("go") is None:
        yield Missing(
            f"Go 1.24 or newer, to build {', '.join(to_build)}",
            "install it from https://go.dev/dl, or set KYB_KUBE_BIN to a folder or URL of the "
            f"official Kubernetes {binaries.KUBERNETES_VERSION} binaries",
        )


def _room(machine: Machine, *, building: bool) -> Iterator[Missing]:
    for path, wanted, variable in (
        (cache_root(), BUILD_DISK if building else 0, "KYB_CACHE"),
        (work_root(), RUN_DISK, "KYB_WORK"),
    ):
        free = machine.free_disk(path)
        if free < wanted:
            yield Missing(
                f"{wanted / GIB:.0f} GiB of disk at {path} (free: {free / GIB:.1f})",
                f"free some, or point {variable} elsewhere",
            )
    memory = BUILD_MEMORY if building else RUN_MEMORY
    if machine.free_memory < memory:
        yield Missing(
            f"{memory / GIB:.0f} GiB of available memory (there are "
            f"{machine.free_memory / GIB:.1f})",
            "end what uses it, or use a larger machine",
        )


def _network(machine: Machine, *, building: bool, unpacking: bool) -> Iterator[Missing]:
    if building and machine.which("go") is not None:
        proxy = machine.go_proxy()
        if proxy and not machine.reachable(proxy):
            yield Missing(
                f"a way to the Go module proxy {proxy}",
                "mend the network or `go env -w GOPROXY=…`, or set KYB_KUBE_BIN",
            )
    if unpacking:
        try:
            url = machine.mirror()
        except ConfigError as error:
            yield Missing("a Debian mirror", str(error))
            return
        if not machine.reachable(url):
            yield Missing(f"a way to the Debian mirror {url}", "mend the network or /etc/apt")


def _go_proxy() -> str | None:
    """The first proxy that Go would ask, or None if it is told to ask none."""
    run = subprocess.run(
        ["go", "env", "GOPROXY"], capture_output=True, text=True, timeout=30, check=False
    )
    first = run.stdout.strip().replace("|", ",").split(",")[0]
    return first if first.startswith(("http://", "https://")) else None


def _reachable(url: str) -> bool:
    """True if a connection opens. Behind a proxy of the environment it is taken on trust."""
    if any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "http_proxy")):
        return True
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=NETWORK_LIMIT):
            return True
    except OSError:
        return parts.scheme == "file"


def _free_disk(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _available_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = next((line for line in lines if line.startswith("MemAvailable:")), "x 0")
    return int(found.split()[1]) << 10
