"""The traffic: arrivals and lengths of the trace's excerpt, squeezed in time, with models drawn."""

from __future__ import annotations

import csv
import itertools
import random
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

EXCERPT = Path(__file__).parent / "data" / "azure_llm_excerpt.csv"


@dataclass(frozen=True, slots=True)
class Row:
    """One request of the trace: arrival in seconds after the first, lengths in tokens."""

    at: float
    prompt: int
    generated: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request to play: when (s after the start), to whom, how long."""

    number: int
    at: float
    model: str
    prompt: int
    generated: int


def read(path: Path = EXCERPT) -> list[Row]:
    """The excerpt, in order of arrival."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        Row(
            at=(time - times[0]).total_seconds(),
            prompt=int(row["ContextTokens"]),
            generated=int(row["GeneratedTokens"]),
        )
        for row, time in zip(rows, times, strict=True)
    ]


def plan(
    rows: Sequence[Row], models: Sequence[str], seconds: float, seed: int, skew: float = 1.0
) -> list[Request]:
    """The requests to play within `seconds`.

    The k-th model is drawn with weight 1 / k**skew (Zipf); the same seed draws the same.
    """
    chance = random.Random(seed)
    weights = list(itertools.accumulate(1 / k**skew for k in range(1, len(models) + 1)))
    span = rows[-1].at or 1.0
    drawn = chance.choices(models, cum_weights=weights, k=len(rows))
    return [
        Request(number, row.at * seconds / span, model, row.prompt, row.generated)
        for number, (row, model) in enumerate(zip(rows, drawn, strict=True), 1)
    ]
