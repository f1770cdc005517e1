"""What is expected of pods that ask for bare GPUs, CPU and memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.placement import FULL
from kybernate.core.placement import outlook as seats
from kybernate.core.placement.outlook import Kind, Outlook

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kybernate.core.placement import Ask, Supply


class Prospect(NamedTuple):
    """The demand expected, and the thousandths of a CPU that the largest node has. `blocks` are the
    kinds that want all GPUs of a node, each with the chance that an untouched node which suits it
    goes to it: its part of the demand for GPU per such nodes' part of the supply."""

    outlook: Outlook
    cpu: int
    blocks: tuple[Kind, ...]


def expect(asks: Iterable[Ask], nodes: Sequence[Supply] = ()) -> Prospect:
    """What to expect if pods go on to ask for what these did, on nodes that are empty now."""
    count = Counter(asks)
    return Prospect(
        seats.expect(count, nodes),
        max((node.cpu for node in nodes), default=1) or 1,
        tuple(_blocks(count, Counter(nodes))),
    )


def _blocks(asks: Counter[Ask], nodes: Counter[Supply]) -> Iterator[Kind]:
    demand = sum(ask.total * times for ask, times in asks.items())
    supply = sum(len(node.free) * times for node, times in nodes.items())
    for ask, times in asks.items():
        if ask.gpus < 2 or ask.share < FULL:
            continue
        suited = sum(
            ask.gpus * number
            for node, number in nodes.items()
            if len(node.free) == ask.gpus and node.suits(ask)
        )
        if suited:
            yield Kind(ask, (ask.total * times / demand) / (suited / supply))
