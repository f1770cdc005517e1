"""What the vendor would leave on a node: device nodes, and a CDI spec that lists them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import yaml

from kybernate.keys import VENDOR_CDI_KIND
from kybernate.local.simgpu.folder import LIBRARIES

if TYPE_CHECKING:
    from kybernate.local.simgpu.spec import NodeSpec

CONTAINER_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
CONTROL_NODES = {"nvidiactl": 255, "nvidia-uvm": 254, "nvidia-uvm-tools": 253}
"""Nodes that every GPU container gets, with the minor numbers that ours have."""

_READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
_WRITABLE = ["rw", "nosuid", "nodev", "rbind", "rprivate"]


def make_device_nodes(spec: NodeSpec, dev_dir: Path) -> None:
    """Make nvidia0.., nvidiactl, nvidia-uvm and nvidia-uvm-tools: character nodes that no driver
    serves, mode 0666. Needs CAP_MKNOD; nodes that are there already are replaced."""
    minors = {f"nvidia{gpu.minor}": gpu.minor for gpu in spec.gpus} | CONTROL_NODES
    dev_dir.mkdir(parents=True, exist_ok=True)
    for name, minor in minors.items():
        path = dev_dir / name
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(spec.major, minor))
        path.chmod(0o666)


def write_vendor_cdi(spec: NodeSpec, cdi_dir: Path, run_dir: str = "/run/simgpu") -> Path:
    """Write `nvidia.yaml`, of kind nvidia.com/gpu, the way nvidia-ctk does but without hooks. What
    one of these mounts under a random name in each container, is mounted under one in each node's.

    `run_dir` is the node folder as the node sees it; it is mounted into containers at
    /run/simgpu, its libraries where the vendor's would be. Returns the file's path.
    """
    cdi_dir.mkdir(parents=True, exist_ok=True)
    path = cdi_dir / "nvidia.yaml"
    fresh = cdi_dir / ".nvidia.yaml"
    text = yaml.safe_dump(_document(spec, run_dir), sort_keys=False, explicit_start=True)
    fresh.write_text(text)
    fresh.rename(path)
    return path


def _document(spec: NodeSpec, run_dir: str) -> dict[str, object]:
    nodes = {gpu.uuid: [_node(f"nvidia{gpu.minor}")] for gpu in spec.gpus}
    named = {str(gpu.index): nodes[gpu.uuid] for gpu in spec.gpus} | nodes
    named["all"] = [node for gpu in spec.gpus for node in nodes[gpu.uuid]]
    mounts = [
        _mount(f"{run_dir}/lib/{name}", f"{CONTAINER_LIBRARIES}/{name}", _READ_ONLY)
        for name in LIBRARIES
    ]
    return {
        "cdiVersion": "0.5.0",
        "kind": VENDOR_CDI_KIND,
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": list(map(dict, device_nodes))}}
            for name, device_nodes in named.items()
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [_node(name) for name in CONTROL_NODES],
            "mounts": [*mounts, _mount(run_dir, "/run/simgpu", _WRITABLE), _hook_mount()],
        },
    }


def _node(name: str) -> dict[str, str]:
    return {"path": str(Path("/dev") / name)}


def _mount(host: str, container: str, options: list[str]) -> dict[str, object]:
    return {"hostPath": host, "containerPath": container, "options": list(options)}


def _hook_mount() -> dict[str, object]:
    """Where the hook disable-device-node-modification keeps a file of the driver's."""
    path = f"/run/nvidia-ctk-hook{uuid4()}"
    return _mount("tmpfs", path, ["rw", "size=4k"]) | {"type": "tmpfs"}
