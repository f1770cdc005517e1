"""Make the folder that a simulated node binds at /run/simgpu: description, memory, records."""

from __future__ import annotations

import os
import shutil
import uuid
from typing import TYPE_CHECKING

from kybernate.errors import RetryableError
from kybernate.local.simgpu import layout

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.local.simgpu.spec import GpuSpec, NodeSpec

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
TOOL = "simgpu"
_COMMON_ANCESTOR = {"X": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}


def install(spec: NodeSpec, root: Path, lib_dir: Path) -> None:
    """Fill `root` with a node's description, device memory, records and libraries.

    `root` should lie on a tmpfs that is not mounted noexec. Device memory is allocated here, by
    the caller, so that no container is ever charged for it; with `zero_cost` there is none. Files
    are writable by everybody, since containers run as any user. What was there is replaced, so no
    process may be using it. Raises RetryableError when the file system is full.
    """
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    _replace(root / layout.NODE_FILE, compile_node(spec), mode=0o444)
    _replace(root / layout.STATE_FILE, layout.STATE_HEAD.pack(layout.MAGIC), layout.STATE_SIZE)
    _replace(root / layout.FAULTS_FILE, layout.STATE_HEAD.pack(layout.MAGIC), layout.FAULTS_SIZE)
    for name in (layout.LOCKS_FILE, layout.CALLS_FILE, layout.LOG_FILE):
        _replace(root / name, b"")
    for gpu in spec.gpus:
        length = 0 if spec.zero_cost else memory_file_bytes(spec, gpu)
        _replace(root / layout.memory_file(gpu.index), b"", length)
    libraries = root / "lib"
    libraries.mkdir(exist_ok=True)
    for name in (*LIBRARIES, TOOL):
        fresh = libraries / f".{name}"
        shutil.copyfile(lib_dir / name, fresh)
        fresh.chmod(0o755)
        fresh.rename(libraries / name)


def memory_file_bytes(spec: NodeSpec, gpu: GpuSpec) -> int:
    """Length of a GPU's memory file: its real memory, then one owner's byte per granule."""
    return spec.file_bytes(gpu) + -(-spec.file_bytes(gpu) // spec.granule)


def compile_node(spec: NodeSpec) -> bytes:
    """The binary description that the libraries map; see `native/simgpu/layout.h`."""
    major, minor = (int(part) for part in spec.cuda_version.split("."))
    flags = layout.FLAG_ZERO_COST * spec.zero_cost
    flags |= layout.FLAG_RESTORE_OOM_RETRY * spec.restore_oom_retry
    flags |= layout.FLAG_OPEN * spec.open
    head = layout.NODE_HEAD.pack(
        layout.MAGIC,
        layout.VERSION,
        len(spec.gpus),
        spec.scale,
        flags,
        major * 1000 + minor * 10,
        spec.major,
        spec.granule,
        spec.driver_version.encode(),
    )
    gpus = b"".join(_compile_gpu(spec, gpu) for gpu in spec.gpus)
    gpus = gpus.ljust(layout.MAX_GPUS * layout.GPU.size, b"\0")
    return head + gpus + _matrix(_ancestors(spec)) + _matrix(_nvlinks(spec))


def _compile_gpu(spec: NodeSpec, gpu: GpuSpec) -> bytes:
    return layout.GPU.pack(
        gpu.memory,
        spec.file_bytes(gpu),
        gpu.uuid.encode(),
        uuid.UUID(gpu.uuid.removeprefix("GPU-")).bytes,
        gpu.product.encode(),
        gpu.bus_id.encode(),
        gpu.numa,
        gpu.minor,
        int(gpu.bus_id.split(":")[1], 16),
        0,
    )


def _ancestors(spec: NodeSpec) -> list[list[int]]:
    """NVML's level of the common ancestor; NVLink says nothing of PCIe, so NUMA decides there."""
    return [
        [
            _COMMON_ANCESTOR.get(token, 40 if spec.gpus[a].numa == spec.gpus[b].numa else 50)
            for b, token in enumerate(row)
        ]
        for a, row in enumerate(spec.links)
    ]


def _nvlinks(spec: NodeSpec) -> list[list[int]]:
    return [
        [int(token[2:]) if token.startswith("NV") else 0 for token in row] for row in spec.links
    ]


def _matrix(rows: list[list[int]]) -> bytes:
    table = bytearray(layout.MAX_GPUS * layout.MAX_GPUS)
    for a, row in enumerate(rows):
        table[a * layout.MAX_GPUS : a * layout.MAX_GPUS + len(row)] = bytes(row)
    return bytes(table)


def _replace(path: Path, content: bytes, length: int = 0, mode: int = 0o666) -> None:
    """Write a new file of `length` bytes (or its content's), every page allocated."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, content)
        if length:
            os.posix_fallocate(handle, 0, length)
        os.fchmod(handle, mode)
    except OSError as error:
        raise RetryableError(
            f"cannot set aside {length} bytes at {path}: {error.strerror}; give the simulated "
            "driver a larger file system, or raise its scale"
        ) from error
    finally:
        os.close(handle)
