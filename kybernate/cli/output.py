"""How commands that look at a cluster answer: a table for people, or what programs read."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click
import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from rich.console import RenderableType

    Json = dict[str, Any]

FORMS = ("table", "wide", "json", "yaml", "name")
_STEP = 1024.0
_NEVER_FOLDED = 4096
"""Columns of a table that no person looks at: a program reads it line by line."""

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(FORMS),
    default="table",
    show_default=True,
    help="For people (wide: with more columns), or for programs.",
)

document_option = click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "json", "yaml")),
    default="table",
    show_default=True,
    help="For people, or for programs.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="The same as -o json.")


@dataclass(frozen=True, slots=True)
class Row:
    """One object: its name as kubectl writes it, what it is as a whole, and its cells."""

    name: str
    document: Json
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of one kind. Of the columns the first `narrow` are shown without `-o wide`; `empty`
    is said to people where there are none."""

    columns: tuple[str, ...]
    narrow: int
    rows: tuple[Row, ...]
    empty: str

    def table(self, form: str) -> Table | Text:
        """For people."""
        if not self.rows:
            return Text(self.empty)
        most = len(self.columns) if form == "wide" else self.narrow
        table = plain_table(*self.columns[:most])
        for row in self.rows:
            table.add_row(*(Text(plain(cell)) for cell in row.cells[:most]))
        return table


def plain(text: str) -> str:
    """The text without what a terminal would obey: others may have written it."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def plain_table(*columns: str) -> Table:
    """A table like kubectl's own."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def console() -> Console:
    """Standard output; lines are folded on a terminal alone."""
    return Console() if sys.stdout.isatty() else Console(width=_NEVER_FOLDED, color_system=None)


def show(listing: Listing, form: str) -> None:
    """Print all of it in one of FORMS."""
    if form in ("table", "wide"):
        put(listing.table(form))
    elif form == "name":
        for row in listing.rows:
            click.echo(row.name)
    else:
        click.echo(text_of([row.document for row in listing.rows], form), nl=False)


def put(table: RenderableType) -> None:
    """Print it, without the blanks that fill a table's last column."""
    out = console()
    with out.capture() as held:
        out.print(table, soft_wrap=isinstance(table, Text))
    for line in held.get().splitlines():
        click.echo(line.rstrip())


def text_of(document: object, form: str) -> str:
    """The document as JSON or YAML, with a newline at its end."""
    if form == "yaml":
        return yaml.safe_dump(document, sort_keys=False)
    return json.dumps(document, indent=2) + "\n"


def live(screens: Iterable[RenderableType]) -> None:
    """Show each in the place of the one before; one after the other where that isn't a terminal."""
    if not sys.stdout.isatty():
        for screen in screens:
            put(screen)
        return
    with Live(console=Console(), auto_refresh=False) as shown:
        for screen in screens:
            shown.update(screen, refresh=True)


def follow(listings: Iterable[Listing], form: str) -> None:
    """Show each state of affairs: live on a terminal, else what has changed, line by line."""
    if form in ("table", "wide") and sys.stdout.isatty():
        live(listing.table(form) for listing in listings)
        return
    told: dict[tuple[str, str], Row] = {}
    for listing in listings:
        # Objects of one name may be several namespaces', which is in the first cell.
        now = {(row.name, row.cells[0]): row for row in listing.rows}
        news = tuple(row for key, row in now.items() if told.get(key) != row)
        gone = [key[0] for key in told if key not in now]
        told = now
        _tell(news, gone, form)


def _tell(news: Iterable[Row], gone: Iterable[str], form: str) -> None:
    for row in news:
        if form in ("json", "yaml"):
            click.echo(json.dumps(row.document) if form == "json" else _document(row.document))
        else:
            click.echo(row.name if form == "name" else plain("  ".join(row.cells)))
    for name in gone if form in ("table", "wide") else ():
        click.echo(f"{name} is gone")


def _document(document: Json) -> str:
    return "---\n" + yaml.safe_dump(document, sort_keys=False).rstrip()


def human(size: float) -> str:
    """Bytes for people: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _STEP:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP
    return f"{size:.1f} TiB"


def age(created: str, now: datetime) -> str:
    """How long ago, in the largest unit that fits twice."""
    seconds = (now - now.fromisoformat(created)).total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
