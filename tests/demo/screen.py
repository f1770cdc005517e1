"""The live screen; plain lines where there is no terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

    from rich.console import RenderableType

    from .observe import GpuRow, SeatRow, Snapshot

GIB = 1 << 30
BAR = 40
PLAIN_EVERY = 5.0
"""Seconds between two plain lines."""

_STATE_STYLE = {
    "active": "bold green",
    "parked": "dim",
    "waking": "bold yellow",
    "parking": "yellow",
    "draining": "yellow",
    "starting": "cyan",
    "waiting": "dim cyan",
    "failed": "bold red",
}
_COLOURS = ("green", "magenta", "cyan", "yellow", "blue", "red")
_PICTURE = """<svg viewBox="0 0 {terminal_width} {terminal_height}"
 xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px;
 line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
<rect fill="#1b1e24" width="{terminal_width}" height="{terminal_height}" rx="8"/>
<g transform="translate(14, 8) scale(.95)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def picture(shown: RenderableType, width: int = 100) -> str:
    """What a terminal would show, as SVG that needs nothing from elsewhere."""
    # The same whoever draws it: NO_COLOR and TERM don't count.
    console = Console(
        record=True,
        width=width,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        _environ={},
    )
    console.print(shown)
    return console.export_svg(title="", code_format=_PICTURE, unique_id="kyb")


class Screen:
    """Shows snapshots: a table that is redrawn on a terminal, else a line every few seconds."""

    def __init__(self, console: Console, models: tuple[str, ...]) -> None:
        self._console = console
        self._colours = dict(zip(models, _COLOURS, strict=False))
        self._live: Live | None = None
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Draw it, or print a line if it is time for one."""
        if self._live is not None:
            self._live.update(self.drawn(snapshot), refresh=True)
        elif snapshot.elapsed >= self._next_line:
            self._next_line = snapshot.elapsed + PLAIN_EVERY
            self._console.print(line(snapshot), soft_wrap=True, highlight=False, markup=False)

    def drawn(self, snapshot: Snapshot) -> Group:
        """The whole screen."""
        return Group(
            Text(headline(snapshot), style="bold"),
            self._seats(snapshot),
            self._memory(snapshot),
        )

    def picture(self, snapshot: Snapshot, path: Path) -> None:
        """Save the screen as an SVG file."""
        path.write_text(picture(self.drawn(snapshot)))

    def _seats(self, snapshot: Snapshot) -> Table:
        table = Table(box=None, pad_edge=False, expand=False)
        for name in ("node", "group", "seat", "pod", "state"):
            table.add_column(name, no_wrap=True)
        for name in ("waiting", "last wake"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in snapshot.seats:
            table.add_row(
                row.node,
                row.group,
                row.seat,
                Text(row.pod, style=self._colours.get(row.model, "")),
                Text(row.state, style=_STATE_STYLE.get(row.state, "")),
                str(row.waiting or ""),
                _wake(row),
            )
        return table

    def _memory(self, snapshot: Snapshot) -> Table:
        table = Table(box=None, pad_edge=False, expand=False, show_header=False)
        for gpu in snapshot.gpus:
            table.add_row(f"{gpu.node} GPU {gpu.index}", self._bar(gpu), _used(gpu))
        return table

    def _bar(self, gpu: GpuRow) -> Text:
        bar, filled = Text(), 0
        for model, size in gpu.held.items():
            cells = min(BAR - filled, round(BAR * size / gpu.memory))
            bar.append("█" * cells, style=self._colours.get(model, "white"))
            filled += cells
        bar.append("░" * (BAR - filled), style="dim")
        return bar


def headline(snapshot: Snapshot) -> str:
    """One line about the traffic so far."""
    statuses: Mapping[int, int] = snapshot.statuses
    done = sum(statuses.values())
    refused = statuses.get(429, 0)
    failed = done - refused - statuses.get(200, 0)
    waiting = sum(row.waiting for row in snapshot.seats)
    text = (
        f"{snapshot.elapsed:5.1f} s  {done} of {snapshot.planned} requests answered, "
        f"{waiting} waiting, {snapshot.swaps} swaps"
    )
    if refused:
        text += f", {refused} refused (429)"
    return text + (f", {failed} FAILED" if failed else "")


def line(snapshot: Snapshot) -> str:
    """The headline, and what each GPU holds."""
    gpus = "  ".join(
        f"{gpu.node}/{gpu.index}: {'+'.join(gpu.held) or 'empty'}" for gpu in snapshot.gpus
    )
    return f"{headline(snapshot)}  |  {gpus}"


def _wake(row: SeatRow) -> str:
    return f"{row.last_wake_ms:.0f} ms" if row.wakes else ""


def _used(gpu: GpuRow) -> str:
    used = sum(gpu.held.values())
    return f"{used / GIB:3.0f} of {gpu.memory / GIB:.0f} GiB  {' + '.join(gpu.held)}"
