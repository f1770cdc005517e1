"""Looks at the machine for `kybernate doctor`: its kernel, cgroups, disk, processes and files.

Reads only. What can't be read comes back as `Unseen` with the reason.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kybernate.core.doctor.nodefacts import CgroupFacts, DiskFacts, KubeletFacts, Lasting, Unseen

if TYPE_CHECKING:
    from collections.abc import Iterable

_VENDOR_KIND = "nvidia.com/gpu"
_SPEC_BYTES = 1 << 20


class LookAbout:
    """`root` is where the node's file system is mounted."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def is_root(self) -> bool:
        """Whether this process may see everything."""
        return os.geteuid() == 0

    def machine(self) -> str:
        """The processor's architecture, such as x86_64."""
        return platform.machine()

    def bounds(self) -> int:
        """Capabilities that a process started here may have, as a bit mask; 0 if unknown."""
        with suppress(OSError, ValueError):
            for line in (self._root / "proc/self/status").read_text().splitlines():
                if line.startswith("CapBnd:"):
                    return int(line.split()[1], 16)
        return 0

    def existing(self, folder: Path) -> Path:
        """The folder, or the nearest one above it that there is. Raises OSError."""
        there = self._root / folder.relative_to("/")
        while not there.exists():
            there = there.parent
        return there

    def cgroup(self) -> CgroupFacts | Unseen:
        """The node's cgroup version and controllers."""
        mount = self._root / "sys/fs/cgroup"
        try:
            controllers = (mount / "cgroup.controllers").read_text().split()
        except OSError:
            v1 = CgroupFacts(1, (mount / "freezer").is_dir(), (mount / "memory").is_dir())
            return v1 if mount.is_dir() else Unseen(f"there is no cgroup file system at {mount}")
        return CgroupFacts(2, freezer=True, memory="memory" in controllers)

    def disk(self, folder: Path) -> DiskFacts | Unseen:
        """The file system that holds, or would hold, this folder."""
        try:
            there = self.existing(folder)
            stat = os.statvfs(there)
        except PermissionError:
            return Unseen(f"{folder} is not for this user: run as root")
        except OSError as error:
            return Unseen(f"{folder} can't be looked at: {error.strerror}")
        return DiskFacts(str(folder), stat.f_bavail * stat.f_frsize, self._kind(there))

    def kubelet(self, folder: Path) -> KubeletFacts | Unseen:
        """What lies in the kubelet's folder."""
        there = self._root / folder.relative_to("/")
        try:
            sockets = sorted(path.name for path in (there / "device-plugins").iterdir())
            pod_resources = (there / "pod-resources/kubelet.sock").exists()
        except PermissionError:
            return Unseen(f"{folder} is not for this user: run as root")
        except OSError:
            return Unseen(f"there is no kubelet's folder at {folder}")
        return KubeletFacts(tuple(sockets), pod_resources)

    def vendor_specs(self, folders: Iterable[str]) -> tuple[str, ...] | Unseen:
        """CDI files that describe the vendor's GPUs, by their text: YAML or JSON."""
        found, barred = [], []
        for folder in folders:
            try:
                files = sorted((self._root / folder.lstrip("/")).iterdir())
            except FileNotFoundError:
                continue
            except OSError:
                barred.append(folder)
                continue
            for path in files:
                if path.suffix not in (".json", ".yaml", ".yml"):
                    continue
                try:
                    text = path.read_text(errors="replace")[:_SPEC_BYTES]
                except OSError:
                    barred.append(path.name)
                    continue
                if _VENDOR_KIND in text and not path.name.startswith("kyb-"):
                    found.append(str(Path(folder) / path.name))
        if barred and not found:
            return Unseen(f"{', '.join(barred)} can't be read: run as root")
        return tuple(found)

    def io_uring(self) -> int | None:
        """The sysctl io_uring_disabled: 0 on, 1 root only, 2 off."""
        with suppress(OSError, ValueError):
            return int((self._root / "proc/sys/kernel/io_uring_disabled").read_text())
        return None

    def lasting(self) -> Lasting:
        """What survives a reboot."""
        return Lasting(self.runs("nvidia-persiste"), self._in_sysctl("kernel.io_uring_disabled"))

    def mps(self) -> bool:
        """Whether a control daemon of MPS runs."""
        return self.runs("nvidia-cuda-mps")

    def runs(self, name: str) -> bool:
        """Whether a process has this short name (the kernel keeps 15 characters)."""
        for path in (self._root / "proc").glob("[0-9]*/comm"):
            with suppress(OSError):
                if path.read_text().strip() == name[:15]:
                    return True
        return False

    def _in_sysctl(self, key: str) -> bool:
        folders = ("etc/sysctl.d", "usr/lib/sysctl.d", "run/sysctl.d")
        files = [file for name in folders for file in (self._root / name).glob("*.conf")]
        for file in (*files, self._root / "etc/sysctl.conf"):
            with suppress(OSError):
                lines = (line.partition("=") for line in file.read_text().splitlines())
                if any(name.strip() == key and value.strip() == "2" for name, _, value in lines):
                    return True
        return False

    def _kind(self, path: Path) -> str:
        """The type of the file system, of the longest mount point above the path."""
        best, kind = "", "an unknown file system"
        with suppress(OSError):
            here = str(path.resolve())
            for line in (self._root / "proc/self/mounts").read_text().splitlines():
                _, point, found, *_ = line.split()
                inside = here == point or here.startswith(f"{point.rstrip('/')}/")
                if inside and len(point) >= len(best):
                    best, kind = point, found
        return kind
