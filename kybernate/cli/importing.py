"""`kybernate import`: models.yaml of what somebody has for llama-swap or Ollama."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kybernate.errors import ConfigError, RefusedError

_TO = click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write; without it, the text is printed. An existing file is not replaced.",
)


@click.group
def command() -> None:
    """Make models.yaml of what another server has."""


@command.command("llama-swap")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_TO
def llama_swap(file: Path, to: Path | None) -> None:
    """Of llama-swap's configuration FILE, with comments on what differs."""
    from kybernate.local.importing import llamaswap  # noqa: PLC0415 - slow

    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), f"can't be read: {error}") from error
    _write(llamaswap.converted(text, os.environ), to)


@command.command("ollama")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Ollama's folder of models [default: $OLLAMA_MODELS, or ~/.ollama/models].",
)
@_TO
def ollama(folder: Path | None, to: Path | None) -> None:
    """Of the models that Ollama has fetched, each served by llama-server."""
    from kybernate.local.importing import ollama as found  # noqa: PLC0415 - slow

    place = folder or found.folder_of(os.environ, Path.home())
    _write(found.converted(place), to)


def _write(text: str, to: Path | None) -> None:
    if to is None:
        click.echo(text, nl=False)
        return
    try:
        with to.open("x") as file:
            file.write(text)
    except FileExistsError as error:
        raise RefusedError(f"{to} is there already; name another file with --to") from error
    click.echo(f"{to} is written; kybernate serve {to} serves it")
