"""Who a request comes from: its key or certificate, looked up in the records of clients."""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from typing import TYPE_CHECKING

from kybernate.adapters.clientstore import Folder
from kybernate.core import clients
from kybernate.errors import ConfigError
from kybernate.lib.rounds import rounds
from proxy.actions import Client
from proxy.openai import ApiError

if TYPE_CHECKING:
    from pathlib import Path

    from aiohttp import web

    from kybernate.core.clients import ClientRecord
    from kybernate.settings.proxy import ProxySettings

log = logging.getLogger(__name__)

REFRESH_S = 1.0
"""How often the records and our own certificate are looked at (s)."""

_NEXT = {
    "keys": "Send a key of this proxy as 'Authorization: Bearer KEY'",
    "certificates": "Show a client certificate that this proxy's ca.crt signed",
    "either": "Send a key of this proxy as 'Authorization: Bearer KEY', or show a certificate that "
    "its ca.crt signed",
}


class Clients:
    """The proxy's clients, as its settings want them told apart. One event loop."""

    def __init__(self, settings: ProxySettings) -> None:
        self._auth = settings.auth
        self._folder = Folder(settings.clients_dir)
        self._texts: dict[str, str] | None = None
        self._by_digest: dict[str, ClientRecord] = {}
        self._by_name: dict[str, ClientRecord] = {}
        self._door = Door(settings.serve_tls_dir) if settings.serve_tls_dir else None
        self._task: asyncio.Task[None] | None = None

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """What to listen with; None is plain HTTP."""
        return self._door.context if self._door else None

    def start(self) -> None:
        """Read the records, say in the log who is let in, and look again every second."""
        if self._auth == "off":
            log.warning(
                "auth is off: whoever reaches this proxy may ask every model; set auth to keys, "
                "certificates or either"
            )
        elif self._auth != "certificates" and self._door is None:
            log.warning(
                "keys come over plain HTTP: end TLS before this proxy, or set serve_tls_dir"
            )
        self.refresh()
        self._task = asyncio.create_task(self._look(), name="clients")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def who(self, request: web.Request) -> Client:
        """Whose request it is. Raises ApiError: 401 if that is nobody's, 403 if a page of another
        site had a browser send it."""
        if self._auth == "off":
            _of_no_other_site(request)
            return Client(request.remote or "")
        found = self._by_key(request) if self._auth != "certificates" else None
        if found is None and self._auth != "keys":
            _of_no_other_site(request)
            found = self._by_certificate(request)
        if found is None:
            reason = (
                f"{_NEXT[self._auth]}: an administrator lets a client in with `kybernate clients "
                "add`. A new one is known within two minutes."
            )
            raise ApiError(401, "unknown_client", reason)
        return Client(found.name, found.namespaces, known=True)

    def refresh(self) -> None:
        """Read what changed. A record that can't be read lets nobody in."""
        if self._door is not None:
            self._door.refresh()
        if self._auth == "off":
            return
        try:
            texts = self._folder.read()
        except OSError as error:
            log.warning("the records of clients can't be read, the last ones count: %s", error)
            return
        if texts != self._texts:
            self._texts = texts
            self._take(texts)

    def _take(self, texts: dict[str, str]) -> None:
        records = []
        for name, text in texts.items():
            try:
                records.append(clients.read(name, text))
            except ConfigError as error:
                log.error("client %s is not let in: %s", name, error.problem)
        self._by_digest = {one.key_sha256: one for one in records if one.key_sha256}
        self._by_name = {one.name: one for one in records if not one.key_sha256}
        names = ", ".join(one.name for one in records) or "nobody: see `kybernate clients --help`"
        log.info("auth is %s; let in: %s", self._auth, names)

    def _by_key(self, request: web.Request) -> ClientRecord | None:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = clients.digest_of(key.strip())
        found = self._by_digest.get(digest)
        if found is None or not hmac.compare_digest(found.key_sha256 or "", digest):
            return None
        return found

    def _by_certificate(self, request: web.Request) -> ClientRecord | None:
        transport = request.transport
        shown = transport.get_extra_info("peercert") if transport is not None else None
        names = [
            value
            for part in (shown or {}).get("subject", ())
            for kind, value in part
            if kind == "commonName"
        ]
        return self._by_name.get(names[0]) if len(names) == 1 else None

    async def _look(self) -> None:
        await rounds(self.refresh, REFRESH_S, "reading the clients' records")


def _of_no_other_site(request: web.Request) -> None:
    """A browser shows its certificate, and stands where it stands, for any page: only a key is the
    page's own, as a header that it can't add unasked. Raises ApiError (403)."""
    foreign = request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
    key = request.headers.get("Authorization", "").lower().startswith("bearer ")
    if foreign and not key:
        reason = "A page of another site may not ask this proxy by itself; have it send a key."
        raise ApiError(403, "origin_not_allowed", reason)


class Door:
    """TLS towards clients: `tls.crt` and `tls.key`, and where clients show certificates, `ca.crt`.

    A certificate is asked for, not required: the kubelet's probes have none.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if the files don't fit."""
        self._folder = folder
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._stamp = self._stamps()
            self.context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
            if (folder / "ca.crt").is_file():
                self.context.load_verify_locations(folder / "ca.crt")
                self.context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ssl.SSLError) as error:
            reason = f"{folder} must hold tls.crt and tls.key that fit together ({error})"
            raise ConfigError("serve_tls_dir", reason) from error

    def refresh(self) -> None:
        """Take a renewed certificate for new connections; a new ca.crt needs a restart."""
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return
            self.context.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key")
        except (OSError, ssl.SSLError) as error:
            log.warning(
                "the certificate in %s can't be read, the last counts: %s", self._folder, error
            )
            return
        self._stamp = stamp

    def _stamps(self) -> tuple[int, ...]:
        return tuple((self._folder / name).stat().st_mtime_ns for name in ("tls.crt", "tls.key"))
