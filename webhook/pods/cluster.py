"""What the GPUNodes say about groups and GPUs, as far as admission needs it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kybernate.core.ledger.ledger import NodeSeats


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


def cluster_of(nodes: Iterable[NodeSeats]) -> Cluster:
    """What nodes offer; one of which nothing can be read offers nothing."""
    return Cluster(tuple(group for node in nodes for group in _groups(node)))


def _groups(node: NodeSeats) -> Iterator[KnownGroup]:
    gpus = {gpu.uuid: (gpu.product, gpu.memory) for gpu in node.gpus}
    for group in node.groups:
        members = tuple(gpus[uuid] for uuid in group.gpus if uuid in gpus)
        yield KnownGroup(group.name, group.resource, members, node.name)
