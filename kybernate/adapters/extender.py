"""Questions to the extender: GET over mutual TLS, and errors as sentences."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kybernate.errors import ConfigError, NotFoundError, RefusedError, RetryableError

if TYPE_CHECKING:
    from pathlib import Path

    Json = dict[str, Any]

_READERS = ("controller", "scheduler")
"""Whom the extender answers, by the name of their certificates."""

_ERRORS = {400: RefusedError, 404: NotFoundError}


def ask(url: str, folder: Path, path: str, limit: float) -> Json:
    """The extender's answer within `limit` seconds, asked with the certificate in the folder.

    Raises ConfigError if that can't be read or the address is none, RetryableError if nobody
    answers, RefusedError and NotFoundError with the sentence of who does.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError("extender", f"is {url!r}; write it as https://host:port")
    line = http.client.HTTPSConnection(
        parts.hostname, parts.port or 443, timeout=limit, context=_context(folder)
    )
    try:
        line.request("GET", path)
        answer = line.getresponse()
        found = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RetryableError(f"no extender answers at {url} ({error})") from error
    finally:
        line.close()
    if answer.status != 200 or not isinstance(found, dict):
        text = found.get("Error") if isinstance(found, dict) else None
        told = text or f"the extender answered with HTTP {answer.status}"
        raise _ERRORS.get(answer.status, RetryableError)(told)
    return found


def _context(folder: Path) -> ssl.SSLContext:
    name = next((one for one in _READERS if (folder / f"{one}.crt").exists()), _READERS[-1])
    try:
        context = ssl.create_default_context(cafile=folder / "ca.crt")
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "tls-dir",
            f"{folder} must hold ca.crt, {name}.crt and {name}.key ({error}); name the folder "
            "that `kybernate pki init` made",
        ) from error
    return context
