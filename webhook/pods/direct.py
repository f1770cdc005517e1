"""Devices that reach into the GPU's memory past the driver: RDMA and GPUDirect Storage.

What an adapter's driver holds for a process (queue pairs, pinned memory) is in no checkpoint of
CUDA's or CRIU's, so that a seat with one open can't be parked
(docs/design/0178-a-seat-has-no-device-past-the-driver.md). Pure.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from kybernate.api.lenient import mapping, mappings, text
from webhook.pods import asking

if TYPE_CHECKING:
    from collections.abc import Iterator

    Json = dict[str, Any]

_ADAPTERS = ("mellanox.com", "rdma")
"""Groups of which every resource is such an adapter."""
_PATHS = ("/dev/infiniband", "/dev/nvidia-fs")


def problems(spec: Json, container: Json) -> Iterator[str]:
    """What the seat's container has of them; other containers of the pod aren't parked."""
    wanted = {**asking.amounts(container, "requests"), **asking.amounts(container, "limits")}
    for name in sorted(name for name, amount in wanted.items() if amount != "0"):
        if _is_adapter(name):
            yield (
                f"Container {container['name']} asks for {name}, but what an RDMA adapter holds "
                "for a process is in no checkpoint, so that its seat couldn't be parked; remove "
                "it (NCCL then uses sockets), or use a pod without a seat."
            )
    mounted = {text(mount.get("name")) for mount in mappings(container.get("volumeMounts"))}
    for volume in mappings(spec.get("volumes")):
        name, path = text(volume.get("name")), text(mapping(volume.get("hostPath")).get("path"))
        path = posixpath.normpath(f"/{path.lstrip('/')}")
        if name in mounted and path.startswith(_PATHS):
            yield (
                f"Volume {name} is {path}, but what RDMA and GPUDirect Storage hold for "
                "a process is in no checkpoint, so that its seat couldn't be parked; remove it "
                "(cuFile then needs CUFILE_FORCE_COMPAT_MODE=true), or use a pod without a seat."
            )


def _is_adapter(resource: str) -> bool:
    group, _, name = resource.rpartition("/")
    return group in _ADAPTERS or "rdma" in name.lower() or resource == "vpc.amazonaws.com/efa"
