"""Which artifacts a TierPlacement may pin: what NVMe alone has takes room that parks need. Pure.

Once the object store has a verified copy, agents let a pinned one leave NVMe. Until then it counts
against what pins may take of its node. What is pinned stays so, whatever others take by now.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.artifacts.listed import MISSING, VERIFIED
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kybernate.core.artifacts.listed import Listed

Takes = dict[str, dict[str, int]]
"""By artifact, and by node, the bytes that it takes of NVMe alone."""


class NoRoom(NamedTuple):
    """What is not pinned: the node whose NVMe has too little room left for pins, and both in
    bytes."""

    artifact: str
    node: str
    need: int
    room: int


class Chosen(NamedTuple):
    """The artifacts that are pinned, the newest first, and what of newer ones lacks room."""

    pinned: tuple[Listed, ...]
    lacks: tuple[NoRoom, ...]


def takes(artifacts: Iterable[Listed]) -> Takes:
    """What these take of NVMe alone."""
    every = ((one.artifact, _on_nvme_alone(one)) for one in artifacts)
    return {artifact: nodes for artifact, nodes in every if nodes}


def choose(
    matched: Sequence[Listed],
    newest: int,
    before: Collection[str],
    others: Collection[str],
    room: Mapping[str, int],
) -> Chosen:
    """What to pin of those that match, `newest` at most. `before`: what it pins already, and
    `others` what other TierPlacements pin, which takes nothing more; `room`: bytes that those
    others leave of each node's NVMe, any number where a node isn't named."""
    order = sorted(matched, key=lambda one: (one.created_ms, one.artifact), reverse=True)
    costs = [{} if one.artifact in others else _on_nvme_alone(one) for one in order]
    granted = {*before, *others}
    chosen = [at for at, one in enumerate(order) if one.artifact in granted][:newest]
    lacks: list[NoRoom] = []
    for at in sorted({*range(len(order))} - {*chosen}):
        # An older one makes room for a newer.
        with_it = sorted([*chosen, at])[:newest]
        if at not in with_it:
            break
        if (
            lack := _lack(order[at].artifact, costs[at], [costs[i] for i in with_it], room)
        ) is None:
            chosen = with_it
        else:
            lacks.append(lack)
    return Chosen(tuple(order[at] for at in chosen), tuple(lacks))


def _lack(
    artifact: str,
    needs: Mapping[str, int],
    costs: Iterable[Mapping[str, int]],
    room: Mapping[str, int],
) -> NoRoom | None:
    taken: Counter[str] = Counter()
    for each in costs:
        taken.update(each)
    for node, need in needs.items():
        if node in room and taken[node] > room[node]:
            return NoRoom(artifact, node, need, max(0, room[node] - taken[node] + need))
    return None


def _on_nvme_alone(one: Listed) -> dict[str, int]:
    if any(copy.tier == Tier.OBJECT and copy.state == VERIFIED for copy in one.copies):
        return {}
    there = (copy for copy in one.copies if copy.tier == Tier.NVME and copy.state != MISSING)
    return {copy.node: max(copy.size, one.size) for copy in there}
