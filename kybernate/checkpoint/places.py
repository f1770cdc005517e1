"""Places where artifacts lie, and the keys that open what lies there."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from kybernate.adapters.objects.objects import LocalObjects, PacedObjects, open_objects
from kybernate.checkpoint.cipher import Cipher
from kybernate.core.artifacts import keyobjects, layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.keyobjects import KeyObject
from kybernate.dataclass import dataclass
from kybernate.errors import (
    ConflictError,
    CorruptError,
    KybernateError,
    LockedError,
    NotFoundError,
    RefusedError,
    RetryableError,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.core.artifacts.manifest import DataKey, Manifest
    from kybernate.ports import Objects

log = logging.getLogger(__name__)

WORKERS = max(2, os.cpu_count() or 2)
PACK = 8 << 20
_MOST_KEYS = 100
LARGEST_KEY = 4096
"""Bytes of a data key's object that are read at most."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place by its name for people. `root`: its folder, if it is a local one.

    `read_back`: what is put is read again before it counts as there. `transfers`: how many
    requests it is asked at once. `pack_bytes`: from which size on a pack is full.
    """

    name: str
    objects: Objects
    root: Path | None = None
    read_back: bool = True
    transfers: int = 4
    pack_bytes: int = PACK

    @property
    def local(self) -> Path:
        """Its folder. Raises NotFoundError if it is no local place."""
        if self.root is None:
            raise NotFoundError(f"{self.name} is no folder of this node: nothing lies there raw")
        return self.root


def open_place(url: str, name: str = "", rate: float = 0.0) -> Place:
    """The place that a path or a URL names; `rate`: bytes per second at most, 0.0 for no limit.

    Raises ConfigError.
    """
    return place_of(open_objects(url), name or url, rate)


def place_of(objects: Objects, name: str, rate: float = 0.0) -> Place:
    """The place that has these objects; `rate` as above."""
    root = objects.root if isinstance(objects, LocalObjects) else None
    paced = PacedObjects(objects, rate) if rate > 0 else objects
    # A folder has synced what it wrote; a second look at the page cache would prove nothing.
    return Place(name, paced, root, read_back=root is None)


def read_manifest(place: Place, artifact: str, keys: ArtifactKeys) -> Manifest:
    """The artifact's manifest in this place.

    Raises NotFoundError, RefusedError (not signed, not ours), CorruptError, UnfitError (written by
    a newer release in a version that this one can't read).
    """
    key = layout.manifest_key(artifact)
    try:
        signed = bytes(place.objects.get(key, 0, manifests.LARGEST + 1))
    except NotFoundError as error:
        raise NotFoundError(f"{artifact} is not in {place.name}") from error
    what = f"the manifest of {artifact} in {place.name}"
    manifest = opened(signed, keys, what)
    if manifest.id != artifact:
        raise CorruptError(f"{what} is that of {manifest.id}")
    return manifest


def opened(signed: bytes, keys: ArtifactKeys, what: str) -> Manifest:
    """A manifest whose signature is right, and that is of the node which signed it. Raises
    RefusedError, CorruptError, UnfitError."""
    body, node = keys.opened(signed, what)
    manifest = manifests.decode(body, what)
    if manifest.node != node:
        by, said = ((name and f"node {name}") or "a shared key" for name in (node, manifest.node))
        raise RefusedError(f"{what} is signed by {by}, and says that it is by {said}")
    return manifest


def time_of(place: Place) -> float:
    """Seconds since 1970 by the clock that dates the place's objects: what was put there is as old
    as the difference, whatever the clocks of nodes say. Raises RetryableError, OSError."""
    key = f"{layout.CLOCKS}{secrets.token_hex(8)}"
    place.objects.put(key, b"1")
    try:
        return place.objects.head(key).modified
    except NotFoundError as error:
        raise RetryableError(f"{place.name} doesn't show {key} yet") from error
    finally:
        with suppress(KybernateError, OSError):
            place.objects.delete([key])


def cipher_of(manifest: Manifest, keys: ArtifactKeys) -> Cipher:
    """What opens the chunks of a packed artifact. Raises RefusedError if our keys don't,
    LockedError if the one that does is missing."""
    namespace = manifest.facts.namespace
    return Cipher(keys.kms.unwrap(manifest.key.by, manifest.key.wrapped, namespace))


def data_key(place: Place, namespace: str, keys: ArtifactKeys) -> tuple[DataKey, bytes]:
    """The namespace's data key in this place, made if there is none yet, wrapped and open.

    All writers agree on one: whoever comes second takes the first one's. A key that is damaged, or
    that isn't this namespace's to open (one of the same name had it, and was deleted), is passed
    over: each state names its own, so that none is lost by it. Raises ConfigError, CorruptError,
    RetryableError, and RefusedError where a new one may not be made.
    """
    prefix = f"{layout.KEYS}{layout.check_namespace(namespace)}/"
    for number in range(1, _MOST_KEYS):
        try:
            return _opened_key(place, f"{prefix}{number}", number, namespace, keys)
        except CorruptError as error:
            log.warning("a data key is passed over: %s", error)
    raise CorruptError(
        f"{prefix} in {place.name} holds nothing but keys that are damaged or another's; remove "
        "them"
    )


def _opened_key(
    place: Place, at: str, number: int, namespace: str, keys: ArtifactKeys
) -> tuple[DataKey, bytes]:
    wrapped = _agreed_key(place, at, number, namespace, keys).data_key
    try:
        return wrapped, keys.kms.unwrap(wrapped.by, wrapped.wrapped, namespace)
    except (LockedError, RefusedError) as error:
        raise CorruptError(f"{at} in {place.name}: {error}") from error


def _agreed_key(
    place: Place, at: str, number: int, namespace: str, keys: ArtifactKeys
) -> KeyObject:
    try:
        return read_key(place, at)
    except NotFoundError:
        by, secret = keys.kms.wrap(os.urandom(32), namespace)
        made = KeyObject(number, by, secret, keys.kms.own(by))
        with suppress(ConflictError):
            place.objects.put(at, keyobjects.encode(made), create=True)
    try:
        return read_key(place, at)
    except NotFoundError as error:
        raise RetryableError(f"{place.name} doesn't show {at} yet") from error


def read_key(place: Place, at: str) -> KeyObject:
    """The data key at this key of the place. Raises NotFoundError, CorruptError."""
    data = bytes(place.objects.get(at, 0, LARGEST_KEY))
    return keyobjects.decode(data, f"{at} in {place.name}")
