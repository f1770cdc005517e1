"""Runs of .ci/run, one JSON line each, from what they have left in build/ci.

    python -m tests.ci keep                 # adds the last run's line to docs/results/ci.jsonl
    python -m tests.ci keep CLONE/build/ci  # that of another clone

.ci/run itself calls `line` and `order`. In its folder `steps` has a line of each step: its name,
its seconds and its exit status. `NAME-again` lists the tests of a step that were run once more.
"""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

import click

from bench.report import where
from images.cache import REPOSITORY
from tests.slices import Slice, head

LOGS = REPOSITORY / "build" / "ci"
KEPT = REPOSITORY / "docs" / "results" / "ci.jsonl"
NAMES = click.argument("names", nargs=-1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Runs of .ci/run."""


@main.command()
@click.argument("logs", type=click.Path(path_type=Path))
@click.argument("seconds", type=int)
@click.argument("part")
@click.option("--unsteady", default="", help="Steps that passed only when run once more.")
@click.option("--failed", default="", help="Steps that failed.")
@click.option("--left-out", default="", help="Steps that did not begin.")
def line(logs: Path, seconds: int, part: str, *, unsteady: str, failed: str, left_out: str) -> None:
    """Print the line of a run. Names of steps are separated by blanks."""
    steps: dict[str, int] = {}
    file = logs / "steps"
    for row in file.read_text().splitlines() if file.exists() else ():
        name, took, _ = row.split()
        steps[name] = int(took)
    ended = {"failed": failed.split(), "left_out": left_out.split()}
    again = {name: _again(logs, name) for name in unsteady.split()}
    clean = not (again or any(ended.values()))
    run = {**where(head()), "slice": part, "seconds": seconds, "clean": clean, "steps": steps}
    click.echo(json.dumps({**run, "unsteady": again, **ended}))


def _again(logs: Path, name: str) -> list[str]:
    """The tests that passed only when run once more; none where a step is no test."""
    file = logs / f"{name}-again"
    return file.read_text().splitlines() if file.exists() else []


@main.command()
@click.argument("part")
@NAMES
def order(part: str, names: tuple[str, ...]) -> None:
    """Print the names, beginning with another one for each commit."""
    click.echo(" ".join(Slice.parse(part).turned(names)))


@main.command()
@click.argument("logs", type=click.Path(path_type=Path), default=LOGS)
@click.option("--to", "kept", type=click.Path(path_type=Path), default=KEPT, show_default=True)
def keep(logs: Path, kept: Path) -> None:
    """Add the line of the last run, and say how many in a row were clean."""
    file = logs / "run.json"
    if not file.exists():
        raise click.ClickException(f"there is no {file}; run .ci/run to its end first")
    run = file.read_text().strip()
    before = kept.read_text().splitlines() if kept.exists() else []
    if run in before:
        raise click.ClickException(f"{kept} has this run already")
    with kept.open("a") as lines:
        lines.write(f"{run}\n")
    latest = [json.loads(one)["clean"] for one in reversed([*before, run])]
    click.echo(f"kept; the last {len(list(takewhile(bool, latest)))} in a row were clean")


if __name__ == "__main__":
    main()
