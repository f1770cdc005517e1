"""A plan of savings as a picture (SVG): GPUs today and then, and the day of each place."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from kybernate.core.simulate.workloads import HOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kybernate.core.simulate.place import Place
    from kybernate.core.simulate.saving import Saving

_WIDTH: Final = 1000
_MARGIN: Final = 100
_CELL: Final = 22
_LINE: Final = 17
_TALL: Final = 40
_PER_ROW: Final = 45
_COLOURS: Final = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8c6d31",
    "#7f7f7f",
)
"""Told apart by those who don't see all colours, too."""


def picture(found: Saving, title: str, notes: Sequence[str] = ()) -> str:
    """The picture: a square for each GPU, then for each place the share of each hour for which its
    workloads are busy; below it the notes, a line each."""
    parts = [_text(20, 34, title, "font-size:18px")]
    y = 64
    y = _squares(parts, y, "today", found.today, "#b8b8b8")
    y = _squares(parts, y, "shared", found.gpus, _COLOURS[0])
    y = _hours(parts, y + 22)
    for place in found.places:
        y = _place(parts, y, place)
    parts.append(
        _text(_MARGIN, y + 8, "Bars: the share of each hour for which a workload is busy.")
    )
    y += 24
    for note in notes:
        parts.append(_text(_MARGIN, y, note))
        y += _LINE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" '
        f'viewBox="0 0 {_WIDTH} {y}" font-family="sans-serif" font-size="13" role="img">'
    )
    ground = f'<rect width="{_WIDTH}" height="{y}" fill="#fff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", ground, *parts, "</svg>"]) + "\n"


def _squares(parts: list[str], y: int, name: str, count: int, colour: str) -> int:
    parts.append(_text(20, y + 12, name))
    for number in range(count):
        row, column = divmod(number, _PER_ROW)
        parts.append(_rect(_MARGIN + 18 * column, y + 18 * row, 14, 14, colour))
    return y + 18 * -(-count // _PER_ROW) + 8


def _hours(parts: list[str], y: int) -> int:
    parts.append(_text(20, y, "place"))
    parts += [
        _text(_MARGIN + _CELL * hour, y, f"{hour}:00", "text-anchor:middle")
        for hour in range(0, HOURS + 1, 6)
    ]
    parts.append(_text(_MARGIN + _CELL * HOURS + 24, y, "workload: p99 wake of its limit"))
    return y + 10


def _place(parts: list[str], y: int, place: Place) -> int:
    tall = max(_TALL, _LINE * len(place.workloads))
    gpus = f"{place.gpus} GPU{'s' * (place.gpus != 1)}"
    parts.append(_rect(_MARGIN, y, _CELL * HOURS, tall, "#f4f4f4"))
    parts.append(_text(20, y + tall // 2 + 5, gpus))
    for hour in range(HOURS):
        foot = float(y + tall)
        for number, one in enumerate(place.workloads):
            high = one.busy(hour) * tall
            foot -= high
            if high >= 0.05:
                x = _MARGIN + _CELL * hour
                parts.append(_rect(x, foot, _CELL - 1, high, _colour(number)))
    for number in range(len(place.workloads)):
        _name(parts, y + _LINE * number, place, number)
    return y + tall + 12


def _name(parts: list[str], y: int, place: Place, number: int) -> None:
    one, x = place.workloads[number], _MARGIN + _CELL * HOURS + 24
    wake = f"{place.p99(number):.1f} of {one.p99:g} s" if place.shared else "stays awake"
    parts.append(_rect(x, y + 2, 10, 10, _colour(number)))
    parts.append(_text(x + 16, y + 12, f"{_short(one.key)}: {wake}"))


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:29]}…"


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _rect(x: float, y: float, wide: float, high: float, colour: str) -> str:
    return f'<rect x="{x:g}" y="{y:.1f}" width="{wide:g}" height="{high:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    more = f' style="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}" fill="#222"{more}>{escape(text)}</text>'
