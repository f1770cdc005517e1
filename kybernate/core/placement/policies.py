"""The policies: what a place is worth for a pod, as named functions in one table.

Worth is in thousandths, 0 to FULL for all but `default`, which can be below 0 where a pod would
waste more than a GPU (see docs/concepts/scheduling/scheduling.md).
"""

from __future__ import annotations

from functools import partial
from math import exp
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.placement.fragments import Fragments
from kybernate.core.placement.model import FULL
from kybernate.core.placement.outlook import Outlook
from kybernate.core.placement.pool import Pool
from kybernate.core.swap.forecast import worth as worth_of_wait
from kybernate.dataclass import dataclass
from kybernate.types import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kybernate.core.placement.model import Ask, Demand, Place, Supply

    Worth = Callable[[Supply, Ask, Place], float]


DEFAULT = "default"


@dataclass(frozen=True, eq=False)
class Policy:
    """How a place is rated; this is all that placing knows of a policy.

    `worth` gives thousandths, more for a better place. `foresees`: the expected wait counts, and
    the way of an artifact. `by_name`: of nodes of equal worth the first by name is taken, however
    full it is.

    Two policies are the same only if they are the same object: what is kept per policy stays true.
    """

    name: str
    worth: Worth
    foresees: bool = False
    by_name: bool = False


class Weights(NamedTuple):
    """How much each part counts in `weighted`; only their proportions matter."""

    availability: int = 40
    product: int = 30
    topology: int = 20
    utilisation: int = 10

    def mean(self, parts: Sequence[float]) -> float:
        """The parts' mean, each as its weight says."""
        return sum(w * part for w, part in zip(self, parts, strict=True)) / sum(self)


def policies(outlook: Outlook, weights: Weights | None = None) -> Mapping[str, Policy]:
    """The table, for the demand expected."""
    table = (
        Policy(DEFAULT, partial(_least_waste, Pool(outlook), outlook.scarcity), foresees=True),
        Policy("fgd", partial(fragmentation_gradient, Fragments(outlook))),
        Policy("first-fit", _first_fit, by_name=True),
        Policy("best-fit", _best_fit),
        Policy("worst-fit", _worst_fit),
        Policy("bin-pack", _bin_pack),
        Policy("spread", _spread),
        Policy("topology", topology),
        Policy("affinity", partial(affinity, outlook)),
        Policy("weighted", partial(_weighted, weights or Weights())),
    )
    return {policy.name: policy for policy in table}


class Table:
    """The policies by name, under one outlook at a time.

    Learning makes new policies: two are the same only if nothing was learned in between.
    """

    def __init__(self, usual: str = DEFAULT, weights: Weights | None = None) -> None:
        """`usual` is the policy of demands that name none."""
        self.usual = usual
        self.weights = weights or Weights()
        self._policies = policies(Outlook(), self.weights)

    def of(self, demand: Demand) -> Policy:
        """The policy that the demand is placed by."""
        return self.named(demand.policy or self.usual)

    def made(self, outlook: Outlook) -> Mapping[str, Policy]:
        """The policies under another outlook, for `take`."""
        return policies(outlook, self.weights)

    def take(self, made: Mapping[str, Policy]) -> dict[Policy, Policy]:
        """Continue with these. What has become of each policy."""
        before, self._policies = self._policies, made
        return {policy: made[name] for name, policy in before.items()}

    def named(self, name: str) -> Policy:
        """The policy of the name."""
        return self._policies[name]


def _least_waste(
    pool: Pool, scarcity: Mapping[str, float], node: Supply, ask: Ask, place: Place
) -> float:
    """The least GPU lost for later pods, the least waiting, the most room, and the GPUs that are
    asked for least.

    A wait of 5 seconds that each call would bring about counts as half a GPU lost, an endless one
    as a whole GPU: however long waits are, a shorter one is better, on other nodes too. What an
    artifact takes longer there than where it is soonest counts with it.
    """
    lost = pool.lost(node, ask)
    scarce = scarcity.get(node.product, 0.0) * ask.total
    return worth_of_wait(place.wait + place.detour, FULL) - lost - scarce - _want_of_room(place)


def _want_of_room(place: Place) -> float:
    """What it counts that the node could hardly park more seats like this one: at most a tenth of
    a GPU, half of that if it could park one more."""
    if place.park_room is None:
        return 0.0
    size = (place.room if place.vram is None else place.vram) * len(place.gpus)
    more = max(0, place.park_room) / size if size else 0.0
    return FULL / 10 / (1 + more)


def fragmentation_gradient(fragments: Fragments, node: Supply, ask: Ask, place: Place) -> float:
    """Fragmentation gradient descent (Weng et al., 2023): the least growth of fragmentation."""
    grown = fragments.of(node.less(ask, place)) - fragments.of(node)
    return hundredths(1 / (1 + exp(grown / FULL)))


def _first_fit(node: Supply, ask: Ask, place: Place) -> float:
    """All that fit are alike, so the first one is taken."""
    return 0


def _best_fit(node: Supply, ask: Ask, place: Place) -> float:
    """The least left over: of a seat's GPU memory, then of the node's seats."""
    return _first_then(_filling(place), FULL * FULL / (FULL + sum(node.free)))


def _filling(place: Place) -> float:
    """How much of a seat's GPU memory the pod fills; all of it if it doesn't say."""
    return FULL * place.vram // place.room if place.vram is not None and place.room else FULL


def _worst_fit(node: Supply, ask: Ask, place: Place) -> float:
    """The most left over."""
    return FULL - _best_fit(node, ask, place)


def _bin_pack(node: Supply, ask: Ask, place: Place) -> float:
    """The fullest node, so that others stay empty; then its fullest GPUs."""
    return _first_then(FULL - mean(node.free), place.load)


def _spread(node: Supply, ask: Ask, place: Place) -> float:
    """Nodes with the fewest of their seats taken, then such GPUs: pods meet each other least."""
    return _first_then(mean(node.free), FULL - place.load)


def topology(node: Supply, ask: Ask, place: Place) -> float:
    """The best links inside; then the group that breaks the worst-linked larger one, or none."""
    unbroken = len(Link) if place.breaks is None else Link.NVLINK - place.breaks
    most = (len(Link) + 1) * Link.NVLINK + len(Link)
    return FULL * ((len(Link) + 1) * place.link + unbroken) // most


def affinity(outlook: Outlook, node: Supply, ask: Ask, place: Place) -> float:
    """Like to like: nodes that have run pods of this size only; else of this among others."""
    if place.preferred:
        return FULL
    alone = node.sizes == {ask.size}
    likes = 75 if alone else 50 if ask.size in node.sizes else 0 if node.sizes else 25
    room = FULL * outlook.gpus
    return 10 * (likes + 25 * max(0, room - sum(node.free)) // room)


def _weighted(weights: Weights, node: Supply, ask: Ask, place: Place) -> float:
    """A weighted mean of what is free there, GPU product, links, and how used the node is."""
    parts = (
        FULL - place.load,
        FULL if place.named or ask.products else _filling(place),
        topology(node, ask, place),
        FULL - mean(node.free),
    )
    return weights.mean(parts)


def mean(values: Iterable[int]) -> float:
    """The mean, 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0


def _first_then(first: float, second: float) -> float:
    """The first counts, and only where it is equal the second; both in thousandths, and both from 0
    to FULL. A difference of less than a thousandth in the first counts as none."""
    return (FULL * first + second) / (FULL + 1)


def hundredths(value: float) -> float:
    """Cut to whole hundredths, as thousandths; what floating point takes off is put back."""
    return 10 * int(100 * value + 1e-9)


POLICIES: Mapping[str, Policy] = policies(Outlook())
"""The table where nothing is known of the demand to come."""
