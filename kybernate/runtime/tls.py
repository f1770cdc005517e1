"""The TLS side of our servers: certificates from a folder, read again as they change."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def server_context(
    certificate: Path, key: Path | None = None, authorities: Iterable[Path] = ()
) -> ssl.SSLContext:
    """TLS 1.2 or later with this certificate; a key that is None lies beside it in its file. With
    authorities a peer must have a certificate from one of them. Raises OSError, ssl.SSLError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    for file in authorities:
        context.load_verify_locations(file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class MutualTls:
    """The TLS settings of a service, made again once a certificate file has changed: they are
    asked for with each connection, and reading the files costs more than a handshake."""

    def __init__(self, folder: Path, name: str, more: Iterable[str] = ()) -> None:
        """The folder holds `ca.crt`, `{name}.crt` and `{name}.key`; `more` names files of further
        authorities of clients, of which those count that are there."""
        self._folder = folder
        self._pair = folder / f"{name}.crt", folder / f"{name}.key"
        self._more = [folder / file for file in more]
        self._known: tuple[tuple[int, ...], ssl.SSLContext] | None = None

    def __call__(self) -> ssl.SSLContext:
        """The context for a new connection. Raises OSError, ssl.SSLError."""
        more = [file for file in self._more if file.is_file()]
        authorities = (self._folder / "ca.crt", *more)
        stamp = tuple(file.stat().st_mtime_ns for file in (*self._pair, *authorities))
        if self._known is None or self._known[0] != stamp:
            self._known = stamp, server_context(*self._pair, authorities)
        return self._known[1]

    def check(self) -> None:
        """Raise ConfigError if the files are not all there and fit together."""
        certificate, key = (file.name for file in self._pair)
        try:
            self()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                "tls_dir",
                f"{self._folder} must hold ca.crt, {certificate} and {key}; `kybernate pki init` "
                f"makes them ({error})",
            ) from error
