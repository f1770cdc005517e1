"""What was tried and what came of it: a table, and one line of JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.upgrade.seats import TIERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.upgrade.traffic import Tally

_OF_REQUESTS = ("requests", "again", "refused", "slowest")


@dataclass(frozen=True, slots=True)
class Row:
    """One replacement: what is of which release since, and what was lost, by tier."""

    step: str
    releases: Mapping[str, str]
    lost: Mapping[str, str]
    tally: Tally
    seconds: float
    young: str = ""
    """What was wrong with a seat that was made then; empty if nothing."""
    parked_again: tuple[str, ...] = ()
    """Parks that had to be asked for once more: the seat went on in RAM until then."""

    @property
    def wrong(self) -> list[str]:
        """Everything that was lost or refused."""
        return [*self.lost.values(), *self.tally.wrong, *([self.young] if self.young else [])]


@dataclass(slots=True)
class Table:
    """All rows of a session."""

    rows: list[Row] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The table, for people."""
        head = [
            "replaced",
            *TIERS,
            "new seat",
            "parked again",
            "requests",
            "again",
            "refused",
            "slowest",
            "took",
        ]
        found = [head, *(_cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*found, strict=True)]
        return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in found]

    def line(self) -> str:
        """The same in one line, for machines."""
        told = {
            "bench": "upgrade",
            "steps": len(self.rows),
            "lost": sum(len(row.lost) + bool(row.young) for row in self.rows),
            "requests": sum(row.tally.answered for row in self.rows),
            "again": sum(row.tally.repeated for row in self.rows),
            "refused": sum(len(row.tally.wrong) for row in self.rows),
            "slowest_s": round(max((row.tally.slowest_s for row in self.rows), default=0.0), 2),
            "rows": [
                {
                    "step": row.step,
                    "releases": dict(row.releases),
                    "wrong": row.wrong,
                    "parked_again": row.parked_again,
                }
                for row in self.rows
            ],
        }
        return json.dumps(told)


def _cells(row: Row) -> list[str]:
    tiers = ["LOST" if tier in row.lost else "kept" for tier in TIERS]
    tally = row.tally
    return [
        row.step,
        *tiers,
        "FAILED" if row.young else "fine",
        str(len(row.parked_again)),
        str(tally.answered),
        str(tally.repeated),
        str(len(tally.wrong)),
        f"{tally.slowest_s:.1f} s",
        f"{row.seconds:.1f} s",
    ]
