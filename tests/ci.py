"""`python -m tests.ci FOLDER`: one JSON line of a run of .ci/run, from what it has left there.

`steps` has a line of each step: its name, its seconds and its exit status. `NAME-again`
lists the tests of a step that were run once more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.report import where
from tests.slices import head


def line(logs: Path, seconds: int, part: str, **ended: list[str]) -> dict[str, object]:
    """The run. `ended`: which steps were unsteady, failed, or were left out."""
    steps: dict[str, int] = {}
    file = logs / "steps"
    for row in file.read_text().splitlines() if file.exists() else ():
        name, took, _ = row.split()
        steps[name] = int(took)
    unsteady = {name: _again(logs, name) for name in ended.pop("unsteady")}
    run = where(head())
    return {**run, "slice": part, "seconds": seconds, "steps": steps, "unsteady": unsteady, **ended}


def _again(logs: Path, name: str) -> list[str]:
    """The tests that passed only when run once more; none where a step is no test."""
    file = logs / f"{name}-again"
    return file.read_text().splitlines() if file.exists() else []


def main() -> None:
    """Print the line."""
    parser = argparse.ArgumentParser(description="One JSON line of a run of .ci/run.")
    parser.add_argument("logs", type=Path)
    parser.add_argument("seconds", type=int)
    parser.add_argument("part")
    for kind in ("unsteady", "failed", "left_out"):
        parser.add_argument(f"--{kind}", nargs="*", default=[])
    print(json.dumps(line(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
