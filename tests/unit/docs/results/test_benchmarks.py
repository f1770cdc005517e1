"""docs/results/benchmarks.json has figures of each bench that `make bench` runs, and of no other;
benchmarks.md is rendered from it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from typing import Any

import pytest

from bench import page
from tests.cluster.layout import REPOSITORY

DATA: dict[str, Any] = json.loads(page.FIGURES.read_text())
RUN = re.search(r"for b in (.+); do \$\(PY\) -m bench", (REPOSITORY / "Makefile").read_text())
assert RUN is not None
BENCHES = shlex.split(RUN[1])
FIGURE = {"figure": "p50", "value": 1.0, "unit": "ms", "against": "≤ 2", "met": True}


def data(**figure: Any) -> dict[str, Any]:
    run = {"date": "2026-01-01", "machine": "m", "load": "1", "figures": [FIGURE | figure]}
    return {"machines": {"m": "a"}, "benches": [{"bench": "x", "what": "W.", "runs": [run]}]}


def test_the_page_is_rendered_from_the_figures() -> None:
    assert page.PAGE.read_text() == page.page(DATA), "run python -m bench.page"


def test_every_bench_has_its_figures() -> None:
    named = [one["bench"] for one in DATA["benches"]]
    assert sorted(named) == sorted([*BENCHES, "tests.simulation"])


@pytest.mark.parametrize("bench", BENCHES)
def test_it_is_a_module(bench: str) -> None:
    assert importlib.util.find_spec(f"bench.{bench.split(maxsplit=1)[0]}") is not None


def test_a_figure_is_shown_with_what_it_is_held_against() -> None:
    assert "| p50 | 1 ms | ≤ 2, met |" in page.page(data())
    assert "| p50 | 3 ms | ≤ 2, **missed** |" in page.page(data(value=3.0, met=False))
    assert "| p50 | 1 to 5 ms | ≤ 2 |" in page.page(data(value=[1.0, 5.0], met=None))


def test_a_verdict_that_a_plain_target_contradicts_is_none() -> None:
    """Of figures with one value and a target that is one number."""
    for bench in DATA["benches"]:
        for one in (figure for run in bench["runs"] for figure in run["figures"]):
            target = re.fullmatch(r"([≤≥]) ([\d.]+)", one.get("against", ""))
            if target is None or isinstance(one["value"], list):
                continue
            bound = float(target[2])
            met = one["value"] <= bound if target[1] == "≤" else one["value"] >= bound
            assert one["met"] is met, f"{bench['bench']}: {one}"


def test_a_machine_that_nobody_described_is_refused() -> None:
    with pytest.raises(AssertionError, match="described"):
        page.page(data() | {"machines": {}})
