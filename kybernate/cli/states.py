"""`kybernate states`: the seat's states and what leads from one to the other, as Markdown."""

from __future__ import annotations

import click

from kybernate.core.seat import seats


@click.command("states")
def command() -> None:
    """Print the states of a seat and their transitions as Markdown.

    docs/reference/states.md is this output.
    """
    click.echo(seats.render_markdown(), nl=False)
