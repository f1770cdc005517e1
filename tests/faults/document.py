"""The lists of docs/reference/failure-recovery.md, rendered from the data between their marks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.cluster.layout import REPOSITORY
from tests.faults.below import BREAKAGES, DEATHS
from tests.faults.flips import FLIPS
from tests.faults.matrix import MATRIX, End
from tests.pages import item

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.faults.fault import Fault
    from tests.faults.matrix import Cell

ROWS: dict[str, Iterable[Fault]] = {"deaths": DEATHS, "below": BREAKAGES, "flips": FLIPS}
"""By the marks between which they stand."""
DOCUMENT = REPOSITORY / "docs" / "reference" / "failure-recovery.md"


def update(text: str) -> str:
    """The document with all lists as the data has them."""
    lists = {"matrix": _matrix()} | {name: _rows(rows) for name, rows in ROWS.items()}
    for name, made in lists.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = marks.sub(lambda found: f"{found[1]}{made}{found[2]}", text)  # noqa: B023
    return text


def _matrix() -> str:
    parts = []
    for row in MATRIX:
        cells = [item(f"**{cell.column}**: {_seen(cell)} (`{cell.id}`)") for cell in row.cells]
        parts.append(
            f"### {row.name}\n\n{row.fault[0].upper()}{row.fault[1:]}.\n\n" + "".join(cells)
        )
    return "\n" + "\n".join(parts) + "\n"


def _seen(cell: Cell) -> str:
    end = cell.sees.end
    return cell.sees.sentence if end is End.INTACT else f"{cell.sees.sentence} **{end.value}**"


def _rows(rows: Iterable[Fault]) -> str:
    return "\n" + "".join(item(*row.lines()) for row in rows) + "\n"
