"""The openb lists, and the arrivals made from them by the rules of the published evaluation.

Lists and rules: Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
"""

from __future__ import annotations

import csv
import gzip
from random import Random
from typing import TYPE_CHECKING

from kybernate.core.placement import FULL, Ask, Supply

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MIB = 1 << 20


def listed(folder: Path, name: str) -> Path:
    """The list of this name: as published, compressed, or as plain text."""
    plain = folder / f"{name}.csv"
    return plain if plain.exists() else folder / f"{name}.csv.gz"


def read_nodes(path: Path) -> list[Supply]:
    """The nodes of a list, as empty as they are there."""
    return [
        Supply(
            (FULL,) * int(row["gpu"]),
            row["model"],
            int(row["cpu_milli"]),
            int(row["memory_mib"]) * MIB,
        )
        for row in _rows(path)
    ]


def read_pods(path: Path) -> list[Ask]:
    """The pods of a list, in the order of their names."""
    return [
        Ask(
            int(row["num_gpu"]),
            int(row["gpu_milli"]),
            int(row["cpu_milli"]),
            int(row["memory_mib"]) * MIB,
            tuple(sorted(set(filter(None, row.get("gpu_spec", "").split("|"))))),
        )
        for row in sorted(_rows(path), key=lambda row: row["name"])
    ]


def capacity(nodes: Sequence[Supply]) -> int:
    """Thousandths of a GPU in all."""
    return sum(sum(node.free) for node in nodes)


def arrivals(pods: Sequence[Ask], limit: float, random: Random) -> list[Ask]:
    """The pods in random order, cut or drawn anew until their demand is just within the limit.

    `limit` in thousandths of a GPU.
    """
    found = list(pods)
    random.shuffle(found)
    total = sum(ask.total for ask in found)
    while total > limit:
        total -= found.pop(random.randrange(len(found))).total
    while total + (drawn := random.choice(pods)).total <= limit:
        found.append(drawn)
        total += drawn.total
    return found


def remixed(pods: Sequence[Ask], seed: int) -> list[Ask]:
    """An unseen workload of the same family: as many pods, drawn with other odds.

    Each kind's frequency is multiplied by 4 to the power of a number between -1 and 1.
    """
    random = Random(seed)
    odds = {ask: 4 ** random.uniform(-1, 1) for ask in sorted(set(pods))}
    return random.choices(pods, [odds[ask] for ask in pods], k=len(pods))


def _rows(path: Path) -> list[dict[str, str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
