"""What seats were asked for and what nodes offer: from this an outlook for seats is learned. Pure.

A seat is taken of its GPUs' seats: of a GPU with four, each is a quarter. Memory is what a node's
GPUs hold and its host can park, together: what its seats may fill in the end. Of CPU nothing is
known here; the kube-scheduler counts it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from kybernate import keys
from kybernate.core.placement.colocation import on_gpus
from kybernate.core.placement.lattice import gpus_in_order, member
from kybernate.core.placement.model import ENDLESS, FULL, Ask, Supply
from kybernate.core.placement.outlook import Outlook, expect
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kybernate.core.ledger.ledger import NodeView
    from kybernate.core.placement.model import Demand


@dataclass(frozen=True, slots=True, order=True)
class Wanted:
    """So many pods have asked alike: for `vram` bytes per GPU (-1: the whole), on one of the
    `products` (none: any)."""

    resource: str
    vram: int
    products: tuple[str, ...]
    pods: int


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """How many thousandths of a GPU a seat of the resource is."""

    resource: str
    share: int


@dataclass(frozen=True, slots=True, order=True)
class Offered:
    """So many nodes offer alike: `gpus` of a product, of `memory` bytes each (the least).

    Seats may fill `room` bytes. `shares` are those of a seat of each resource; of several kinds of
    groups the smallest.
    """

    product: str
    memory: int
    gpus: int
    room: int
    shares: tuple[Share, ...]
    nodes: int


@dataclass(frozen=True, slots=True)
class Mix:
    """Both, sorted: the same pods and nodes in any order are the same mix."""

    wanted: tuple[Wanted, ...] = ()
    offered: tuple[Offered, ...] = ()

    def differs(self, other: Mix, by: float) -> bool:
        """Whether more than this part of the demand, or of the nodes, is of another kind there."""
        pairs = ((self.wanted, other.wanted), (self.offered, other.offered))
        return any(_distance(_parts(a), _parts(b)) > by for a, b in pairs)


def wanted(demands: Mapping[Demand, int]) -> tuple[Wanted, ...]:
    """What so many pods each have asked for."""
    found: Counter[tuple[str, int, tuple[str, ...]]] = Counter()
    for one, pods in demands.items():
        found[one.resource, -1 if one.vram is None else one.vram, one.products] += pods
    return tuple(sorted(Wanted(*kind, pods) for kind, pods in found.items()))


def offered(views: Iterable[tuple[NodeView, int]]) -> tuple[Offered, ...]:
    """What so many nodes each offer."""
    found: Counter[Offered] = Counter()
    for view, nodes in views:
        if view.seats.gpus:
            found[_offered(view)] += nodes
    return tuple(sorted(replace(kind, nodes=nodes) for kind, nodes in found.items()))


def learn(mix: Mix) -> Outlook:
    """What to expect of the pods to come, if they go on to ask for what these did."""
    stock = _Stock(mix.offered)
    nodes: Counter[Supply] = Counter()
    for offer in mix.offered:
        # Those that differ in the shares of their seats are one supply.
        nodes[_empty(offer)] += offer.nodes
    asks: Counter[Ask] = Counter()
    for one in mix.wanted:
        ask = stock.ask(one.resource, one.vram, one.products)
        if ask is not None:
            asks[ask] += one.pods
    scarce = scarcity(asks + stock.each_product_once(), nodes)
    return replace(expect(asks, nodes), scarcity=scarce)


def scarcity(asks: Mapping[Ask, int], nodes: Mapping[Supply, int]) -> dict[str, float]:
    """For each product how much more of its GPUs is asked for than of those asked for least, 0 to
    1: demand per supply, each kind of demand spread evenly over all products that suit it."""
    supply: Counter[str] = Counter()
    for node, number in nodes.items():
        supply[node.product] += number * len(node.free)
    demand = sum(ask.total * pods for ask, pods in asks.items())
    pressure = dict.fromkeys(supply, 0.0)
    for ask, pods in asks.items():
        suits = ask.products or tuple(supply)
        part = sum(supply[product] for product in suits) / supply.total()
        for product in suits:
            pressure[product] += ask.total * pods / demand / part
    least = min(pressure.values(), default=0.0)
    return {product: min(1.0, found - least) for product, found in sorted(pressure.items())}


class _Product(NamedTuple):
    name: str
    memory: int


class _Stock:
    """What there is, for reading what was asked for."""

    def __init__(self, offers: Iterable[Offered]) -> None:
        sizes: dict[str, int] = {}
        shares: dict[str, Counter[int]] = {}
        for one in offers:
            sizes[one.product] = min(one.memory, sizes.get(one.product, one.memory))
            # Of more seats than thousandths none can be counted.
            for each in filter(attrgetter("share"), one.shares):
                shares.setdefault(each.resource, Counter())[each.share] += one.nodes
        self._products = sorted(_Product(*item) for item in sizes.items())
        # The most usual share; of equally usual ones the larger.
        self._shares = {
            resource: max(found.items(), key=lambda item: item[::-1])[0]
            for resource, found in shares.items()
        }

    def ask(self, resource: str, vram: int, products: tuple[str, ...]) -> Ask | None:
        """The demand as a policy sees it; None if no GPU here suits it."""
        size, share = keys.seat_resource_size(resource), self._shares.get(resource)
        suits = [
            one
            for one in self._products
            if vram <= one.memory and (not products or one.name in products)
        ]
        if not (size and share and suits):
            return None
        fills = max(one.memory for one in suits) if vram < 0 else vram
        return Ask(size, share, 0, size * fills, self._named(suits))

    def each_product_once(self) -> Counter[Ask]:
        """Before anything was seen each product counts as asked for once, by a pod that needs as
        much memory as it has: nobody buys large GPUs for small pods."""
        share = max(self._shares.values(), default=FULL)
        found: Counter[Ask] = Counter()
        for one in self._products:
            suits = [other for other in self._products if other.memory >= one.memory]
            found[Ask(1, share, 0, one.memory, self._named(suits))] += 1
        return found

    def _named(self, suits: list[_Product]) -> tuple[str, ...]:
        return () if len(suits) == len(self._products) else tuple(one.name for one in suits)


def _offered(view: NodeView) -> Offered:
    gpus = gpus_in_order(view)
    shares: dict[str, int] = {}
    for group in view.seats.groups:
        share = FULL // max(1, member(view, group).seats)
        shares[group.resource] = min(share, shares.get(group.resource, share))
    budget = view.seats.park_budget
    return Offered(
        gpus[0].product,
        min(gpu.memory for gpu in gpus) - view.seats.reserve,
        len(gpus),
        ENDLESS if budget is None else on_gpus(view) + budget,
        tuple(Share(*item) for item in sorted(shares.items())),
        0,
    )


def _empty(one: Offered) -> Supply:
    return Supply((FULL,) * one.gpus, one.product, 0, one.room)


def _parts(kinds: Iterable[Wanted | Offered]) -> dict[Wanted | Offered, float]:
    """The part of each kind, whatever the number."""
    found = dict(chain.from_iterable(map(_part, kinds)))
    total = sum(found.values())
    return {kind: number / total for kind, number in found.items()}


def _part(kind: Wanted | Offered) -> Iterator[tuple[Wanted | Offered, int]]:
    if isinstance(kind, Wanted):
        yield replace(kind, pods=0), kind.pods
    else:
        yield replace(kind, nodes=0), kind.nodes


def _distance(a: Mapping[Wanted | Offered, float], b: Mapping[Wanted | Offered, float]) -> float:
    """The part that would have to be of another kind; 1 if only one is empty."""
    if not a or not b:
        return float(bool(a) != bool(b))
    return sum(abs(a.get(kind, 0.0) - b.get(kind, 0.0)) for kind in a.keys() | b.keys()) / 2
