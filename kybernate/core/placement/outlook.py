"""What is expected of the pods to come: the mix of demand that placing one pod leaves room for.

A mix is learned from pods that were seen, as Weng et al. ("Beware of Fragmentation", USENIX ATC
2023) learn their target workload; nothing in it is written by hand.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kybernate.core.placement.model import Ask, Supply

COVER = 0.95
"""The most frequent kinds that together are this part of all pods make the target."""


class Kind(NamedTuple):
    """Pods that ask for the same, and their part of all, 0 to 1."""

    ask: Ask
    part: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """The demand expected, and how many GPUs the largest node has.

    `target` are the most frequent kinds, without their memory; `kinds` are all, most frequent
    first. Without kinds, nothing is known of the demand. `scarcity` says for each product, 0 to 1,
    how much more of it is asked for than of others (`mix.scarcity`).
    """

    target: tuple[Kind, ...] = ()
    kinds: tuple[Kind, ...] = ()
    gpus: int = 8
    scarcity: Mapping[str, float] = field(default_factory=dict)


def expect(
    asks: Iterable[Ask] | Mapping[Ask, int], nodes: Sequence[Supply] | Mapping[Supply, int] = ()
) -> Outlook:
    """What to expect if pods go on to ask for what these did, on nodes that are empty now. Both may
    be counted already."""
    count = Counter(asks)
    bare: Counter[Ask] = Counter()
    for ask, times in count.items():
        bare[ask._replace(memory=0)] += times
    return Outlook(
        _parts(_prefix(_by_count(bare), COVER * count.total())),
        _parts(_by_count(count)),
        max((len(node.free) for node in nodes), default=8) or 8,
    )


def _by_count(count: Counter[Ask]) -> list[tuple[Ask, int]]:
    """Most frequent first; of equally frequent kinds, the larger one."""
    return sorted(count.items(), key=lambda item: (item[1], _order(item[0])), reverse=True)


def _order(ask: Ask) -> tuple[object, ...]:
    return ask.cpu, ask.share, ask.gpus, ask.products, ask.memory


def _prefix(counts: list[tuple[Ask, int]], enough: float) -> list[tuple[Ask, int]]:
    covered = 0
    for at, (_, times) in enumerate(counts):
        if covered >= enough:
            return counts[:at]
        covered += times
    return counts


def _parts(counts: list[tuple[Ask, int]]) -> tuple[Kind, ...]:
    total = sum(times for _, times in counts)
    return tuple(Kind(ask, times / total) for ask, times in counts)
