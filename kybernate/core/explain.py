"""Why a pod has no seat, for people: a sentence per group of GPUs, and one for all nodes. Pure.

Reasons come from `placement.candidates`, so that what is told is what was decided. Nodes of one
shape are looked at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kybernate import keys
from kybernate.core.parking import seat_cost
from kybernate.core.placement import KINDS, candidates
from kybernate.core.placement.colocation import expected_wait
from kybernate.core.quantity import format_quantity

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from kybernate.core.ledger import NodeView
    from kybernate.core.placement import Demand
    from kybernate.types import Group, GroupName, NodeName, PodRef

    Views = Mapping[NodeName, NodeView | None]

FITS, NO_NODE = "fits", "node"
"""Beside the words of `placement.KINDS`."""

EXAMPLES = 5
"""How many nodes are named where more are alike."""

TOLD_WAIT_S = 0.05
"""A shorter wait is not told of."""

LOOKED_AT = 50
"""On how many nodes it is looked whether one pod less would make room."""


@dataclass(frozen=True, slots=True)
class Line:
    """What is true of some nodes alike: of one of their groups, or (None) of the node.

    `kind` is one word for the reason. `nodes` are how many, `examples` the first of them.
    """

    kind: str
    group: GroupName | None
    sentence: str
    nodes: int
    examples: tuple[NodeName, ...]


class Remedy(NamedTuple):
    """One pod that would make room by giving up its seat; `size` in bytes of GPU memory."""

    pod: PodRef
    node: NodeName
    group: GroupName
    size: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a pod fits where it does.

    `fits` of `nodes` nodes could take it. `counts` says for how many nodes which kind of reason is
    the last one that stands in the way, `lines` all reasons of all groups.
    """

    summary: str
    nodes: int
    fits: int
    counts: tuple[tuple[str, int], ...]
    lines: tuple[Line, ...]
    remedy: Remedy | None = None


def explain(demand: Demand, views: Views, leaving: frozenset[str] = frozenset()) -> Explanation:
    """Explain a demand on these nodes, of which None are those without a GPUNode.

    `leaving` are the UIDs of pods that give up their seats anyhow.
    """
    kinds: Counter[str] = Counter()
    alike: dict[tuple[str, GroupName | None, str], list[NodeName]] = defaultdict(list)
    known: dict[Hashable, tuple[str, tuple[tuple[str, GroupName | None, str], ...]]] = {}
    for name, view in sorted(views.items()):
        shape = name if view is None or view.shape is None else view.shape
        if shape not in known:
            known[shape] = _of_node(view, demand)
        kind, found = known[shape]
        kinds[kind] += 1
        for line in found:
            alike[line].append(name)
    lines = tuple(
        Line(*line, len(nodes), tuple(nodes[:EXAMPLES])) for line, nodes in _most_first(alike)
    )
    counts = tuple(sorted(kinds.items(), key=lambda one: (-one[1], one[0])))
    remedy = None if kinds[FITS] else _remedy(demand, views, leaving)
    summary = _summary(demand, counts, remedy)
    return Explanation(summary, len(views), kinds[FITS], counts, lines, remedy)


def _most_first(
    alike: Mapping[tuple[str, GroupName | None, str], list[NodeName]],
) -> list[tuple[tuple[str, GroupName | None, str], list[NodeName]]]:
    """What is true of most nodes first."""
    return sorted(alike.items(), key=lambda one: (-len(one[1]), one[0][1] or "", one[0][2]))


def short(kind: str, demand: Demand) -> str:
    """A reason in a few words, without what differs from node to node."""
    size = keys.seat_resource_size(demand.resource)
    seat = f"{size}x seat" if size else demand.resource
    words = {
        FITS: f"a {seat} is free",
        NO_NODE: "no GPUNode tells of their GPUs",
        "resource": f"no group for a {seat}",
        "group": f"no group {demand.require_group}",
        "health": "a GPU is unhealthy or gone",
        "product": f"other GPUs than {' or '.join(demand.products)}",
        "link": "GPUs are not linked as asked for",
        "memory": f"GPUs have less than {format_quantity(demand.vram or 0)} for a seat",
        "park": "too little host memory to park it",
        "ready": "no new seats are taken",
        "seat": f"no free {seat}",
        "room": "no room left on the GPUs and in host memory",
        "party": "pods that may not share with it use the GPUs",
        "hot": "the groups with a free seat hold hot models",
        "arrival": "another pod is just arriving",
    }
    return words.get(kind, kind)


def tell(remedy: Remedy) -> str:
    """A remedy in words."""
    return (
        f"suspending {remedy.pod} ({format_quantity(remedy.size)}) would fit it on {remedy.node}, "
        f"group {remedy.group}"
    )


def _of_node(
    view: NodeView | None, demand: Demand
) -> tuple[str, tuple[tuple[str, GroupName | None, str], ...]]:
    """What stands in the way on a node, and what is to be said of each of its groups."""
    if view is None:
        return NO_NODE, ((NO_NODE, None, "no GPUNode tells of the node's GPUs"),)
    found = candidates(view, demand)
    lines = tuple(_of_groups(view, demand))
    if found.groups:
        return FITS, lines
    return found.kind, lines or ((found.kind, None, found.reason),)


def _of_groups(view: NodeView, demand: Demand) -> Iterator[tuple[str, GroupName | None, str]]:
    for group in view.seats.groups:
        if group.resource != demand.resource:
            continue
        if demand.require_group not in (None, group.name):
            yield "group", group.name, f"the pod asks for group {demand.require_group}"
            continue
        found = candidates(view, replace(demand, require_group=group.name))
        free = group.seats - view.taken(group.name)
        told = f"{free} of {group.seats} seats are free" if found.groups else found.reason
        wait = expected_wait(view, group, demand) if found.groups else 0.0
        if wait >= TOLD_WAIT_S:
            told += f"; each call would have pods wait {wait:.1f} s there"
        yield found.kind or FITS, group.name, told


def _summary(demand: Demand, counts: tuple[tuple[str, int], ...], remedy: Remedy | None) -> str:
    if not counts:
        return "no node's GPUs are known: is the node agent running on the GPU nodes?"
    parts = [f"{count}: {short(kind, demand)}" for kind, count in counts]
    parts[0] = parts[0].replace(":", " node:" if counts[0][1] == 1 else " nodes:", 1)
    return "; ".join([*parts, *([tell(remedy)] if remedy else [])])


def _remedy(demand: Demand, views: Views, leaving: frozenset[str]) -> Remedy | None:
    """The smallest pod whose seat, once given up, would do; on the first nodes that are full."""
    best: tuple[int, str, Remedy] | None = None
    looked = 0
    for _, view in sorted(views.items()):
        if view is None or not candidates(view, demand).seat_helps:
            continue
        looked += 1
        if looked > LOOKED_AT:
            break
        for size, remedy in _ways(view, demand, leaving):
            way = size, remedy.pod.uid, remedy
            if (best is None or way[:2] < best[:2]) and _fits_without(view, demand, remedy):
                best = way
    return best[2] if best else None


def _ways(view: NodeView, demand: Demand, leaving: frozenset[str]) -> Iterator[tuple[int, Remedy]]:
    groups: dict[GroupName, Group] = {group.name: group for group in view.seats.groups}
    for claim in view.claims:
        if claim.group in groups and claim.pod.uid not in leaving:
            size = seat_cost(view.gpus(groups[claim.group]), claim.vram)
            yield size, Remedy(claim.pod, view.seats.name, claim.group, size)


def _fits_without(view: NodeView, demand: Demand, remedy: Remedy) -> bool:
    rest = tuple(claim for claim in view.claims if claim.pod.uid != remedy.pod.uid)
    return bool(candidates(replace(view, claims=rest), demand).groups)


def kinds() -> tuple[str, ...]:
    """Every word that can be a reason."""
    return (FITS, NO_NODE, *KINDS)
