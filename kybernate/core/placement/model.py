"""One model of demand and supply, for all policies.

A *node* (`Supply`) has GPUs, each with a share left in thousandths, CPU, and memory. A pod (`Ask`)
takes the same share of each of some GPUs of one node. A *place* is one way to give it those. What
a seat adds (its group, links, room to park, traffic) is said by the place: a policy sees the same
numbers whether a pod asks for a seat of a group or for a share of a bare GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kybernate.dataclass import dataclass
from kybernate.types import Link

if TYPE_CHECKING:
    from kybernate.core.swap.forecast import Traffic
    from kybernate.core.tiers.tiers import Artifact
    from kybernate.types import GroupName

FULL = 1000
"""A whole GPU, and the greatest worth and load: shares are in thousandths."""

ENDLESS = 1 << 60
"""Bytes: more than any pods fill."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a pod that wants a seat asks for. `vram` in bytes per GPU, None for the whole GPU.

    `products` are alternatives, `topology` is the least link between any two GPUs of the group.
    A required group is a condition, a preferred one a wish. `party` says with whom the pod may
    share GPUs (`core.sharing`), `traffic` when its model is used, if that is known; with `apart` it
    must not share with a model that is hot at hours at which it is itself. `policy` is the name of
    the one that it is placed by, empty for the extender's. `states` are the copies that are known
    of the artifact from which the pod wants to continue.
    """

    resource: str
    vram: int | None = None
    products: tuple[str, ...] = ()
    prefer_group: GroupName | None = None
    require_group: GroupName | None = None
    topology: Link | None = None
    party: str = ""
    traffic: Traffic | None = None
    apart: bool = False
    policy: str = ""
    states: tuple[Artifact, ...] = ()


class Ask(NamedTuple):
    """What a pod takes: of each of `gpus` GPUs of one node `share` thousandths.

    `cpu` in thousandths of a CPU, `memory` (the host's) in bytes. `products` are the alternatives
    that it runs on; none means any. Only a seat is a share below FULL of several GPUs; its `memory`
    is what it may fill of GPUs and host together, and nothing is known of its CPU.
    """

    gpus: int
    share: int = FULL
    cpu: int = 0
    memory: int = 0
    products: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Thousandths of a GPU that it takes in all."""
        return self.gpus * self.share

    @property
    def size(self) -> int:
        """How many GPUs it takes as a whole: 0 for a share of one."""
        return self.total // FULL


class Supply(NamedTuple):
    """What a node has left: `free` thousandths of each GPU, by index; all are of one product.

    `cpu` in thousandths of a CPU and `memory` in bytes are what is left (for seats: see `Ask`).
    `sizes` are those of the pods with GPUs that it has run (see `Ask.size`).
    """

    free: tuple[int, ...]
    product: str = ""
    cpu: int = 0
    memory: int = 0
    sizes: frozenset[int] = frozenset()

    def suits(self, ask: Ask) -> bool:
        """Whether the node could take the pod now."""
        if self.cpu < ask.cpu or self.memory < ask.memory:
            return False
        if ask.gpus == 0:
            return True
        if ask.products and self.product not in ask.products:
            return False
        return sum(left >= ask.share for left in self.free) >= ask.gpus

    def less(self, ask: Ask, place: Place) -> Supply:
        """The node once the pod has the place."""
        free, sizes = list(self.free), self.sizes
        for at in place.gpus:
            free[at] -= ask.share
        if ask.gpus and ask.size not in sizes:
            sizes |= {ask.size}
        cpu, memory = self.cpu - ask.cpu, self.memory - ask.memory
        return Supply(tuple(free), self.product, cpu, memory, sizes)


class Place(NamedTuple):
    """One way to give a pod its GPUs: their indices in the node's `free`.

    For a seat, `group` names the GPUs. `link` is the worst one inside, `breaks` the best one of a
    larger group that the pod would keep from working as a whole (None: it breaks none). `room` is
    what a pod may use of each GPU and `vram` what this one says it will, in bytes (`vram` None:
    the whole). `load` is how many of the seats on these GPUs are taken, in thousandths.
    `park_room` in bytes is what the node could still park (None: no limit), `wait` the seconds that
    each call for the pod would bring about, as the traffic of those on the GPUs tells. `preferred`
    says that the pod wishes for this group, `named` that it named the GPUs' product. `detour` are
    the seconds that the state from which it continues takes longer there than where it is soonest.
    """

    gpus: tuple[int, ...]
    group: GroupName | None = None
    link: Link = Link.NVLINK
    breaks: Link | None = None
    room: int = 0
    vram: int | None = None
    load: int = 0
    park_room: int | None = None
    wait: float = 0.0
    preferred: bool = False
    named: bool = False
    detour: float = 0.0
