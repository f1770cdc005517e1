"""Reads artifacts back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.checkpoint.ordered import ordered, threads
from kybernate.checkpoint.packs import known as knowing
from kybernate.checkpoint.packs.fetch import ChunkReader
from kybernate.checkpoint.raw.seal import images_of, pieces_of, verify_raw
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.chunks.ranges import ranges
from kybernate.errors import CorruptError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.core.chunks.ranges import Range
    from kybernate.lib.deadline import Deadline


def verify(
    place: Place,
    manifest: Manifest,
    keys: ArtifactKeys,
    deadline: Deadline,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Every byte of it is there and right.

    A pack that isn't right is not built upon any more. Raises CorruptError, RefusedError,
    RetryableError, DeadlineError, OSError.
    """
    if manifest.form == manifests.RAW:
        verify_raw(place, manifest, deadline)
        return
    reader = ChunkReader(place, manifest, keys)
    done = 0
    with threads(2 * place.transfers, "verify") as pool:
        for size in ordered(
            pool, _check(place, manifest, reader, deadline), _ranges(reader, manifest), 16
        ):
            done += size
            if progress:
                progress(done)


def whole(place: Place, manifest: Manifest) -> bool:
    """Whether all of it seems to be there: a look at sizes, quick. Raises RetryableError, OSError
    where the place can't say."""
    try:
        if manifest.form == manifests.RAW:
            pieces_of(place, manifest)
            folder = images_of(place, manifest)
            return all((folder / f.name).lstat().st_size == f.size for f in manifest.files)
        return not knowing.lost(place, manifest.facts.namespace, manifest.packs)
    except (CorruptError, NotFoundError, FileNotFoundError):
        return False


def _ranges(reader: ChunkReader, manifest: Manifest) -> Iterator[Range]:
    for file in manifest.files:
        group = []
        for placed in reader.chunks(file):
            group.append(placed)
            if len(group) == 1024:
                yield from ranges(group)
                group = []
        yield from ranges(group)


def _check(
    place: Place, manifest: Manifest, reader: ChunkReader, deadline: Deadline
) -> Callable[[Range], int]:
    def read(wanted: Range) -> int:
        deadline.check()
        try:
            return sum(len(data) for _, data in reader.read(wanted))
        except CorruptError:
            place.objects.delete([f"{layout.INDEX}{manifest.facts.namespace}/{wanted.pack}"])
            raise

    return read
