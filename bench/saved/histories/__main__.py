"""`python -m bench.saved.histories`: is every history of the registry's calls linearizable?"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import click

from bench.report import emit, say, skip
from bench.saved.histories.faulty import FAULTS
from bench.saved.histories.rounds import Figures
from bench.saved.histories.tried import MEMORY, Bench
from tests.kit.breaks import linearizable

PART = 10
"""As many again, divided by this, are made with a clock that jumps, and on PostgreSQL."""


@click.command()
@click.option("--histories", default=2000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON line on stdout.")
def main(histories: int, seed: int, as_json: bool) -> None:
    """Histories of the registry, judged; then of registries with mistakes, until each is found."""
    if reason := linearizable.why_not():
        skip("histories", reason)
        return
    linearizable.ensure(say)
    with tempfile.TemporaryDirectory(prefix="kyb-histories-", dir=MEMORY) as name:
        bench = Bench(Path(name), seed)
        began = time.monotonic()
        kinds = bench.kinds(histories, histories // PART)
        found = Figures()
        for figures in kinds.values():
            found.count(figures)
        took = time.monotonic() - began
        first = {fault: bench.planted(fault) for fault in FAULTS}
    emit(
        "histories",
        {
            "histories": (float(found.histories), "histories"),
            "violations": (float(len(found.wrong)), "histories"),
            "undecided": (float(found.undecided), "histories"),
            "planted": (float(len(first)), "faults"),
            "planted_found": (float(sum(at > 0 for at in first.values())), "faults"),
            **{f"of_{name}": (float(one.histories), "histories") for name, one in kinds.items()},
            "calls": (float(found.calls), "calls"),
            "lost_answers": (float(found.lost), "calls"),
            "kills": (float(found.kills), "kills"),
            "cuts": (float(found.cuts), "cuts"),
            "history_ms": (took * 1000 / max(1, found.histories), "ms"),
        },
        {"name": "histories until each planted fault was found (0: never)", **first},
        as_json=as_json,
    )
    if found.wrong or not all(first.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
