"""How full the cluster's GPUs are, and how much of what is free is of no use. Pure; one owner.

What each node adds is kept, and found again only once the node has changed.

Fragmentation is the measure of Weng et al. ("Beware of Fragmentation", USENIX ATC 2023) for seats:
a pod that asks for a seat of a kind can't use what is left on GPUs of which no group of that kind
has a free seat. The mean over all kinds, each as often as pods hold seats of it now, is how many
GPUs a next pod couldn't use on average.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.ledger.parking import seat_cost
from kybernate.core.placement import FULL
from kybernate.core.placement.lattice import gpus_in_order
from kybernate.core.placement.seats import supply_of
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from kybernate.core.ledger.ledger import Ledger, NodeView
    from kybernate.types import NodeName

CHUNK = 200
"""Nodes that are looked at in one go."""

MOST_SHAPES = 20_000
"""Shapes of nodes of which it is kept what they add."""


class Used(NamedTuple):
    """How much there is, and how much of it is taken."""

    total: int
    taken: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The whole cluster: seats by resource and product, GPU memory in bytes by product.

    Memory is taken by what pods may fill, active or parked, so that it may be more than there is.
    `free_gpus` is what seats leave free in all, `fragmented_gpus` what of it a next pod couldn't
    use.
    """

    seats: Mapping[tuple[str, str], Used]
    memory: Mapping[str, Used]
    free_gpus: float
    fragmented_gpus: float


_Key = tuple[str, ...]


class Utilisation:
    """Sums over all nodes. `views` gives a node as it is now."""

    def __init__(self, ledger: Ledger, views: Callable[[NodeName], NodeView | None]) -> None:
        self._changed = ledger.follow()
        self._views = views
        self._parts: dict[NodeName, Counter[_Key]] = {}
        self._of_shape: dict[Hashable, Counter[_Key]] = {}
        self._sums: Counter[_Key] = Counter()

    def refresh(self, most: int = CHUNK) -> bool:
        """Look at so many of the nodes that have changed; whether some are left."""
        for name in list(self._changed)[:most]:
            self._changed.discard(name)
            self._sums.subtract(self._parts.pop(name, Counter()))
            view = self._views(name)
            if view is not None:
                self._parts[name] = part = self._part(view)
                self._sums.update(part)
        return bool(self._changed)

    def _part(self, view: NodeView) -> Counter[_Key]:
        """What a node adds to the sums, which is the same for all of its shape."""
        known = self._of_shape.get(view.shape)
        if known is None:
            if len(self._of_shape) >= MOST_SHAPES:
                self._of_shape.clear()
            known = self._of_shape[view.shape] = _part(view)
        return known

    def figures(self) -> Figures:
        """The sums as of the last `refresh`."""
        sums = self._sums
        seats = {
            (key[1], key[2]): Used(total, sums["taken", key[1], key[2]])
            for key, total in sums.items()
            if key[0] == "seats" and total
        }
        memory = {
            key[1]: Used(total, sums["claimed", key[1]])
            for key, total in sums.items()
            if key[0] == "bytes" and total
        }
        held: Counter[str] = Counter()
        for (resource, _), used in seats.items():
            held[resource] += used.taken
        lost = sum(count * sums["lost", resource] for resource, count in held.items())
        mean = lost / held.total() if held.total() else 0
        return Figures(seats, memory, sums["free",] / FULL, mean / FULL)


def _part(view: NodeView) -> Counter[_Key]:
    """What a node adds to the sums."""
    found: Counter[_Key] = Counter()
    groups = {group.name: group for group in view.seats.groups}
    for group in groups.values():
        gpus = view.gpus(group)
        if gpus:
            found["seats", group.resource, gpus[0].product] += group.seats
            found["taken", group.resource, gpus[0].product] += view.taken(group.name)
    for gpu in view.seats.gpus:
        found["bytes", gpu.product] += gpu.memory
    for claim in view.claims:
        if claim.group in groups and (gpus := view.gpus(groups[claim.group])):
            found["claimed", gpus[0].product] += seat_cost(gpus, claim.vram)
    _add_free(view, found)
    return found


def _add_free(view: NodeView, found: Counter[_Key]) -> None:
    uuids = [gpu.uuid for gpu in gpus_in_order(view)]
    free = dict(zip(uuids, supply_of(view).free, strict=True))
    found["free",] += sum(free.values())
    for resource in {group.resource for group in view.seats.groups}:
        usable = {
            uuid
            for group in view.seats.groups
            if group.resource == resource and view.taken(group.name) < group.seats
            for uuid in group.gpus
        }
        found["lost", resource] += sum(left for uuid, left in free.items() if uuid not in usable)
