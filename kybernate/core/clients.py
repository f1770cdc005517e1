"""Who may ask the proxy: records of clients, as they lie in its Secret. Pure.

One record a client, under its name, as JSON. A key has 256 random bits, so that its SHA-256 is as
good a secret as a slow hash would be; the key itself is kept nowhere. Fields that a newer version
wrote are ignored.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re

from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError

KEY_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_EVERY = "*"


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """A client: by its key's digest, or if that is None by a certificate of this common name.

    `namespaces` are those whose models it may ask; None is every one. `made` is a date.
    """

    name: str
    namespaces: frozenset[str] | None
    key_sha256: str | None
    made: str = ""

    def text(self) -> str:
        """The record as it is kept."""
        every = [_EVERY] if self.namespaces is None else sorted(self.namespaces)
        by = {"certificate": True} if self.key_sha256 is None else {"keySha256": self.key_sha256}
        return json.dumps({"version": 1, "namespaces": every, "made": self.made, **by})


def record(
    name: str, namespaces: frozenset[str] | None, key_sha256: str | None, made: str = ""
) -> ClientRecord:
    """A record whose parts are right. Raises ConfigError naming the one that isn't."""
    if not _NAME.fullmatch(name):
        raise ConfigError("name", f"write {name!r} with 1 to 63 of A-Za-z0-9._-")
    if namespaces is not None and not namespaces:
        raise ConfigError("namespaces", f"{name} has none: name at least one, or all")
    for one in sorted(namespaces or ()):
        if not _NAMESPACE.fullmatch(one):
            raise ConfigError("namespaces", f"{one!r} can't be a namespace's name")
    if key_sha256 is not None and not _DIGEST.fullmatch(key_sha256):
        raise ConfigError("keySha256", f"{name}: write 64 hexadecimal digits")
    return ClientRecord(name, namespaces, key_sha256, made)


def read(name: str, text: str) -> ClientRecord:
    """A record as it is kept under this name. Raises ConfigError saying what is wrong."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(name, f"isn't JSON: {error}") from error
    namespaces = data.get("namespaces") if isinstance(data, dict) else None
    if not isinstance(namespaces, list) or not all(isinstance(one, str) for one in namespaces):
        raise ConfigError(name, 'has no list "namespaces"')
    digest, certificate = data.get("keySha256"), data.get("certificate")
    if (digest is None) is (certificate is not True) or not isinstance(digest, str | None):
        raise ConfigError(name, 'needs either "keySha256" or "certificate": true')
    every = None if namespaces == [_EVERY] else frozenset(namespaces)
    return record(name, every, digest, str(data.get("made") or ""))


def key_of(random: bytes) -> str:
    """A key from KEY_BYTES random bytes. It can be told from others by its first letters."""
    return "kyb-" + base64.urlsafe_b64encode(random).rstrip(b"=").decode()


def digest_of(key: str) -> str:
    """What of a key is kept."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()
