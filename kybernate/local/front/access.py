"""Who may ask a box: holders of a key, or without keys programs of this machine alone.

A web page that somebody visits can send requests to this machine, too. It has no key; without keys
it is told apart by what browsers say of it: `Host` names another machine where the page's own name
was pointed here (DNS rebinding), and `Origin` names the page.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from kybernate.errors import ConfigError
from proxy.actions import Client
from proxy.openai import ApiError

if TYPE_CHECKING:
    from kybernate.api.models import ModelsFile

_LOCAL = "localhost"
_METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"


def is_loopback(host: str) -> bool:
    """Whether this name or address is this machine's own, which no other can reach."""
    name = host.strip("[]").rstrip(".").lower()
    if name == _LOCAL or name.endswith(f".{_LOCAL}"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_listen(file: ModelsFile) -> None:
    """Raises ConfigError if other machines could ask without a key."""
    host = file.listen.rpartition(":")[0]
    if not file.api_keys and not is_loopback(host):
        problem = (
            f"{file.listen} is reached from other machines, which need a key: set apiKeys, for "
            "example [${env.KYB_KEY}], or listen on 127.0.0.1"
        )
        raise ConfigError("listen", problem)


class Access:
    """Judges requests by the file's keys and hosts."""

    def __init__(self, file: ModelsFile) -> None:
        self._digests = [_digest(key) for key in file.api_keys]
        self._hosts = frozenset(host.lower() for host in file.allowed_hosts)

    def admits_page(self, request: web.Request) -> None:
        """Raises ApiError (403) if a page of another site sent it, and no key speaks for it."""
        if self._digests and not _is_ambient(request):
            return
        host = _host_of(request.headers.get("Host", ""))
        if not self._digests and host and not self._is_own(host):
            said = (
                f"This box is not called {host[:100]!r}. Ask it as localhost, or put the name into "
                "allowedHosts of models.yaml."
            )
            raise ApiError(403, "host_not_allowed", said)
        site = request.headers.get("Sec-Fetch-Site")
        origin = request.headers.get("Origin")
        if origin is None and site == "same-site":
            # Of another host of the same domain, or another port. Of a GET no Origin tells.
            origin = request.headers.get("Referer")
        foreign = site == "cross-site" or (site == "same-site" and not is_loopback(host))
        if (origin is not None and not self._is_own_page(origin)) or (origin is None and foreign):
            said = (
                f"A page of {(origin or 'another site')[:100]!r} may not ask this box. Put its "
                "host into allowedHosts of models.yaml, or have it send a key."
            )
            raise ApiError(403, "origin_not_allowed", said)

    def who(self, request: web.Request) -> Client:
        """Whose request it is. Raises ApiError (401) if a key is needed."""
        if not self._digests:
            return Client(request.remote or "")
        shown = _digest(_key_of(request))
        # All are compared, so that the time tells nothing of which.
        found = [hmac.compare_digest(shown, one) for one in self._digests]
        if not any(found):
            said = "Send a key of models.yaml (apiKeys) as 'Authorization: Bearer KEY'."
            raise ApiError(401, "unknown_client", said)
        return Client(f"key {found.index(True) + 1}", known=True)

    def preflight(self, request: web.Request) -> web.Response:
        """What a browser asks before a page's request. Raises ApiError (403)."""
        if not self._digests:
            self.admits_page(request)
        asked = request.headers.get("Access-Control-Request-Headers", "")
        names = [name.strip() for name in asked.split(",")]
        kept = [name for name in names if name.isascii() and name.replace("-", "").isalnum()]
        headers = {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": ", ".join(kept) or "Content-Type, Authorization",
            "Access-Control-Max-Age": "86400",
        }
        return web.Response(status=204, headers=headers)

    async def let_read(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let the page that asked read the answer; `on_response_prepare` of the application."""
        origin = request.headers.get("Origin")
        response.headers.pop("Access-Control-Allow-Origin", None)
        if origin and (self._digests or self._is_own_page(origin)):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers.add("Vary", "Origin")

    def _is_own_page(self, origin: str) -> bool:
        try:
            host = urlsplit(origin).hostname or ""
        except ValueError:
            return False
        return bool(host) and self._is_own(host)

    def _is_own(self, host: str) -> bool:
        return is_loopback(host) or host.lower() in self._hosts


def _is_ambient(request: web.Request) -> bool:
    """Whether it shows a key that a browser adds by itself, or none."""
    if "X-Api-Key" in request.headers:
        return False
    return request.headers.get("Authorization", "").partition(" ")[0].lower() != "bearer"


def _key_of(request: web.Request) -> str:
    scheme, _, said = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return said.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(said, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return request.headers.get("X-Api-Key", "").strip()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _host_of(header: str) -> str:
    if header.startswith("["):
        return header.partition("]")[0].strip("[")
    return header.partition(":")[0]
