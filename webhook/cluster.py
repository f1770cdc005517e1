"""What the GPUNodes say about groups and GPUs, as far as admission needs it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """A group of some node; `gpus` holds product and memory (bytes) of each member."""

    name: str
    resource: str
    gpus: tuple[tuple[str, int], ...]

    def fits(self, resource: str, products: tuple[str, ...]) -> bool:
        """Whether its seats are of this resource and its GPUs of one of the products (if any)."""
        of_product = not products or all(product in products for product, _ in self.gpus)
        return self.resource == resource and of_product and bool(self.gpus)


@dataclass(frozen=True, slots=True)
class Cluster:
    """All groups known. Without any, what pods ask for can't be compared with what there is."""

    groups: tuple[KnownGroup, ...] = ()

    def names(self, resource: str) -> frozenset[str]:
        """The names of the groups whose seats are of this resource."""
        return frozenset(group.name for group in self.groups if group.resource == resource)

    def largest_gpu(self, resource: str, products: tuple[str, ...]) -> int | None:
        """Bytes of the largest GPU that a seat of this resource may get; None if none is known."""
        fitting = [group for group in self.groups if group.fits(resource, products)]
        return max((memory for group in fitting for _, memory in group.gpus), default=None)


def read_nodes(nodes: Iterable[dict[str, Any]]) -> Cluster:
    """What GPUNode objects say; parts that are missing or of another shape count as absent."""
    return Cluster(tuple(group for node in nodes for group in _groups(node.get("status"))))


def _groups(status: object) -> list[KnownGroup]:
    if not isinstance(status, dict):
        return []
    gpus = {
        gpu["uuid"]: (str(gpu.get("product", "")), int(gpu.get("memoryBytes", 0)))
        for gpu in status.get("gpus") or ()
    }
    return [
        KnownGroup(
            str(group["name"]),
            str(group["resource"]),
            tuple(gpus[uuid] for uuid in group.get("gpus") or () if uuid in gpus),
        )
        for group in status.get("groups") or ()
    ]
