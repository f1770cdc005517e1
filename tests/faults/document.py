"""The lists of docs/reference/failure-recovery.md, rendered from the data between their marks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.cluster.layout import REPOSITORY
from tests.faults.below import BREAKAGES, DEATHS, Breakage, Death
from tests.faults.flips import FLIPS
from tests.faults.matrix import MATRIX, End
from tests.pages import item

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.faults.matrix import Cell

DOCUMENT = REPOSITORY / "docs" / "reference" / "failure-recovery.md"


def update(text: str) -> str:
    """The document with all lists as the data has them."""
    lists = {"matrix": _matrix(), "deaths": _deaths(), "below": _below(), "flips": _flips()}
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


def _deaths() -> str:
    return _list(
        item(
            f"**{one.after}**",
            f"found: journal {one.journal}; process 1 {one.kyb_init}; {one.there}",
            f"the next agent: {one.does}",
            f"the user sees: {one.sees}",
            _named(one),
        )
        for one in DEATHS
    )


def _below() -> str:
    return _list(item(f"**{one.fault}**: {one.end}", _named(one)) for one in BREAKAGES)


def _flips() -> str:
    return _list(
        item(f"**{one.kind}**: seen by {one.seen}; {one.happens}", f"`{one.test}`") for one in FLIPS
    )


def _list(items: Iterable[str]) -> str:
    return "\n" + "".join(items) + "\n"


def _named(row: Death | Breakage) -> str:
    """Its test without the folders, which the page tells once."""
    return f"`{row.test.rpartition('/')[2]}`"
