"""The policies: what a place is worth for a pod, as named functions in one table.

Worth is in thousandths, 0 to FULL for all but `default`, which can be below 0 where a pod would
waste more than a GPU, and above FULL where it takes less than its part. Worths that are rounded to
steps of 10 are so by their authors' definition: equals go to the first node, and that packs (see
docs/scheduling.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import exp
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.forecast import worth as worth_of_wait
from kybernate.core.placement.fill import Fill, Pool
from kybernate.core.placement.fragments import Fragments
from kybernate.core.placement.model import FULL
from kybernate.core.placement.outlook import Outlook
from kybernate.types import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kybernate.core.placement.model import Ask, Demand, Place, Supply

    Worth = Callable[[Supply, Ask, Place], float]


DEFAULT = "default"


@dataclass(frozen=True, eq=False)
class Policy:
    """How a place is rated. With `tightest`, of equal places the GPU with the least left is first.
    `foresees`: the expected wait counts, and the way of a saved state. `by_name`: of nodes of equal
    worth the first by name is taken, however full it is.

    Two policies are the same only if they are the same object: what is kept per policy stays true.
    """

    name: str
    worth: Worth
    tightest: bool = True
    foresees: bool = False
    by_name: bool = False

    def order(self, node: Supply, ways: Iterable[Place]) -> Iterable[Place]:
        """The places in the order in which equals are preferred."""
        if not self.tightest:
            return iter(ways)
        return iter(sorted(ways, key=lambda place: [node.free[at] for at in place.gpus]))


class Weights(NamedTuple):
    """How much each part counts in `weighted`; only their proportions matter."""

    availability: int = 40
    product: int = 30
    topology: int = 20
    utilisation: int = 10


def policies(outlook: Outlook, weights: Weights | None = None) -> Mapping[str, Policy]:
    """The table, for the demand expected."""
    table = (
        Policy(
            DEFAULT,
            partial(_least_waste, Fill(outlook), Pool(outlook), outlook.scarcity),
            tightest=False,
            foresees=True,
        ),
        Policy("fgd", partial(_fgd, Fragments(outlook)), tightest=False),
        Policy("first-fit", _first_fit, by_name=True),
        Policy("best-fit", partial(_best_fit, outlook)),
        Policy("worst-fit", partial(_worst_fit, outlook), tightest=False),
        Policy("bin-pack", _bin_pack),
        Policy("spread", _spread, tightest=False),
        Policy("topology", _topology),
        Policy("affinity", partial(_affinity, outlook)),
        Policy("weighted", partial(_weighted, outlook, weights or Weights())),
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
        """Go on with these. What has become of each policy."""
        before, self._policies = self._policies, made
        return {policy: made[name] for name, policy in before.items()}

    def named(self, name: str) -> Policy:
        """The policy of the name."""
        return self._policies[name]


def _least_waste(
    fill: Fill, pool: Pool, scarcity: Mapping[str, float], node: Supply, ask: Ask, place: Place
) -> float:
    """The least GPU lost for later pods, and for a seat also the least waiting, the most room, and
    the GPUs that are asked for least.

    A wait of 5 seconds that each call would bring about counts as half a GPU lost, an endless one
    as a whole GPU: however long waits are, a shorter one is better, on other nodes too. What a
    saved state takes longer there than where it is soonest counts with it.
    """
    if place.group is None:
        return FULL - (fill.use(node) - fill.use(node.less(ask, place)) - ask.total)
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


def _fgd(fragments: Fragments, node: Supply, ask: Ask, place: Place) -> float:
    """Fragmentation gradient descent (Weng et al., 2023): the least growth of fragmentation."""
    grown = fragments.of(node.less(ask, place)) - fragments.of(node)
    return _hundredths(1 / (1 + exp(grown / FULL)))


def _first_fit(node: Supply, ask: Ask, place: Place) -> float:
    """All that fit are alike, so the first one is taken."""
    return 0


def _best_fit(outlook: Outlook, node: Supply, ask: Ask, place: Place) -> float:
    """The least left over: of a seat's GPU memory, then of the node's seats; or of a node's CPU and
    GPUs."""
    if place.group is not None:
        return _first_then(_filling(place), FULL * FULL / (FULL + sum(node.free)))
    return _least_left(outlook, node, ask)


def _least_left(outlook: Outlook, node: Supply, ask: Ask) -> float:
    cpu = (node.cpu - ask.cpu) / outlook.cpu
    gpu = (sum(node.free) - ask.total) / (FULL * outlook.gpus)
    return _hundredths(1 - (cpu + gpu) / 2)


def _filling(place: Place) -> float:
    """How much of a seat's GPU memory the pod fills; all of it if it doesn't say."""
    return FULL * place.vram // place.room if place.vram is not None and place.room else FULL


def _worst_fit(outlook: Outlook, node: Supply, ask: Ask, place: Place) -> float:
    """The most left over."""
    return FULL - _best_fit(outlook, node, ask, place)


def _bin_pack(node: Supply, ask: Ask, place: Place) -> float:
    """Nodes that are in use already, so that others stay empty; for seats the fullest node first,
    then its fullest GPUs.

    For bare GPUs the steps are those of the packing policy of Weng et al.
    """
    if place.group is not None:
        return _first_then(FULL - _mean(node.free), place.load)
    if not ask.gpus:
        return 0
    if min(node.free) == FULL:
        return 10 * max(33 - len(node.free), len(node.free))
    whole = sum(node.free[at] == FULL for at in place.gpus)
    if whole:
        return 10 * max(50 - whole, 33)
    return 10 * max(50, 100 - sum(node.free[at] for at in place.gpus) // 100)


def _spread(node: Supply, ask: Ask, place: Place) -> float:
    """Nodes with the fewest of their seats taken, then such GPUs; or GPUs and nodes with the most
    left: pods meet each other least."""
    if place.group is not None:
        return _first_then(_mean(node.free), FULL - place.load)
    return _freedom(node, place)


def _freedom(node: Supply, place: Place) -> float:
    """What is free at the place; of bare GPUs as much counts what is free on the node."""
    if place.group is not None:
        return FULL - place.load
    return (_mean(node.free) + _mean([node.free[at] for at in place.gpus])) / 2


def _topology(node: Supply, ask: Ask, place: Place) -> float:
    """The best links inside; then the group that breaks the worst-linked larger one, or none."""
    unbroken = len(Link) if place.breaks is None else Link.NVLINK - place.breaks
    most = (len(Link) + 1) * Link.NVLINK + len(Link)
    return FULL * ((len(Link) + 1) * place.link + unbroken) // most


def _affinity(outlook: Outlook, node: Supply, ask: Ask, place: Place) -> float:
    """Like to like: nodes that have run pods of this size only; else of this among others."""
    if not ask.gpus:
        return 0
    if place.preferred:
        return FULL
    alone = node.sizes == {ask.size}
    likes = 75 if alone else 50 if ask.size in node.sizes else 0 if node.sizes else 25
    room = FULL * outlook.gpus
    return 10 * (likes + 25 * (room - sum(node.free)) // room)


def _weighted(outlook: Outlook, weights: Weights, node: Supply, ask: Ask, place: Place) -> float:
    """A weighted mean of what is free there, GPU product, links, and how used the node is."""
    seat = place.group is not None
    product = _filling(place) if seat else _least_left(outlook, node, ask)
    parts = (
        _freedom(node, place),
        FULL if place.named or ask.products else product,
        _topology(node, ask, place),
        FULL - _mean(node.free),
    )
    return sum(w * part for w, part in zip(weights, parts, strict=True)) / sum(weights)


def _mean(values: Iterable[int]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0


def _first_then(first: float, second: float) -> float:
    """The first counts, and only where it is equal the second; both in thousandths, and both from 0
    to FULL. A difference of less than a thousandth in the first counts as none."""
    return (FULL * first + second) / (FULL + 1)


def _hundredths(value: float) -> float:
    """Cut to whole hundredths, as thousandths; what floating point takes off is put back."""
    return 10 * int(100 * value + 1e-9)


POLICIES: Mapping[str, Policy] = policies(Outlook())
"""The table where nothing is known of the demand to come."""
