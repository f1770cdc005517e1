"""What this machine is: its GPUs, its kernel, and what this process may do."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

GIB = 1 << 30
_SYSLOG_READ_ALL = 3


class SkippedError(Exception):
    """Something can't be asked here; the message says why."""


def has(module: str) -> bool:
    """Whether this Python has the module."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def has_torch() -> bool:
    """Whether this Python has PyTorch, for the GPU that is here."""
    return has("torch") and not simulated()


def simulated() -> bool:
    """Whether the driver is the simulated one."""
    return "SIMGPU_DIR" in os.environ


def nvml() -> Any:
    """NVML's binding, initialised. Raises SkippedError without a GPU that can be used."""
    missing = [name for name in ("pynvml", "cuda.bindings") if not has(name)]
    if missing:
        raise SkippedError(f"{sys.executable} has no {' and no '.join(missing)}")
    import pynvml  # noqa: PLC0415 - may be missing

    try:
        pynvml.nvmlInit()
        pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as error:
        raise SkippedError(f"there is no usable NVIDIA GPU: {error}") from error
    return pynvml


def gpus() -> list[str]:
    """UUIDs of the GPUs by index. Raises SkippedError."""
    library = nvml()
    handles = map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount()))
    return [str(library.nvmlDeviceGetUUID(handle)) for handle in handles]


def require_gpu() -> str:
    """The first GPU's UUID. Raises SkippedError."""
    return gpus()[0]


def memory(uuid: str) -> Any:
    """NVML's `used`, `free` and `total` bytes of a GPU."""
    library = nvml()
    return library.nvmlDeviceGetMemoryInfo(library.nvmlDeviceGetHandleByUUID(uuid.encode()))


def used_bytes(uuid: str) -> int:
    """GPU memory in use by all processes."""
    return int(memory(uuid).used)


def available_ram() -> int:
    """Bytes that the host could give to processes now."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def room(uuid: str, most: int, share: float, copies: float) -> int:
    """Bytes for one model: at most `most`, and `share` of what is free on the GPU; the host must
    take `copies` of it and keep a third."""
    found = min(most, int(memory(uuid).free * share), int(available_ram() * 0.66 / copies))
    return max(4 << 20, found >> 21 << 21)


def kernel_log() -> str:
    """What the kernel's log begins with; empty where this process may not read it."""
    buffer = ctypes.create_string_buffer(1 << 16)
    length = ctypes.CDLL(None).klogctl(_SYSLOG_READ_ALL, buffer, len(buffer))
    return buffer.raw[: max(0, length)].decode(errors="replace")


def is_gvisor(log: str | None = None, version: str | None = None) -> bool:
    """Whether system calls are answered by gVisor: its log says so, and its version never changes
    from a kernel's of 2016."""
    told = kernel_log() if log is None else log
    if version is None:
        version = Path("/proc/version").read_text()
    return "gVisor" in told or "Sun Jan 10 15:06:54 PST 2016" in version


def first_line(path: str) -> str:
    """A small file of the kernel's; empty if it isn't there."""
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def number_after(path: Path, key: str) -> int:
    """The number behind `key:` in a file such as /proc/PID/status; 0 if it isn't there."""
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
    return 0
