"""The TLS side of our gunicorn servers: certificates from a folder, read anew as they change."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kybernate.errors import ConfigError
from kybernate.runtime.deadlines import limit_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def check_tls(folder: Path, name: str) -> None:
    """Raise ConfigError if the service's certificate files are not all there and fit together."""
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.crt")
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "tls_dir",
            f"{folder} must hold ca.crt, {name}.crt and {name}.key; `kybernate pki init` "
            f"makes them ({error})",
        ) from error


class Contexts:
    """The TLS settings, read again once a certificate file has changed: gunicorn asks for them
    anew for each connection, and reading the files costs more than a handshake."""

    def __init__(
        self, request_s: float, protocols: Sequence[str] = (), more: Sequence[Path] = ()
    ) -> None:
        """`request_s`: how long a request may take to come, handshake included (s). `protocols`
        are offered to the peer, the best first (ALPN). `more`: further authorities of clients, by
        the files that are there."""
        self._request_s = request_s
        self._more = more
        self._protocols = list(protocols)
        self._known: tuple[tuple[int, ...], ssl.SSLContext] | None = None

    def __call__(self, config: Any, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        """The context for a new connection; called by gunicorn."""
        more = [file for file in self._more if file.is_file()]
        files = (config.certfile, config.keyfile, config.ca_certs, *more)
        stamp = tuple(Path(file).stat().st_mtime_ns for file in files)
        if self._known is None or self._known[0] != stamp:
            context = default()
            for file in more:
                context.load_verify_locations(file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self._protocols:
                context.set_alpn_protocols(self._protocols)
            limit_requests(context, self._request_s)
            self._known = stamp, context
        return self._known[1]
