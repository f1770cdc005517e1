"""Options that several commands have, and several as one."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    Option = Callable[[Any], Any]

dry_run = click.option("--dry-run", is_flag=True, help="Say what would happen, and do nothing.")


class Number(click.FloatRange):
    """A range of numbers without `nan`, which is neither below nor above anything, and `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        found = super().convert(value, param, ctx)
        return found if isfinite(found) else self.fail(f"{value!r} is no number.", param, ctx)


def together(*options: Option) -> Option:
    """One decorator that gives a command all of these, in this order in its help."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def kubeconfig_option(of: str) -> Option:
    """--kubeconfig, with a sentence that says of whom it is to be."""
    return click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="KUBECONFIG",
        help=f"{of}  (env KUBECONFIG; without it ~/.kube/config)",
    )
