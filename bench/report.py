"""The one JSON line that every bench ends with, and the words before it."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Metrics = dict[str, tuple[float, str]]
"""Name → (value, unit)."""


def say(text: str) -> None:
    """Progress goes to stderr: stdout ends with the JSON line."""
    print(text, file=sys.stderr, flush=True)


def emit(bench: str, metrics: Metrics, baseline: Mapping[str, object], *, as_json: bool) -> None:
    """Print the figures: the line for machines, and before it a table for people.

    With `as_json` there is no table.
    """
    for name, (value, unit) in () if as_json else metrics.items():
        say(f"  {name:24} {value:10.3f} {unit}")
    line = {
        "bench": bench,
        "metrics": {n: {"value": round(v, 4), "unit": u} for n, (v, u) in metrics.items()},
        "baseline": baseline,
    }
    print(json.dumps(line), flush=True)


def skip(bench: str, why: str) -> None:
    """Nothing was measured: say so to people, and to machines with a line that has no figures."""
    say(f"SKIPPED: {why}")
    print(json.dumps({"bench": bench, "skipped": why}), flush=True)


def where(commit: str) -> dict[str, object]:
    """When and where something runs, as lines that are kept in docs/results begin."""
    version = 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1
    kernel = platform.release().partition("-")[0]
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, kernel {kernel}, "
        f"cgroup v{version}",
        "commit": commit[:8],
        "load": [f"{one:.2f}" for one in os.getloadavg()[:2]],
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values don't exceed."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)
