"""What a place holds, by its manifests alone: from these a registry can be made again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kybernate.checkpoint.copies import is_unreadable
from kybernate.checkpoint.ordered import ordered, threads
from kybernate.checkpoint.places import read_key, read_manifest
from kybernate.core.artifacts import layout
from kybernate.dataclass import dataclass
from kybernate.errors import CorruptError, NotFoundError, RefusedError, UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.keyobjects import KeyObject
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.types import ArtifactId

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """An artifact whose manifest is there. `problem` says why it isn't believed, if it isn't;
    `unread`: the disk doesn't give it, so that nobody knows what it says."""

    id: ArtifactId
    manifest: Manifest | None
    problem: str = ""
    unread: bool = False


def manifests(
    place: Place,
    keys: ArtifactKeys,
    namespace: str = "",
    skip: Callable[[ArtifactId], bool] = lambda _artifact: False,
) -> Iterator[Found]:
    """All artifacts of the place, or of one namespace, sorted as the place lists them.

    Those for which `skip` says so aren't read. Raises RetryableError, OSError.
    """
    prefix = f"{layout.ARTIFACTS}{namespace}/" if namespace else layout.ARTIFACTS

    def read(artifact: ArtifactId) -> Found | None:
        try:
            return Found(artifact, read_manifest(place, artifact, keys))
        except NotFoundError:
            return None
        except (CorruptError, RefusedError, UnfitError) as error:
            return Found(artifact, None, str(error))
        except OSError as error:
            if not is_unreadable(error):
                raise
            return Found(artifact, None, f"{artifact} can't be read: {error}", unread=True)

    keys_there = (info.key for info in place.objects.scan(prefix))
    ids = (found for key in keys_there if (found := layout.id_of(key)) and not skip(found))
    with threads(2 * place.transfers, "catalogue") as pool:
        yield from (found for found in ordered(pool, read, ids, 64) if found)


@dataclass(frozen=True, slots=True)
class Laid:
    """A data key's object in a place."""

    at: str
    namespace: str
    key: KeyObject


def data_keys(place: Place, namespace: str = "") -> Iterator[Laid]:
    """The data keys of a place, or of one namespace there; damaged ones are passed over. Raises
    RetryableError, OSError."""
    prefix = f"{layout.KEYS}{namespace}/" if namespace else layout.KEYS
    for info in place.objects.scan(prefix):
        parts = info.key.split("/")
        if len(parts) != 3:
            continue
        try:
            yield Laid(info.key, parts[1], read_key(place, info.key))
        except NotFoundError:
            continue
        except CorruptError as error:
            log.warning("a data key is passed over: %s", error)


def namespace_uids(place: Place, namespace: str = "") -> dict[str, str]:
    """Of each namespace's own key that lies in the place: the namespace's UID. Raises like
    `data_keys`."""
    return {one.key.of.id: one.key.of.uid for one in data_keys(place, namespace) if one.key.of.id}
