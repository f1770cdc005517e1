"""The description of a node's simulated GPUs: what the YAML says, checked."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import yaml

from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError
from kybernate.local.simgpu.layout import MAX_GPUS, PAGE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([KMGT]?i?)B?")
_LINK = re.compile(r"NV([1-9]|1[0-8])|PIX|PXB|PHB|NODE|SYS")
_NAMESPACE = uuid.UUID("5d2ae7b4-6f1c-4c0a-9d58-0c6f0d2f7c11")
_LOCAL_MAJORS = range(60, 64)
_VERSIONS = {"driver_version", "cuda_version"}
_KEYS = frozenset(
    {"name", "scale", "gpus", "links", "zero_cost", "restore_oom", "major", "open"} | _VERSIONS
)
_GPU_KEYS = frozenset({"product", "memory", "numa", "count"})


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One simulated GPU. `memory` in paper bytes; `numa` is -1 where the platform has none."""

    index: int
    uuid: str
    product: str
    memory: int
    numa: int
    bus_id: str

    @property
    def minor(self) -> int:
        """Minor number of its device node, and the N of /dev/nvidiaN."""
        return self.index


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The simulated GPUs of one node.

    `scale` divides paper sizes into real bytes. `links[a][b]` is a token of `nvidia-smi topo -m`
    (`X`, `NV4`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`). `major` is that of the device nodes, 60-63.
    With `restore_oom_retry` a restore that found no memory can be tried again; without it the
    process is stuck for good, as real drivers were seen to do. `open`: whoever finds the folder has
    all GPUs, without device nodes, which only root can make.
    """

    name: str
    scale: int
    gpus: tuple[GpuSpec, ...]
    links: tuple[tuple[str, ...], ...]
    driver_version: str = "580.95.05"
    cuda_version: str = "13.0"
    zero_cost: bool = False
    restore_oom_retry: bool = False
    major: int = 60
    open: bool = False

    def file_bytes(self, gpu: GpuSpec) -> int:
        """Real bytes behind a GPU's memory: a little more than memory / scale, since each
        allocation is rounded up to a whole granule."""
        real = -(-gpu.memory // self.scale)
        slack = 0 if self.scale == 1 else (1 << 20)
        return -(-(real + slack) // PAGE) * PAGE

    @property
    def granule(self) -> int:
        """Unit in which real memory is handed out, in bytes."""
        return PAGE if self.scale == 1 else 256


def load(path: Path, *, name: str | None = None, zero_cost: bool | None = None) -> NodeSpec:
    """Read a node's description from a YAML file.

    `name` and `zero_cost` replace what the file says; the name is what the UUIDs derive from, so
    that one file can describe several nodes. Raises ConfigError naming the field.
    """
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from error
    return parse(data, name=name, zero_cost=zero_cost)


def parse(data: object, *, name: str | None = None, zero_cost: bool | None = None) -> NodeSpec:
    """Check a description that was read from YAML or made by a test; see `load`."""
    fields = _mapping("description", data, _KEYS)
    node = name or _text("name", fields.get("name", "node"))
    gpus = _gpus(node, fields.get("gpus"))
    major = _number("major", fields.get("major", 60), low=_LOCAL_MAJORS[0], high=_LOCAL_MAJORS[-1])
    zero = _flag("zero_cost", fields.get("zero_cost", False)) if zero_cost is None else zero_cost
    return NodeSpec(
        name=node,
        scale=_number("scale", fields.get("scale", 1), low=1, high=1 << 20),
        gpus=gpus,
        links=_links(gpus, fields.get("links", [])),
        driver_version=_text("driver_version", fields.get("driver_version", "580.95.05"), 31),
        cuda_version=_cuda_version(fields.get("cuda_version", "13.0")),
        zero_cost=zero,
        restore_oom_retry=_restore_oom(fields.get("restore_oom", "stuck")),
        major=major,
        open=_flag("open", fields.get("open", False)),
    )


def size(field: str, value: object) -> int:
    """A number of bytes: an integer, or text such as `80GiB`, `512Mi`, `2GB`."""
    found = _SIZE.fullmatch(str(value).strip())
    if found is None or isinstance(value, bool):
        raise ConfigError(field, f"{value!r} is not a size; write bytes or for example 80GiB")
    return int(found[1]) * _UNITS[found[2]]


def _gpus(node: str, value: object) -> tuple[GpuSpec, ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError("gpus", "must be a list with at least one GPU")
    rows: list[tuple[str, int, int]] = []
    for position, item in enumerate(value):
        field = f"gpus[{position}]"
        entry = _mapping(field, item, _GPU_KEYS)
        count = _number(f"{field}.count", entry.get("count", 1), low=1, high=MAX_GPUS)
        row = (
            _text(f"{field}.product", entry.get("product"), 95),
            size(f"{field}.memory", entry.get("memory")),
            _number(f"{field}.numa", entry.get("numa", -1), low=-1, high=63),
        )
        rows += [row] * count
    if len(rows) > MAX_GPUS:
        raise ConfigError("gpus", f"a node has at most {MAX_GPUS} GPUs, not {len(rows)}")
    return tuple(
        GpuSpec(index, f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}", *row, _bus_id(index))
        for index, row in enumerate(rows)
    )


def _bus_id(index: int) -> str:
    return f"00000000:{16 + index * 8:02X}:00.0"


def _links(gpus: tuple[GpuSpec, ...], value: object) -> tuple[tuple[str, ...], ...]:
    table = [["X" if a is b else "PHB" if a.numa == b.numa else "SYS" for b in gpus] for a in gpus]
    if not isinstance(value, list):
        raise ConfigError("links", "must be a matrix, or a list of {a, b, kind}")
    if value and isinstance(value[0], list):
        return _link_matrix(len(gpus), value)
    for position, item in enumerate(value):
        field = f"links[{position}]"
        entry = _mapping(field, item, frozenset({"a", "b", "kind"}))
        a, b = (
            _number(f"{field}.{end}", entry.get(end), low=0, high=len(gpus) - 1) for end in "ab"
        )
        if a == b:
            raise ConfigError(field, "links a GPU with itself")
        table[a][b] = table[b][a] = _link(f"{field}.kind", entry.get("kind"))
    return tuple(map(tuple, table))


def _link_matrix(count: int, rows: list[object]) -> tuple[tuple[str, ...], ...]:
    table: list[tuple[str, ...]] = []
    for a, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != count or len(rows) != count:
            raise ConfigError(f"links[{a}]", f"the matrix must be {count} by {count}")
        table.append(
            tuple("X" if a == b else _link(f"links[{a}][{b}]", row[b]) for b in range(count))
        )
    for a in range(count):
        for b in range(a):
            if table[a][b] != table[b][a]:
                raise ConfigError(f"links[{a}][{b}]", "must equal its mirror image")
    return tuple(table)


def _link(field: str, value: object) -> str:
    if not isinstance(value, str) or not _LINK.fullmatch(value):
        raise ConfigError(field, f"{value!r} is none of NV1..NV18, PIX, PXB, PHB, NODE, SYS")
    return value


def _cuda_version(value: object) -> str:
    text = str(value)
    if not re.fullmatch(r"\d{1,2}\.\d", text):
        raise ConfigError("cuda_version", f"{value!r} must look like 13.0")
    return text


def _restore_oom(value: object) -> bool:
    if value not in {"stuck", "retry"}:
        raise ConfigError("restore_oom", f"{value!r} must be stuck or retry")
    return value == "retry"


def _mapping(field: str, value: object, known: frozenset[str]) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ConfigError(field, "must be a mapping")
    unknown = sorted(str(key) for key in value.keys() - known)
    if unknown:
        raise ConfigError(f"{field}.{unknown[0]}", f"is unknown; known are {sorted(known)}")
    return value


def _number(field: str, value: object, *, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(field, f"{value!r} must be a whole number from {low} to {high}")
    return value


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(field, f"{value!r} must be true or false")
    return value


def _text(field: str, value: object, longest: int = 63) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode()) <= longest:
        raise ConfigError(field, f"{value!r} must be text of 1 to {longest} bytes")
    return value
