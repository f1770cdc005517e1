"""`python -m bench.page`: docs/results/benchmarks.md, from benchmarks.json beside it.

A figure has a value (or the lowest and the highest), a unit, what it is held against (a target, a
limit or a peer), and whether that was met. A run has its date, machine and load.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"
FIGURES, PAGE = RESULTS / "benchmarks.json", RESULTS / "benchmarks.md"
HEAD = """\
# Benchmarks

Rendered from [benchmarks.json](benchmarks.json) by `python -m bench.page`. Each bench sets up what
it needs after `make setup`, takes it down again, and ends with one JSON line on stdout (`--json`).
Ratios are taken side by side in one run. *Load* is the machine's load average: others' work on the
same two cores makes all times of the wall clock worse.

`make bench-smoke` runs each bench that needs no cluster in its smallest form, and fails if one does
not come to its end; figures of such a run mean nothing. `CLUSTER=1` adds the others. `make bench`
runs all of them whole.

[Where time goes](where-time-goes.md) has profiles, and what bounds some of the figures.
"""
_COLUMNS = 120


def page(data: dict[str, Any]) -> str:
    """The page, whole. Raises KeyError for a run of a machine that isn't described."""
    machines = [f"- *{name}*: {said}" for name, said in data["machines"].items()]
    parts = [_wrapped(HEAD), "Machines:\n\n" + "".join(f"{_filled(one)}\n" for one in machines)]
    return "\n".join([*parts, *(_bench(one, data["machines"]) for one in data["benches"])])


def _bench(one: dict[str, Any], machines: dict[str, str]) -> str:
    name = one["bench"]
    module = name if name.startswith("tests.") else f"bench.{name}"
    paragraphs = [f"## {module}", _filled(one["what"])]
    for run in one["runs"]:
        assert run["machine"] in machines, f"{name}: no machine {run['machine']!r} is described"
        paragraphs.append(
            _filled(f"{run['date']}, machine *{run['machine']}*, load {run['load']}:")
        )
        paragraphs.append("\n".join(_table(run["figures"])))
    if "analysis" in one:
        paragraphs.append(_filled(one["analysis"]))
    return "\n\n".join(paragraphs) + "\n"


def _table(figures: list[dict[str, Any]]) -> list[str]:
    rows = [f"| {one['figure']} | {_value(one)} | {_against(one)} |" for one in figures]
    return ["| figure | value | target, limit or peer |", "|---|---|---|", *rows]


def _value(figure: dict[str, Any]) -> str:
    value = figure["value"]
    shown = " to ".join(map(_number, value)) if isinstance(value, list) else _number(value)
    return f"{shown} {figure['unit']}".strip()


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _against(figure: dict[str, Any]) -> str:
    said: str = figure.get("against", "")
    return said + {None: "", True: ", met", False: ", **missed**"}[figure.get("met")]


def _wrapped(text: str) -> str:
    return "\n\n".join(map(_filled, text.rstrip("\n").split("\n\n"))) + "\n"


def _filled(text: str) -> str:
    below = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        text, _COLUMNS, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    made = page(json.loads(FIGURES.read_text()))
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(made)
