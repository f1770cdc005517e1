"""The CLI's questions to the extender: GET over mutual TLS, and errors as sentences."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    Json = dict[str, Any]

_READERS = ("controller", "scheduler")
"""Whom the extender answers, by the name of their certificates."""

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
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise click.UsageError(f"--extender is {url!r}; write it as https://host:port")
    line = http.client.HTTPSConnection(
        parts.hostname, parts.port or 443, timeout=limit, context=_context(folder)
    )
    try:
        line.request("GET", path)
        answer = line.getresponse()
        found = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise click.ClickException(
            f"no extender answers at {url} ({error}). Forward its port: "
            "kubectl -n kyb-system port-forward deploy/kyb-scheduler 9444"
        ) from error
    finally:
        line.close()
    if answer.status != 200 or not isinstance(found, dict):
        text = found.get("Error") if isinstance(found, dict) else None
        raise click.ClickException(text or f"the extender answered with HTTP {answer.status}")
    return found


def _context(folder: Path) -> ssl.SSLContext:
    name = next((one for one in _READERS if (folder / f"{one}.crt").exists()), _READERS[-1])
    try:
        context = ssl.create_default_context(cafile=folder / "ca.crt")
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(
            f"{folder} must hold ca.crt, {name}.crt and {name}.key ({error}). Name the "
            "folder that `kybernate pki init` made with --tls-dir"
        ) from error
    return context
