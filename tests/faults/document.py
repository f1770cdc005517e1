"""The tables of docs/reference/failure-recovery.md, rendered from the data between their marks."""

from __future__ import annotations

import re

from tests.cluster.layout import REPOSITORY
from tests.faults.below import BREAKAGES, DEATHS, Breakage, Death
from tests.faults.flips import FLIPS
from tests.faults.matrix import COLUMNS, MATRIX, End

DOCUMENT = REPOSITORY / "docs" / "reference" / "failure-recovery.md"


def update(text: str) -> str:
    """The document with all tables as the data has them."""
    tables = {"matrix": _matrix(), "faults": _faults(), "deaths": _deaths(), "below": _below()}
    tables["flips"] = _flips()
    for name, table in tables.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = marks.sub(lambda found: f"{found[1]}{table}{found[2]}", text)  # noqa: B023
    return text


def _matrix() -> str:
    lines = [("", *COLUMNS), ("---",) * (len(COLUMNS) + 1)]
    lines += [
        (
            f"**{row.name}**",
            *(f"{cell.sees.sentence}{_end(cell.sees.end)}<br>`{cell.id}`" for cell in row.cells),
        )
        for row in MATRIX
    ]
    return _table(lines)


def _faults() -> str:
    return _table([("row", "fault"), ("---", "---"), *((row.name, row.fault) for row in MATRIX)])


def _deaths() -> str:
    head = ("killed (-9) after", "journal", "kyb-init", "what is there", "the next agent")
    rows = [(d.after, d.journal, d.kyb_init, d.there, d.does, d.sees, _named(d)) for d in DEATHS]
    return _table([(*head, "the user sees", "test"), ("---",) * 7, *rows])


def _below() -> str:
    rows = [(one.fault, one.end, _named(one)) for one in BREAKAGES]
    return _table([("fault", "end", "test"), ("---",) * 3, *rows])


def _flips() -> str:
    rows = [(one.kind, one.seen, one.happens, f"`{one.test}`") for one in FLIPS]
    return _table([("file", "seen by", "then", "test"), ("---",) * 4, *rows])


def _named(row: Death | Breakage) -> str:
    """Its test without the folders, which the page tells once."""
    return f"`{row.test.rpartition('/')[2]}`"


def _table(lines: list[tuple[str, ...]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _end(end: End) -> str:
    return "" if end is End.INTACT else f" **{end.value}**"
