"""`kybernate states`: the states of a seat or of a migration, as Markdown."""

from __future__ import annotations

import click

from kybernate.core.migration import page
from kybernate.core.seat import seats

_PAGES = {"seat": seats.render_markdown, "migration": page.render_markdown}


@click.command("states")
@click.option("--of", "what", type=click.Choice([*_PAGES]), default="seat", show_default=True)
def command(what: str) -> None:
    """Print states and their transitions as Markdown.

    docs/reference/node/states.md and docs/reference/node/migration.md are this output.
    """
    click.echo(_PAGES[what](), nl=False)
