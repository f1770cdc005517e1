"""Why a pod has no seat, for people: a sentence per group of GPUs, and one for all nodes. Pure.

Reasons come from `placement.candidates`, so that what is told is what was decided. Nodes of one
shape are looked at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kybernate import keys
from kybernate.core.ledger.parking import seat_cost
from kybernate.core.placement import HELPED, KINDS, candidates
from kybernate.core.placement.colocation import expected_wait, expected_wake
from kybernate.core.quantity import format_quantity
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from kybernate.core.ledger.ledger import NodeView
    from kybernate.core.placement import Demand
    from kybernate.types import Group, GroupName, NodeName, PodRef

    Views = Mapping[NodeName, NodeView | None]
    Kinds = Mapping[NodeName, str]
    _Said = tuple[str, GroupName | None, str]

FITS, NO_NODE = "fits", "node"
"""Beside the words of `placement.KINDS`."""

EXAMPLES = 5
"""How many nodes are named where more are alike."""

TOLD_WAIT_S = 0.05
"""A shorter wait is not told of."""

LOOKED_AT = 50
"""On how many nodes it is looked whether one pod less would make room."""

SHAPES = 200
"""Of how many different nodes each group is told of."""


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
    the last one that stands in the way, `lines` the reasons of all groups, of up to SHAPES
    different nodes and all that are like them.
    """

    summary: str
    nodes: int
    fits: int
    counts: tuple[tuple[str, int], ...]
    lines: tuple[Line, ...]
    remedy: Remedy | None = None


def explain(
    demand: Demand, views: Views, kinds: Kinds | None = None, leaving: frozenset[str] = frozenset()
) -> Explanation:
    """Explain a demand on these nodes, of which None are those without a GPUNode.

    `kinds` are the words for why each node can't take it, "" if it can, where that is known.
    `leaving` are the UIDs of pods that give up their seats anyhow.
    """
    if kinds is None:
        kinds = {name: _kind(view, demand) for name, view in views.items()}
    alike: dict[_Said, list[NodeName]] = defaultdict(list)
    known: dict[Hashable, tuple[_Said, ...]] = {}
    for name, view in sorted(views.items()):
        shape = name if view is None or view.shape is None else view.shape
        if shape not in known and len(known) < SHAPES:
            known[shape] = _of_node(view, demand)
        for line in known.get(shape, ()):
            alike[line].append(name)
    lines = tuple(
        Line(*line, len(nodes), tuple(nodes[:EXAMPLES])) for line, nodes in _most_first(alike)
    )
    return replace(summarize(demand, kinds, views.get, leaving), lines=lines)


def summarize(
    demand: Demand,
    kinds: Kinds,
    view: Callable[[NodeName], NodeView | None],
    leaving: frozenset[str] = frozenset(),
) -> Explanation:
    """The same without a line for each group: at once, also for thousands of nodes."""
    found = Counter(kind or FITS for kind in kinds.values())
    counts = tuple(sorted(found.items(), key=lambda one: (-one[1], one[0])))
    remedy = None
    if not found[FITS]:
        full = islice((name for name, kind in sorted(kinds.items()) if kind in HELPED), LOOKED_AT)
        remedy = _remedy(demand, [one for one in map(view, full) if one is not None], leaving)
    return Explanation(
        _summary(demand, counts, remedy), len(kinds), found[FITS], counts, (), remedy
    )


def _most_first(
    alike: Mapping[_Said, list[NodeName]],
) -> list[tuple[_Said, list[NodeName]]]:
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


def document(found: Explanation) -> dict[str, object]:
    """The explanation as JSON has it."""
    return {
        "summary": found.summary,
        "nodes": found.nodes,
        "fits": found.fits,
        "counts": dict(found.counts),
        "groups": [asdict(line) for line in found.lines],
        "remedy": None if found.remedy is None else _document(found.remedy),
    }


def _document(remedy: Remedy) -> dict[str, object]:
    pod, node, group, size = remedy
    return {"suspend": str(pod), "uid": pod.uid, "node": node, "group": group, "bytes": size}


def tell(remedy: Remedy) -> str:
    """A remedy in words."""
    return (
        f"suspending {remedy.pod} ({format_quantity(remedy.size)}) would fit it on {remedy.node}, "
        f"group {remedy.group}"
    )


def _kind(view: NodeView | None, demand: Demand) -> str:
    return NO_NODE if view is None else candidates(view, demand).kind


def _of_node(view: NodeView | None, demand: Demand) -> tuple[_Said, ...]:
    """What is to be said of each of its groups, or if it has none for the pod, of the node."""
    if view is None:
        return ((NO_NODE, None, "no GPUNode tells of the node's GPUs"),)
    found = tuple(_of_groups(view, demand))
    if found:
        return found
    verdict = candidates(view, demand)
    return ((verdict.kind, None, verdict.reason),)


def _of_groups(view: NodeView, demand: Demand) -> Iterator[_Said]:
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
        wake = expected_wake(view, group, demand) if found.groups else 0.0
        if wake:
            near = "lies there, and" if view.holds else "lies elsewhere, and"
            told += f"; its artifact {near} takes about {wake:.1f} s into the GPUs"
        yield found.kind or FITS, group.name, told


def _summary(demand: Demand, counts: tuple[tuple[str, int], ...], remedy: Remedy | None) -> str:
    if not counts:
        return "no node's GPUs are known: is the node agent running on the GPU nodes?"
    parts = [f"{count}: {short(kind, demand)}" for kind, count in counts]
    parts[0] = parts[0].replace(":", " node:" if counts[0][1] == 1 else " nodes:", 1)
    return "; ".join([*parts, *([tell(remedy)] if remedy else [])])


def _remedy(demand: Demand, views: Iterable[NodeView], leaving: frozenset[str]) -> Remedy | None:
    """The smallest pod whose seat, once given up, would do."""
    best: tuple[int, str, Remedy] | None = None
    for view in views:
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
