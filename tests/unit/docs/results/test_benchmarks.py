"""docs/results/benchmarks.md has a row for each bench that `make bench` runs, and for no other."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[4]
PAGE = (REPOSITORY / "docs" / "results" / "benchmarks.md").read_text()
RUN = re.search(r"for b in (.+); do \$\(PY\) -m bench", (REPOSITORY / "Makefile").read_text())
assert RUN is not None
BENCHES = shlex.split(RUN[1])
ROWS = re.findall(r"^\| `python -m bench\.(.+?) --json` \|", PAGE, re.MULTILINE)


def test_every_bench_has_its_row() -> None:
    assert sorted(ROWS) == sorted(BENCHES)


@pytest.mark.parametrize("bench", BENCHES)
def test_it_is_a_module(bench: str) -> None:
    assert importlib.util.find_spec(f"bench.{bench.split(maxsplit=1)[0]}") is not None
