"""`python -m images build|rootfs|containerfiles|criu|wheel|list`."""

from __future__ import annotations

import tarfile
import time
from pathlib import Path

import click

from kybernate.errors import KybernateError

from . import build as builder
from . import containerfile
from . import criu as criu_builder
from . import wheel as wheel_builder
from .recipes import RECIPES

_STARTED = time.monotonic()
_MIB = 1 << 20


def _say(line: str) -> None:
    click.echo(f"[{time.monotonic() - _STARTED:6.1f} s] {line}")


class _Group(click.Group):
    """Ends our own errors in one clear message instead of a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KybernateError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Container images of Kybernate, made without a container daemon."""


@main.command()
@click.argument("names", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), default=builder.OUT, show_default=True)
def build(names: tuple[str, ...], out: Path) -> None:
    """Build images (all, if none is named) as OCI archives."""
    for image in builder.build(names or tuple(RECIPES), _say, out):
        _say(f"{image.name}  {image.size / _MIB:.1f} MiB unpacked  {image.archive}")


@main.command()
@click.argument("name", type=click.Choice(tuple(RECIPES)))
@click.argument("folder", type=click.Path(path_type=Path))
def rootfs(name: str, folder: Path) -> None:
    """Put an image's files into a folder; the Containerfiles do it so."""
    for layer in builder.layers(RECIPES[name], _say):
        with tarfile.open(layer.path) as tar:
            tar.extractall(folder, filter="fully_trusted")  # noqa: S202 - our own layer
    _say(f"{name} is in {folder}")


@main.command()
def containerfiles() -> None:
    """Write the Containerfiles anew."""
    containerfile.write_all()


@main.command()
def criu() -> None:
    """Build the static CRIU into the cache, and say where it is."""
    built = criu_builder.ensure(_say)
    click.echo(f"{built.product}\n{built.test}")


@main.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=wheel_builder.OUT, show_default=True
)
def wheel(out: Path) -> None:
    """Build the wheel, and say where it is."""
    click.echo(wheel_builder.build(_say, out))


@main.command("list")
def list_() -> None:
    """List the images."""
    for recipe in RECIPES.values():
        click.echo(f"{recipe.name:<14} uid {recipe.user.partition(':')[0]:<6} {recipe.title}")


if __name__ == "__main__":
    main()
