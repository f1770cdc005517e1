"""What a place holds, by its manifests alone: from these a registry can be made anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kybernate.checkpoint.ordered import ordered, threads
from kybernate.checkpoint.places import read_manifest
from kybernate.core.artifacts import layout
from kybernate.errors import CorruptError, NotFoundError, RefusedError, UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.types import ArtifactId


@dataclass(frozen=True, slots=True)
class Found:
    """An artifact whose manifest is there. `problem` says why it isn't believed, if it isn't."""

    id: ArtifactId
    manifest: Manifest | None
    problem: str = ""


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

    keys_there = (info.key for info in place.objects.scan(prefix))
    ids = (found for key in keys_there if (found := layout.id_of(key)) and not skip(found))
    with threads(2 * place.transfers, "catalogue") as pool:
        yield from (found for found in ordered(pool, read, ids, 64) if found)
