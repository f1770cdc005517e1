"""Host memory as the kernel tells it: the node's, and what a container's limits leave.

Every call is a few small reads and safe on an event loop.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kybernate.adapters.kernel import smallfile
from kybernate.core.seat.budget import HostMemory, MemoryLevel
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError

_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of a page below 2^63."""
_NOT_THERE = (FileNotFoundError, ProcessLookupError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class _Files:
    limit: str
    usage: str
    stat: str
    inactive: str
    events: str


_V1 = _Files(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.stat",
    "total_inactive_file",
    "memory.oom_control",
)
_V2 = _Files("memory.max", "memory.current", "memory.stat", "inactive_file", "memory.events")


class KernelMemory:
    """Implements `kybernate.ports.Memory`. `mount` is where the node mounts its cgroups."""

    def __init__(self, mount: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._v2 = (mount / "cgroup.controllers").exists()
        self._files = _V2 if self._v2 else _V1
        self._base = str(mount if self._v2 else mount / "memory")
        self._proc = proc

    def host(self) -> HostMemory:
        """The node's memory. Raises OSError if /proc isn't what it should be."""
        fields = {}
        for line in smallfile.read(f"{self._proc}/meminfo").splitlines():
            key, _, rest = line.partition(":")
            fields[key] = rest
            if "MemTotal" in fields and "MemAvailable" in fields:
                break
        sizes = {key: int(rest.split()[0]) * 1024 for key, rest in fields.items()}
        return HostMemory(sizes["MemTotal"], sizes["MemAvailable"], self._stalled())

    def levels(self, pid: int, need: int) -> tuple[MemoryLevel, ...]:
        """The limits over this process, its own cgroup's first. Raises NotFoundError.

        Where `need` bytes fit anyway, cached file pages count as used: to ask for them is slow.
        """
        folder, found, depth = self._group(pid), [], 0
        while len(folder) > len(self._base):
            with suppress(*_NOT_THERE):
                level = self._level(folder, _whose(depth, folder), need)
                if level is not None:
                    found.append(level)
            folder, depth = os.path.dirname(folder), depth + 1
        return tuple(found)

    def oom_kills(self, pid: int) -> int:
        """How many processes of its cgroup the kernel killed for want of memory.

        0 if the kernel doesn't count them. Raises NotFoundError.
        """
        group = self._group(pid)
        with suppress(*_NOT_THERE):
            return _field(f"{group}/{self._files.events}", "oom_kill")
        return 0

    def _stalled(self) -> float | None:
        try:
            text = smallfile.read(f"{self._proc}/pressure/memory")
        except OSError:
            return None  # a kernel without pressure information, or one told not to collect it
        for line in text.splitlines():
            words = line.split()
            if words[:1] == ["full"]:
                return float(words[1].partition("=")[2])
        return None

    def _group(self, pid: int) -> str:
        try:
            lines = smallfile.read(f"{self._proc}/{pid}/cgroup").splitlines()
        except _NOT_THERE as error:
            raise NotFoundError(f"There is no process {pid} any more.") from error
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if (not controllers) if self._v2 else "memory" in controllers.split(","):
                return f"{self._base}/{path.strip('/')}".rstrip("/")
        raise NotFoundError(f"Process {pid} is in no memory cgroup.")

    def _level(self, folder: str, whose: str, need: int) -> MemoryLevel | None:
        files = self._files
        limit = smallfile.read(f"{folder}/{files.limit}").strip()
        if limit == "max" or int(limit) >= _UNLIMITED:
            return None
        usage = int(smallfile.read(f"{folder}/{files.usage}"))
        if int(limit) - usage >= need:
            return MemoryLevel(whose, int(limit), usage)
        cached = _field(f"{folder}/{files.stat}", files.inactive)
        return MemoryLevel(whose, int(limit), max(0, usage - cached))


def _whose(depth: int, folder: str) -> str:
    if depth == 0:
        return "its container's"
    if depth == 1:
        return "its pod's"
    return f"the cgroup {os.path.basename(folder)}'s"


def _field(path: str, name: str) -> int:
    for line in smallfile.read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
