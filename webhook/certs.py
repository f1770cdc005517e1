"""The webhook's own certificates: made, kept, published and renewed without a pause.

A new CA is published beside the old one before any leaf of it is served, so that an API server
whichever of the two bundles it has read trusts whichever leaf it meets. Several replicas share
one store; who writes second reads again.
"""

from __future__ import annotations

import base64
import ipaddress
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from kybernate import keys
from kybernate.adapters.pki import (
    Leaf,
    Validity,
    issue,
    make_authority,
    read_pair,
    why_renew,
    write_private,
)
from kybernate.dataclass import dataclass
from kybernate.errors import ConfigError, ConflictError, KybernateError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from kybernate.adapters.pki import Pair
    from kybernate.settings.webhook import WebhookSettings

    Json = dict[str, Any]

log = logging.getLogger(__name__)

_AUTHORITIES = 8
"""How many the bundle holds at most: whoever renews them often must not make it grow for ever."""

_FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")
_HOOKS = "/apis/admissionregistration.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Material:
    """What the store holds: PEM texts by file name, and the version it was read at."""

    files: dict[str, bytes]
    version: str = ""


class Store(Protocol):
    """Where the certificates are kept."""

    def load(self) -> Material:
        """All that is kept; empty at first."""

    def save(self, material: Material) -> Material:
        """Replace it. Raises ConflictError if another replica did since it was loaded."""


class FolderStore:
    """Files in a folder of one machine; there is one process to write them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Material:
        """What the folder holds. Raises ConfigError if it can't be read."""
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = [name for name in _FILES if (self._path / name).exists()]
            return Material({name: (self._path / name).read_bytes() for name in found})
        except OSError as error:
            raise ConfigError("cert_dir", f"{self._path}: {error.strerror}") from error

    def save(self, material: Material) -> Material:
        """Write the files, keys first."""
        for name in sorted(material.files, key=lambda name: not name.endswith(".key")):
            write_private(self._path / name, material.files[name])
        return material


class SecretStore:
    """A Secret that is part of the installation; creating one would need more rights."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{keys.NAMESPACE}/secrets/{name}"

    def load(self) -> Material:
        """What the Secret holds. Raises NotFoundError if there is none."""
        return _from_secret(self._api.get(self._path))

    def save(self, material: Material) -> Material:
        """Write it, unless it changed since it was loaded."""
        data = {name: base64.b64encode(text).decode() for name, text in material.files.items()}
        body = {"metadata": {"resourceVersion": material.version}, "data": data}
        return _from_secret(self._api.patch(self._path, body))


def _from_secret(secret: Json) -> Material:
    data = secret.get("data") or {}
    files = {name: base64.b64decode(data[name]) for name in _FILES if name in data}
    return Material(files, secret["metadata"]["resourceVersion"])


class Bundles:
    """The caBundle of both webhook configurations."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self._paths = [
            f"{_HOOKS}/{kind}webhookconfigurations/{name}" for kind in ("mutating", "validating")
        ]

    def publish(self, bundle: bytes) -> bool:
        """Write the bundle wherever another one is; returns whether it was everywhere already."""
        text, fresh = base64.b64encode(bundle).decode(), True
        for path in self._paths:
            steps = _bundle_steps(self._api.get(path), text)
            if steps:
                self._api.patch(path, steps, kind="json")
                log.info("published the CA in %s", path)
                fresh = False
        return fresh


def _bundle_steps(configuration: Json, bundle: str) -> list[Json]:
    """JSON Patch that sets the bundle, tested to apply to what was read."""
    version = configuration["metadata"]["resourceVersion"]
    steps: list[Json] = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
        for index, hook in enumerate(configuration.get("webhooks") or ())
        if hook["clientConfig"].get("caBundle") != bundle
    ]
    # Webhooks are named by position: another's change in between must not shift them.
    unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    return [unchanged, *steps] if steps else []


class Keeper:
    """Brings store, bundles and leaf to what they should be; `tick` may be called at any time."""

    def __init__(
        self,
        settings: WebhookSettings,
        store: Store,
        publish: Callable[[bytes], bool],
        use: Callable[[bytes, bytes], None],
    ) -> None:
        """`publish` as in Bundles; `use` takes the leaf and its key whenever they are new."""
        self._store = store
        self._publish = publish
        self._use = use
        self._leaf = _wanted_leaf(settings.server_names)
        self._validity = Validity(
            timedelta(days=settings.ca_days),
            timedelta(days=settings.leaf_days),
            # Whatever the settings, what was just made is not to be renewed at once.
            min(timedelta(days=settings.renew_days), timedelta(days=settings.leaf_days) / 2),
        )
        self._settle = timedelta(seconds=settings.settle_s)
        self._used: tuple[bytes, bytes] | None = None
        self._bundle = b""
        # The bundle that was in place at the last pass, and since when.
        self._seen = b"", datetime.min.replace(tzinfo=UTC)

    def tick(self, now: datetime) -> None:
        """One pass. Raises KybernateError if it could not be finished; the next may."""
        material = self._store.load()
        material, authority = self._ensure_authority(material, now)
        bundle = material.files["ca.crt"]
        self._bundle = bundle
        in_place = self._publish(bundle)
        if not in_place or bundle != self._seen[0]:
            self._seen = bundle, now
        # A new leaf waits until every API server has the bundle, if there is a good one meanwhile.
        settled = now - self._seen[1] >= self._settle
        if settled or not self._has_good_leaf(material, authority, now):
            material = self._ensure_leaf(material, authority, now)
        if "tls.crt" in material.files and "tls.key" in material.files:
            leaf = material.files["tls.crt"], material.files["tls.key"]
            if leaf != self._used:
                self._use(*leaf)
                self._used = leaf

    def _ensure_authority(self, material: Material, now: datetime) -> tuple[Material, Pair]:
        # If the store was emptied, what we serve must be vouched for all the same.
        old = _certificates(material.files.get("ca.crt") or self._bundle)
        if "ca.crt" in material.files and old and "ca.key" in material.files:
            newest = old[0].public_bytes(Encoding.PEM)
            authority = read_pair(newest, material.files["ca.key"], "the webhook's CA")
            if not authority.ends_within(self._validity.renew_before, now):
                return material, authority
        authority = make_authority("kyb-webhook-ca", self._validity.authority, now)
        kept = [pem.public_bytes(Encoding.PEM) for pem in old if pem.not_valid_after_utc > now]
        files = {
            **material.files,
            "ca.crt": b"".join([authority.certificate_pem, *kept[: _AUTHORITIES - 1]]),
            "ca.key": authority.key_pem,
        }
        log.info("made a new CA for the webhook")
        return self._store.save(replace(material, files=files)), authority

    def _has_good_leaf(self, material: Material, authority: Pair, now: datetime) -> bool:
        """Whether any of the bundle's authorities vouches for what is kept, or served."""
        certificate, key = self._used or (b"", b"")
        try:
            pair = read_pair(
                material.files.get("tls.crt", certificate), material.files.get("tls.key", key), "it"
            )
        except ConfigError:
            return False
        return any(
            why_renew(pair, self._leaf, replace(authority, certificate=one), timedelta(), now)
            is None
            for one in _certificates(material.files["ca.crt"])
        )

    def _ensure_leaf(self, material: Material, authority: Pair, now: datetime) -> Material:
        if self._why_new_leaf(material, authority, now) is None:
            return material
        pair = issue(authority, self._leaf, self._validity.leaf, now)
        files = {**material.files, "tls.crt": pair.certificate_pem, "tls.key": pair.key_pem}
        log.info("made a new certificate for the webhook")
        return self._store.save(replace(material, files=files))

    def _why_new_leaf(self, material: Material, authority: Pair, now: datetime) -> str | None:
        try:
            pair = read_pair(
                material.files.get("tls.crt", b""), material.files.get("tls.key", b""), "leaf"
            )
        except ConfigError as error:
            return error.problem
        return why_renew(pair, self._leaf, authority, self._validity.renew_before, now)


class Keeping:
    """Calls a keeper every few seconds; `problem` says why the last pass failed, if it did."""

    def __init__(self, keeper: Keeper, every: float) -> None:
        self.problem: str | None = "no certificate yet"
        self._keeper = keeper
        self._every = every

    def run(self, stopping: threading.Event) -> None:
        """Until told to stop; the first pass is made at once."""
        while not stopping.is_set():
            # A first pass that fails, or that another replica was faster at, is soon made again.
            stopping.wait(self._every if self._pass() else min(1.0, self._every))

    def _pass(self) -> bool:
        try:
            self._keeper.tick(datetime.now(UTC))
        except ConflictError:
            log.info("another replica changed the certificates; reading them again")
            return False
        except (KybernateError, ValueError, KeyError) as error:
            self.problem = f"certificates: {error}"
            log.warning("%s", self.problem)
            return False
        self.problem = None
        return True


def _wanted_leaf(names: tuple[str, ...]) -> Leaf:
    addresses = tuple(name for name in names if _is_address(name))
    dns = tuple(name for name in names if name not in addresses)
    return Leaf("kyb-webhook", dns=dns, addresses=addresses, server=True)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(bundle) if bundle else []
    except ValueError as error:
        raise ConfigError("ca.crt", f"is no bundle of certificates ({error})") from error
