"""Which group of a node a pod gets, and how good the node is for it.

All policies share one selection: rule out what can't be, then take the greatest worth. Ties are
broken alike everywhere, down to the GPUs' indices, so that the same state always gives the same
answer: least contended GPUs, then the group that breaks the worst-linked larger group, then
the best link inside, then the lowest indices.
"""

from __future__ import annotations

from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.ledger.parking import bears
from kybernate.core.placement.colocation import (
    among_hot,
    among_strangers,
    detour,
    expected_wait,
    keeps_cool,
    on_gpus,
    park_room,
    shares_well,
)
from kybernate.core.placement.lattice import filled, gpus_in_order, member, sharers
from kybernate.core.placement.model import ENDLESS, FULL, Ask, Demand, Place, Supply
from kybernate.core.quantity import format_quantity
from kybernate.types import Link

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.core.ledger.ledger import NodeView
    from kybernate.core.placement.policies import Policy
    from kybernate.types import Group, GroupName

    Groups = tuple[Group, ...]


class Candidates(NamedTuple):
    """The groups that can take a pod; if none, why, and whether a free seat would help.

    `kind` is one word for the reason, the same wherever it is the same; see `KINDS`.
    """

    groups: Groups
    reason: str = ""
    seat_helps: bool = False
    kind: str = ""


class Chosen(NamedTuple):
    """The best group of a node, if any fits, and how well the node does.

    `points` are 0 to 10, for who weighs them against others; by policies that don't foresee they
    are one less, and the best of the nodes that are asked about gets it. `rank` is exact, and
    greater for a better node: the preferred group, then the greatest worth, then the least
    contended GPUs, unless the policy goes by the nodes' names.
    """

    group: Group | None
    points: int
    rank: tuple[bool, float, int]


_NOTHING = Chosen(None, 0, (False, -inf, 0))


def candidates(view: NodeView, demand: Demand) -> Candidates:
    """The node's groups that can take the pod now, or the sentence that says why none can."""
    left = view.seats.groups
    for rule in _RULES:
        if not rule.concerns(demand):
            continue
        passed = tuple([group for group in left if rule.passes(view, group, demand)])
        if not passed:
            return Candidates((), rule.sentence(view, left, demand), rule.seat_helps, rule.kind)
        left = passed
    return Candidates(left)


def choose_group(view: NodeView, demand: Demand, policy: Policy) -> Group | None:
    """The best group for the pod, or None if no group can take it."""
    return choose(view, demand, policy)[0]


def score(view: NodeView, demand: Demand, policy: Policy) -> int:
    """How well the node suits the pod, from 0 (not at all) to 10; see `Chosen`.

    Nodes without the preferred group get at most 5, so that any node that has it free is better.
    """
    return choose(view, demand, policy)[1]


def choose(view: NodeView, demand: Demand, policy: Policy, known: Groups | None = None) -> Chosen:
    """What `choose_group` and `score` say, for the price of one.

    `known` are the candidates, where those are known already.
    """
    groups = candidates(view, demand).groups if known is None else known
    if not groups:
        return _NOTHING
    worths = {group.name: worth(view, group, demand, policy) for group in groups}
    best = max(groups, key=lambda group: _rank(view, group, demand, worths[group.name]))
    taken, is_wish = load(view, best), best.name == demand.prefer_group
    rated = max(0, min(FULL, int(worths[best.name])))
    points = (9 * rated + FULL - taken) // FULL if policy.foresees else round(9 * rated / FULL)
    if demand.prefer_group is not None:
        halved = (points + 1) // 2 if policy.foresees else points // 2
        points = 5 + halved if is_wish else points // 2
    return Chosen(best, points, (is_wish, worths[best.name], 0 if policy.by_name else -taken))


def load(view: NodeView, group: Group) -> int:
    """Claims per seat on the group's GPUs, in thousandths, over all groups that share them."""
    loads: dict[GroupName, int] = view.once("loads", dict)
    known = loads.get(group.name)
    if known is None:
        known = loads[group.name] = _load(view, member(view, group).sharing)
    return known


def _load(view: NodeView, sharing: Groups) -> int:
    seats = sum([other.seats for other in sharing])
    taken = sum([min(view.taken(other.name), other.seats) for other in sharing])
    return FULL * taken // seats if seats else FULL


def usable(view: NodeView, group: Group) -> int:
    """The bytes that a seat may use on each GPU of the group: the smallest GPU less the reserve."""
    return max(0, member(view, group).room - view.seats.reserve)


def supply_of(view: NodeView) -> Supply:
    """The node as all policies see it: a GPU has left what is left of the seats on it."""
    return view.once("supply", lambda: _supply_of(view))


def _supply_of(view: NodeView) -> Supply:
    gpus = gpus_in_order(view)
    free = tuple(FULL - _load(view, sharers(view, gpu.uuid)) for gpu in gpus)
    groups = {group.name: len(group.gpus) for group in view.seats.groups}
    sizes = frozenset(groups[claim.group] for claim in view.claims if claim.group in groups)
    return Supply(free, gpus[0].product if gpus else "", 0, _room(view), sizes)


def _room(view: NodeView) -> int:
    """Bytes that further seats may fill, on GPUs and parked."""
    budget = view.seats.park_budget
    if budget is None:
        return ENDLESS
    total, largest = view.held
    return max(0, on_gpus(view) + max(0, budget - largest) - total)


def place_of(
    view: NodeView, group: Group, demand: Demand, *, foresees: bool = True
) -> tuple[Ask, Place]:
    """What a pod with a seat of the group takes of the node, and where. Its wait costs most to
    find out, and is left out unless the policy `foresees`."""
    mine = member(view, group)
    at, broken = mine.at, mine.breaks
    place = Place(
        at,
        group.name,
        mine.link,
        None if broken < 0 else Link(broken),
        usable(view, group),
        demand.vram,
        load(view, group),
        park_room(view, group, demand),
        expected_wait(view, group, demand) if foresees else 0.0,
        group.name == demand.prefer_group,
        bool(demand.products),
        detour(view, group, demand) if foresees else 0.0,
    )
    free = supply_of(view).free
    share = FULL // max(1, mine.seats)
    fills = 0 if view.seats.park_budget is None else filled(mine, demand.vram)
    return Ask(len(at), min([share, *(free[n] for n in at)]), memory=fills), place


def worth(view: NodeView, group: Group, demand: Demand, policy: Policy) -> float:
    """What the group is worth for the pod; see `policies`."""
    ask, place = place_of(view, group, demand, foresees=policy.foresees)
    return policy.worth(supply_of(view), ask, place)


def _rank(view: NodeView, group: Group, demand: Demand, rated: float) -> tuple[object, ...]:
    mine = member(view, group)
    return (
        group.name == demand.prefer_group,
        rated,
        -load(view, group),
        -mine.breaks,
        mine.link,
        [-gpu.index for gpu in mine.gpus],
        group.name,
    )


class _Rule(NamedTuple):
    passes: Callable[[NodeView, Group, Demand], bool]
    sentence: Callable[[NodeView, Groups, Demand], str]
    kind: str
    seat_helps: bool = False
    concerns: Callable[[Demand], object] = lambda _demand: True


def _is_of_resource(view: NodeView, group: Group, demand: Demand) -> bool:
    return group.resource == demand.resource


def _no_resource(view: NodeView, left: Groups, demand: Demand) -> str:
    return f"the node has no group for {demand.resource}"


def _is_ready(view: NodeView, group: Group, demand: Demand) -> bool:
    return view.seats.not_ready is None


def _not_ready(view: NodeView, left: Groups, demand: Demand) -> str:
    return f"the node takes no new seats: {view.seats.not_ready}"


def _is_required(view: NodeView, group: Group, demand: Demand) -> bool:
    return demand.require_group in (None, group.name)


def _no_such_group(view: NodeView, left: Groups, demand: Demand) -> str:
    names = ", ".join(group.name for group in left)
    return f"the node has no group {demand.require_group} for {demand.resource}; it has {names}"


def _is_product(view: NodeView, group: Group, demand: Demand) -> bool:
    gpus = member(view, group).gpus if demand.products else ()
    return all(gpu.product in demand.products for gpu in gpus)


def _no_product(view: NodeView, left: Groups, demand: Demand) -> str:
    found = sorted({gpu.product for group in left for gpu in view.gpus(group)})
    wanted = " or ".join(demand.products)
    return f"the pod asks for {wanted}, and the groups have {', '.join(found) or 'no GPU'}"


def _is_linked(view: NodeView, group: Group, demand: Demand) -> bool:
    return demand.topology is None or member(view, group).link >= demand.topology


def _no_link(view: NodeView, left: Groups, demand: Demand) -> str:
    best = max(member(view, group).link for group in left)
    wanted = demand.topology.name if demand.topology is not None else ""
    return f"the pod asks for GPUs linked by {_words(wanted)}, and the best is {_words(best.name)}"


def _is_large_enough(view: NodeView, group: Group, demand: Demand) -> bool:
    return demand.vram is None or demand.vram <= usable(view, group)


def _too_small(view: NodeView, left: Groups, demand: Demand) -> str:
    room = format_quantity(max(usable(view, group) for group in left))
    wanted = format_quantity(demand.vram or 0)
    return f"the pod asks for {wanted} per GPU, and a seat may use at most {room}"


def _is_parkable(view: NodeView, group: Group, demand: Demand) -> bool:
    budget = view.seats.park_budget
    if budget is None or demand.vram is None or group.seats <= group.active_slots:
        return True
    return demand.vram * len(group.gpus) <= budget


def _not_parkable(view: NodeView, left: Groups, demand: Demand) -> str:
    need = format_quantity((demand.vram or 0) * len(left[0].gpus))
    have = format_quantity(view.seats.park_budget or 0)
    return f"parking the seat would take {need} of host memory, and the node's budget is {have}"


def _is_healthy(view: NodeView, group: Group, demand: Demand) -> bool:
    return member(view, group).whole


def _unhealthy(view: NodeView, left: Groups, demand: Demand) -> str:
    names = ", ".join(group.name for group in left)
    return f"a GPU of {names} is unhealthy or gone"


def _has_seat(view: NodeView, group: Group, demand: Demand) -> bool:
    return view.taken(group.name) < group.seats


def _no_seat(view: NodeView, left: Groups, demand: Demand) -> str:
    seats = sum(group.seats for group in left)
    names = ", ".join(group.name for group in left)
    return f"all {seats} seats of {names} are taken"


def _is_bearable(view: NodeView, group: Group, demand: Demand) -> bool:
    budget = view.seats.park_budget
    if budget is None:
        return True
    total, largest = view.held
    cost = filled(member(view, group), demand.vram)
    return bears(on_gpus(view), budget, total + cost, max(largest, cost))


def _unbearable(view: NodeView, left: Groups, demand: Demand) -> str:
    held = format_quantity(view.held[0])
    have = format_quantity(view.seats.park_budget or 0)
    return (
        f"its pods hold {held} of GPU memory, and another one would be more than its GPUs and the "
        f"{have} of host memory for parked seats can bear"
    )


def _is_alone(view: NodeView, group: Group, demand: Demand) -> bool:
    # The kubelet asks for any ID of a resource: which pod it is for can't be told apart there.
    return not view.seats.by_device_id or all(
        name == group.name for resource, name in view.under_way if resource == demand.resource
    )


def _in_the_way(view: NodeView, left: Groups, demand: Demand) -> str:
    names = sorted(str(name) for resource, name in view.under_way if resource == demand.resource)
    return (
        f"a pod with a seat of {', '.join(names)} is under way there, and without CDI pods of one "
        "group only may be at a time"
    )


_RULES = (
    _Rule(_is_of_resource, _no_resource, "resource"),
    _Rule(_is_required, _no_such_group, "group", concerns=attrgetter("require_group")),
    _Rule(_is_healthy, _unhealthy, "health"),
    _Rule(_is_product, _no_product, "product", concerns=attrgetter("products")),
    _Rule(_is_linked, _no_link, "link", concerns=attrgetter("topology")),
    _Rule(_is_large_enough, _too_small, "memory", concerns=attrgetter("vram")),
    _Rule(_is_parkable, _not_parkable, "park", concerns=attrgetter("vram")),
    _Rule(_is_ready, _not_ready, "ready"),
    _Rule(_has_seat, _no_seat, "seat", seat_helps=True),
    _Rule(_is_bearable, _unbearable, "room", seat_helps=True),
    _Rule(shares_well, among_strangers, "party", seat_helps=True),
    _Rule(keeps_cool, among_hot, "hot", seat_helps=True, concerns=attrgetter("apart")),
    _Rule(_is_alone, _in_the_way, "arrival", seat_helps=True),
)
"""In this order: what never fits is said before what may pass."""

KINDS = tuple(rule.kind for rule in _RULES)
"""The words for the reasons, in the order in which they are looked for."""

HELPED = frozenset(rule.kind for rule in _RULES if rule.seat_helps)
"""Those that may pass once a pod gives up its seat."""


def _words(name: str) -> str:
    return {"NVLINK": "NVLink", "PCIE_SWITCH": "PCIe switch"}.get(
        name, name.lower().replace("_", " ")
    )
