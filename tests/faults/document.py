"""The tables of docs/failure-recovery.md, rendered from the matrix between their marks."""

from __future__ import annotations

import re

from tests.cluster.layout import REPOSITORY
from tests.faults.matrix import COLUMNS, MATRIX, End

DOCUMENT = REPOSITORY / "docs" / "failure-recovery.md"


def update(text: str) -> str:
    """The document with both tables as the matrix has them."""
    for name, table in (("matrix", _matrix()), ("faults", _faults())):
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


def _table(lines: list[tuple[str, ...]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _end(end: End) -> str:
    return "" if end is End.INTACT else f" **{end.value}**"
