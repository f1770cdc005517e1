"""The standard case and its variations: models of four sizes, called by Zipf's law."""

from __future__ import annotations

import csv
import gzip
import math
import random
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from kybernate.core.simulate.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

SIZES = (8.0, 16.0, 40.0, 70.0)
TOKENS_PER_S = 50.0
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Case:
    """A workload: how many models, requests a second in all, Zipf's exponent, and how they come:
    as in the trace of conversations, by gamma-distributed gaps with this coefficient of variation
    (`cv`), or with a day's swing in one hour (`swing`)."""

    rate: float = 0.5
    models: int = 32
    skew: float = 1.0
    cv: float = 0.0
    swing: bool = False

    def name(self) -> str:
        """For people."""
        how = f"gamma, CV {self.cv:g}" if self.cv else "day and night" if self.swing else "azure"
        return f"{self.models} models, Zipf {self.skew:g}, {how}"


@lru_cache(maxsize=32)
def trace_of(case: Case, seed: int, conversations: Path) -> Trace:
    """The case's requests; the same for the same seed."""
    rng = random.Random(f"{case} {seed}")
    if case.cv:
        rows = _gamma(case, rng)
    elif case.swing:
        rows = _swinging(case, rng)
    else:
        rows = _thinned(case, seed, conversations)
    law = _zipf(case.models, case.skew)
    drawn = rng.choices(range(case.models), law, k=len(rows)) if not case.cv else []
    models = [m for _, _, m in rows] if case.cv else drawn
    names = [f"m{n:03}" for n in range(case.models)]
    sizes = [SIZES[n % len(SIZES)] for n in range(case.models)]
    return Trace([at for at, _, _ in rows], models, [work for _, work, _ in rows], names, sizes)


@cache
def conversations_of(path: Path) -> tuple[tuple[float, float], ...]:
    """Seconds since the first arrival, and seconds of work, of each conversation."""
    rows = []
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            rows.append((at, int(row["GeneratedTokens"]) / TOKENS_PER_S))
    return tuple((at - rows[0][0], work) for at, work in rows)


_Rows = list[tuple[float, float, int]]


def _thinned(case: Case, seed: int, path: Path) -> _Rows:
    """Every conversation is kept with the same chance; above the trace's own rate time is
    squeezed. A higher rate of the same seed has the requests of a lower one, and more."""
    rows = conversations_of(path)
    rng = random.Random(f"thinned {seed}")
    whole = len(rows) / rows[-1][0]
    keep, squeeze = min(1.0, case.rate / whole), max(1.0, case.rate / whole)
    return [(at / squeeze, work, 0) for at, work in rows if rng.random() < keep]


def _gamma(case: Case, rng: random.Random) -> _Rows:
    """An hour in which each model's gaps vary by `cv`."""
    found: _Rows = []
    shape = 1 / case.cv**2
    for model, share in enumerate(_zipf(case.models, case.skew)):
        mean = 1 / (case.rate * share)
        at = rng.random() * mean
        while at < _HOUR:
            found.append((at, _work(rng), model))
            at += rng.gammavariate(shape, mean / shape)
    return sorted(found)


def _swinging(case: Case, rng: random.Random) -> _Rows:
    """An hour in which the rate swings between a fifth of the mean and nearly twice it."""
    found: _Rows = []
    at = 0.0
    while at < _HOUR:
        at += rng.expovariate(1.8 * case.rate)
        now = case.rate * (1 - 0.8 * math.cos(2 * math.pi * at / _HOUR))
        if rng.random() < now / (1.8 * case.rate):
            found.append((at, _work(rng), 0))
    return found


def _work(rng: random.Random) -> float:
    """Seconds like those of the conversations: median 2.6, at most 20."""
    return min(20.0, rng.lognormvariate(math.log(2.6), 0.8))


def _zipf(models: int, skew: float) -> list[float]:
    weights = [1 / (rank + 1) ** skew for rank in range(models)]
    return [weight / sum(weights) for weight in weights]
