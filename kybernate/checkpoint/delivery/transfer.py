"""Carries artifacts from one place to another, and between clusters.

An export is a place of its own, in a folder or a tar archive: one artifact, its chunks under a
new data key, which is wrapped by a transport key that goes another way. So who gets it can open
this artifact and nothing else of its namespace. It stays signed by the cluster that it comes
from; an import believes only whom it is told to trust, and signs it again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kybernate.adapters.keys.artifactkeys import WrapKeys
from kybernate.checkpoint.catalogue import manifests as found_in
from kybernate.checkpoint.packs import fetch, pack
from kybernate.checkpoint.packs.blocks import raw_sources
from kybernate.checkpoint.places import read_manifest
from kybernate.checkpoint.raw import seal as sealing
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.dataclass import dataclass
from kybernate.errors import NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.packs.blocks import Source
    from kybernate.checkpoint.packs.named import Named
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.lib.deadline import Deadline


def sources(place: Place, manifest: Manifest, keys: ArtifactKeys) -> Iterator[Source]:
    """An artifact's files, raw or packed, checked as they are read."""
    if manifest.form == manifests.RAW:
        folder = sealing.images_of(place, manifest)
        return raw_sources(folder, sealing.pieces_of(place, manifest))
    return fetch.sources(fetch.ChunkReader(place, manifest, keys), manifest)


def copy(  # noqa: PLR0913, PLR0917 - as `pack`
    artifact: str,
    source: tuple[Place, ArtifactKeys],
    target: tuple[Place, ArtifactKeys],
    deadline: Deadline,
    progress: Callable[[int], None] | None = None,
    named: Named | None = None,
    over: Callable[[], None] | None = None,
) -> Manifest:
    """The artifact in another place too, under the keys of that place. `named`, `over` and errors
    as of `pack`."""
    manifest = read_manifest(source[0], artifact, source[1])
    reading = sources(source[0], manifest, source[1])
    return pack.pack(reading, manifest, *target, deadline, progress, named, over)


def exported(
    artifact: str,
    source: tuple[Place, ArtifactKeys],
    target: Place,
    transport: bytes,
    deadline: Deadline,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """The artifact alone in `target`, to be opened by the transport key. Raises like `pack`.

    RefusedError if something is there already: an export shares nothing.
    """
    if next(iter(target.objects.scan(layout.KEYS)), None):
        raise RefusedError(f"{target.name} holds an export already; name one that is empty")
    keys = replace(source[1], kms=WrapKeys((transport,)))
    return copy(artifact, source, (target, keys), deadline, progress)


@dataclass(frozen=True, slots=True)
class Naming:
    """What an imported artifact is to be called: in `namespace`, or its own if that is empty;
    `now` and `salt` as for `layout.make_id`."""

    now: datetime
    salt: int
    namespace: str = ""


def imported(
    source: tuple[Place, ArtifactKeys],
    target: tuple[Place, ArtifactKeys],
    naming: Naming,
    deadline: Deadline,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """The one artifact of an export, in `target`.

    The keys of `source` are those that are believed, and the transport key. Raises NotFoundError
    (no artifact, or several), RefusedError (not signed by one who is trusted, or not to be opened
    by this transport key), else like `pack`.
    """
    manifest = _only(*source)
    reading = sources(source[0], manifest, source[1])
    namespace = naming.namespace or manifest.facts.namespace
    name = layout.parse_id(manifest.id).name
    made = replace(
        manifest,
        id=layout.make_id(namespace, name, naming.now, naming.salt),
        facts=replace(manifest.facts, namespace=namespace, namespace_uid="", parent=""),
        origin=manifest.id,
    )
    return pack.pack(reading, made, *target, deadline, progress)


def _only(place: Place, keys: ArtifactKeys) -> Manifest:
    found = list(found_in(place, keys))
    if len(found) != 1:
        raise NotFoundError(f"{place.name} holds {len(found)} artifacts; an export has one")
    if found[0].manifest is None:
        raise RefusedError(found[0].problem)
    return found[0].manifest
