"""What the GPUNodes say about groups and GPUs, as far as admission needs it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod wants: a resource, one of some products, a group, a node. Empty means any."""

    resource: str
    products: tuple[str, ...] = ()
    group: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """A group of some node; `gpus` holds product and memory (bytes) of each member."""

    name: str
    resource: str
    gpus: tuple[tuple[str, int], ...]
    node: str = ""

    def fits(self, wish: Wish) -> bool:
        """Whether a pod that wants this may get a seat of the group."""
        of_product = not wish.products or all(one in wish.products for one, _ in self.gpus)
        named = wish.group in ("", self.name) and wish.node in ("", self.node)
        return self.resource == wish.resource and of_product and named and bool(self.gpus)


@dataclass(frozen=True, slots=True)
class Cluster:
    """All groups known. Without any, what pods ask for can't be compared with what there is."""

    groups: tuple[KnownGroup, ...] = ()

    def names(self, resource: str) -> frozenset[str]:
        """The names of the groups whose seats are of this resource."""
        return frozenset(group.name for group in self.groups if group.resource == resource)

    def gpu_sizes(self, wish: Wish) -> frozenset[int]:
        """Bytes of the GPUs that a pod may get; none if no group that fits is known."""
        fitting = [group for group in self.groups if group.fits(wish)]
        return frozenset(memory for group in fitting for _, memory in group.gpus)

    def products(self) -> frozenset[str]:
        """All products known."""
        return frozenset(product for group in self.groups for product, _ in group.gpus)


def read_nodes(nodes: Iterable[dict[str, Any]]) -> Cluster:
    """What GPUNode objects say; parts that are missing or of another shape count as absent."""
    return Cluster(
        tuple(
            group
            for node in nodes
            for group in _groups(node.get("status"), (node.get("metadata") or {}).get("name", ""))
        )
    )


def _groups(status: object, node: str) -> list[KnownGroup]:
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
            node,
        )
        for group in status.get("groups") or ()
    ]
