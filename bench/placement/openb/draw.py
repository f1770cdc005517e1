"""Draws the courses that `bench.placement.openb --course` writes: one SVG, a line per policy, and
a bar for where each ends.

python -m bench.placement.openb.draw OUT.svg fgd=fgd.json default=default.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Course = list[tuple[float, float, float]]

WIDTH, HEIGHT, LEFT, TOP = 420, 260, 60, 40
COLOURS = ("#888888", "#d95f02", "#1b6ca8", "#2a9d50", "#7b3294", "#b8860b")
PANELS = (
    ("placed, % of all GPUs", 1, (80, 130), (90.0, 98.0)),
    ("free but fragmented, % of all GPUs", 2, (0, 130), (0.0, 16.0)),
)
"""Title, column of the course, and the ranges of both axes."""
BARS, END = 240, (90.0, 98.0)
"""Width of the bars' panel, and the range of its axis."""


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("courses", nargs=-1, required=True)
def main(out: Path, courses: Sequence[str]) -> None:
    """Draw the courses, each given as NAME=FILE."""
    pairs = [word.partition("=")[::2] for word in courses]
    read = {name: json.loads(Path(file).read_text(encoding="utf-8")) for name, file in pairs}
    out.write_text("\n".join(draw(read)) + "\n", encoding="utf-8")


def draw(courses: dict[str, Course]) -> Iterator[str]:
    """The lines of the SVG."""
    width, height = 2 * (WIDTH + LEFT) + LEFT + BARS + 40, HEIGHT + TOP + 70
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{width}" height="{height}" fill="white"/>'
    for number, (title, column, (first, last), (low, high)) in enumerate(PANELS):
        yield f'<g transform="translate({LEFT + number * (WIDTH + LEFT + 10)},{TOP})">'
        yield from _scale(title, WIDTH, low, high)
        yield from _demand(first, last)
        for colour, course in zip(COLOURS, courses.values(), strict=False):
            points = " ".join(
                f"{_x(row[0], first, last):.1f},{_y(row[column], low, high):.1f}"
                for row in course
                if first <= row[0] <= last and low <= row[column] <= high
            )
            yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield "</g>"
    yield f'<g transform="translate({LEFT + 2 * (WIDTH + LEFT + 10)},{TOP})">'
    yield from _ends(courses)
    yield "</g>"
    for number, (name, colour) in enumerate(zip(courses, COLOURS, strict=False)):
        at = LEFT + 130 * number
        yield f'<rect x="{at}" y="{height - 18}" width="20" height="4" fill="{colour}"/>'
        yield f'<text x="{at + 26}" y="{height - 12}">{name}</text>'
    yield "</svg>"


def _ends(courses: dict[str, Course]) -> Iterator[str]:
    """A bar for each policy, as high as what it has placed in the end."""
    low, high = END
    yield from _scale(f"placed in the end, % (from {low:g})", BARS, low, high)
    step = BARS / max(1, len(courses))
    for number, (colour, course) in enumerate(zip(COLOURS, courses.values(), strict=False)):
        value = course[-1][1]
        x, y = step * (number + 0.2), _y(max(low, min(high, value)), low, high)
        size = f'x="{x:.1f}" y="{y:.1f}" width="{0.6 * step:.1f}" height="{HEIGHT - y:.1f}"'
        yield f'<rect {size} fill="{colour}"/>'
        middle = x + 0.3 * step
        yield f'<text x="{middle:.1f}" y="{y - 5:.1f}" text-anchor="middle">{value:.1f}</text>'


def _scale(title: str, width: int, low: float, high: float) -> Iterator[str]:
    yield f'<text x="0" y="-14" font-weight="bold">{title}</text>'
    for step in range(5):
        value = low + (high - low) * step / 4
        y = _y(value, low, high)
        yield f'<line x1="0" x2="{width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'


def _demand(first: int, last: int) -> Iterator[str]:
    for percent in range(first, last + 1, 10):
        x = _x(percent, first, last)
        yield f'<text x="{x:.1f}" y="{HEIGHT + 16}" text-anchor="middle">{percent}</text>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT + 34}" text-anchor="middle">asked for so far, %</text>'


def _x(percent: float, first: float, last: float) -> float:
    return WIDTH * (percent - first) / (last - first)


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT * (1 - (value - low) / (high - low))


if __name__ == "__main__":
    main()
