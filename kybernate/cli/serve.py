"""`kybernate serve`: the models of one box, without Kubernetes."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kybernate.errors import KybernateError
from kybernate.local.folders import Numbers, folders

if TYPE_CHECKING:
    from kybernate.adapters.cuda.driver import CudaHelpers

_GPUS = 1
_FILE = "models.yaml"


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option(
    "--simulate",
    type=click.IntRange(1, 16),
    is_flag=False,
    flag_value=_GPUS,
    help="So many simulated GPUs (one without a number) in place of this box's.",
)
@click.option("--keep", is_flag=True, help="Leave models running, or parked, at the end.")
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="Least severity of what is logged.  [default: the file's logLevel]",
)
def command(file: Path | None, simulate: int | None, keep: bool, log_level: str | None) -> None:
    """Serve the models of FILE on this box: one request wakes its model and parks others.

    FILE is models.yaml of the folder kybernate in $XDG_CONFIG_HOME if it isn't given; the first run
    writes it, with what it finds on this box. It is read again when it changes, and on SIGHUP.
    SIGTERM and SIGINT end the models.
    """
    own = folders(os.environ)
    if simulate is not None:
        from kybernate.local.simgpu.simulate import start_again  # noqa: PLC0415 - seldom asked for

        start_again(simulate, own)
    # After the exec: importing the binding takes half a second, which the helpers do meanwhile.
    from kybernate.adapters.cuda.driver import CudaHelpers  # noqa: PLC0415

    helpers = CudaHelpers()
    try:
        _run(file or own.config / _FILE, helpers, keep=keep, log_level=log_level)
    finally:
        helpers.close()
    if simulate is not None and not keep:
        from kybernate.local.simgpu.simulate import forget  # noqa: PLC0415 - seldom asked for

        forget(own.state)


def _run(file: Path, helpers: CudaHelpers, *, keep: bool, log_level: str | None) -> None:
    from kybernate.local.reading import Source  # noqa: PLC0415 - slow
    from kybernate.local.serve import serve  # noqa: PLC0415 - slow
    from kybernate.runtime.serve import configure_logging  # noqa: PLC0415

    configure_logging(log_level or "INFO")
    own = folders(os.environ)
    if file == own.config / _FILE and not file.exists():
        _begin(file)
    source = Source(file, Numbers(own.state / "ports.json", "ports"))
    said = source.load().log_level
    logging.getLogger().setLevel((log_level or said).upper())
    try:
        asyncio.run(serve(source, own, helpers, keep=keep))
    except OSError as error:
        raise click.ClickException(str(error)) from error


def _begin(file: Path) -> None:
    """The first run: say what there is, and write it down."""
    from kybernate.adapters.nvml import Nvml  # noqa: PLC0415 - slow
    from kybernate.local.importing.firstrun import look, text, write  # noqa: PLC0415 - once in a box's life

    try:
        gpus = Nvml().devices()
    except KybernateError:
        gpus = ()
    found = look(Path.home(), gpus)
    for sentence in found.sentences():
        click.echo(sentence)
    write(file, text(found))
    click.echo(f"written: {file}; edit it, changes count at once")
