"""What the runs have shown of each program: written by its test, read for
docs/reference/programs.md.

A run leaves a record of each program in `build/strangers`. `parked.json` beside this file keeps
those of the last whole run: nothing is in the page that no run has shown.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kybernate.errors import KybernateError
from tests.cluster.layout import REPOSITORY

FORMAT = 1
RUNS = REPOSITORY / "build" / "strangers"
KEPT = Path(__file__).with_name("parked.json")


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one program: its version, the seconds of the slowest first answer from each tier in which
    it was whole, twice in a row, and what was said if it stayed in RAM."""

    name: str
    version: str
    answered_s: dict[str, float] = field(default_factory=dict)
    refused: str = ""


def record(seen: Seen) -> None:
    """Leave it for `keep`; one of an earlier run is replaced."""
    RUNS.mkdir(parents=True, exist_ok=True)
    (RUNS / f"{seen.name}.json").write_text(json.dumps(asdict(seen)))


def keep(names: list[str]) -> None:
    """Keep the records of these programs. Raises KybernateError if one was not parked."""
    missing = [name for name in names if not (RUNS / f"{name}.json").exists()]
    if missing:
        raise KybernateError(
            f"not parked, so docs/reference/programs.md stays as it is: {', '.join(missing)}"
        )
    found = [json.loads((RUNS / f"{name}.json").read_text()) for name in names]
    KEPT.write_text(json.dumps({"format": FORMAT, "parked": found}, indent=1) + "\n")


def kept() -> dict[str, Seen]:
    """By name, what the last whole run has shown."""
    found = json.loads(KEPT.read_text())
    assert found["format"] == FORMAT, "parked.json has another format: run `make test-strangers`"
    return {one["name"]: Seen(**one) for one in found["parked"]}
