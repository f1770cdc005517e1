"""The CLI's questions to the extender."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kybernate.adapters import extender
from kybernate.errors import KybernateError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable

    Json = dict[str, Any]

LIMIT_S = 10.0
"""Seconds that the extender gets to answer."""


def extender_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where the extender is."""
    where = click.option(
        "--extender",
        default="https://127.0.0.1:9444",
        show_default=True,
        help="Where the extender listens.",
    )
    folder = click.option(
        "--tls-dir",
        default=Path("/etc/kyb/tls"),
        show_default=True,
        type=click.Path(path_type=Path),
        help="Folder with ca.crt, and the certificate of the controller or the scheduler.",
    )
    return where(folder(command))


def ask(url: str, folder: Path, path: str, limit: float = LIMIT_S) -> Json:
    """The extender's answer within `limit` seconds, asked with the certificate in the folder.

    Raises ClickException with what went wrong and what to do.
    """
    try:
        return extender.ask(url, folder, path, limit)
    except RetryableError as error:
        raise click.ClickException(
            f"{error}. Forward its port: "
            "kubectl -n kyb-system port-forward deploy/kyb-scheduler 9444"
        ) from error
    except KybernateError as error:
        raise click.ClickException(str(error)) from error
