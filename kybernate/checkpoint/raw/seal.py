"""Raw artifacts: a dump as CRIU wrote it, with a manifest.

CRIU syncs nothing and hashes nothing. Here the files are put on the disk and hashed, in pieces of
1 MiB by all cores; then the folder moves into the place, and last comes the signed manifest.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from blake3 import blake3

from kybernate.adapters.objects.objects import make_folder, sync_folder
from kybernate.checkpoint.ordered import ordered, threads
from kybernate.checkpoint.packs.blocks import Pieces, image_files
from kybernate.checkpoint.packs.pack import put_manifest
from kybernate.checkpoint.packs.target import Target, held
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import WORKERS
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.manifest import PIECE, File, Manifest
from kybernate.errors import CorruptError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.packs.named import Named
    from kybernate.checkpoint.places import Place
    from kybernate.checkpoint.raw.stream import Hashed
    from kybernate.core.artifacts.manifest import Facts
    from kybernate.lib.deadline import Deadline
    from kybernate.types import ArtifactId

_CREATED = "%Y-%m-%dT%H:%M:%SZ"


def draft(artifact: ArtifactId, facts: Facts, now: datetime) -> Manifest:
    """A manifest that doesn't know its bytes yet."""
    created = now.strftime(_CREATED)
    return Manifest(manifests.VERSION, artifact, created, manifests.RAW, facts, (), 0, 0)


def seal(  # noqa: PLR0913, PLR0917 - what, where, and what is known of it
    place: Place,
    images: Path,
    blank: Manifest,
    keys: ArtifactKeys,
    deadline: Deadline,
    hashed: Hashed | None = None,
    named: Named | None = None,
) -> Manifest:
    """The dump in `images` becomes the artifact `blank`, raw, in a local place.

    `images` moves into the place; if anything goes wrong it is where it was. With `hashed` it was
    read and hashed already, and is only synced; else its blocks are `named` while the disk is
    waited for. Raises RefusedError, DeadlineError, OSError.
    """
    files, pieces = _synced(images, hashed) if hashed else _hashed(images, deadline, named)
    total = sum(file.size for file in files)
    folder = place.local / layout.folder(blank.id)
    make_folder(folder)
    deadline.check()
    _move(images, folder / layout.IMAGES)
    try:
        place.objects.put(layout.folder(blank.id) + layout.PIECES, pieces)
        made = Manifest(
            *(blank.version, blank.id, blank.created, manifests.RAW, blank.facts),
            *(files, total, total),
            origin=blank.origin,
        )
        return put_manifest(place, made, keys)
    except BaseException:
        with suppress(OSError):
            place.objects.delete([layout.manifest_key(blank.id)])
            _move(folder / layout.IMAGES, images)
            remove_folder(folder)
        raise


def images_of(place: Place, manifest: Manifest) -> Path:
    """Where the files of a raw artifact are. Raises NotFoundError if it isn't raw there."""
    if manifest.form != manifests.RAW:
        raise NotFoundError(f"{manifest.id} is packed in {place.name}; fetch it first")
    return place.local / layout.folder(manifest.id) / layout.IMAGES


def pieces_of(place: Place, manifest: Manifest) -> Pieces:
    """The hashes of a raw artifact's pieces. Raises CorruptError."""
    try:
        data = place.objects.get(layout.folder(manifest.id) + layout.PIECES)
    except NotFoundError as error:
        raise CorruptError(f"{manifest.id} has lost the hashes of its pieces") from error
    return Pieces(manifest, bytes(data))


def verify_raw(place: Place, manifest: Manifest, deadline: Deadline) -> None:
    """Every byte is what was sealed. Raises CorruptError, DeadlineError, OSError."""
    folder, pieces = images_of(place, manifest), pieces_of(place, manifest)
    reader = PieceReader()

    def check(piece: tuple[File, int]) -> None:
        deadline.check()
        name, number = piece[0].name, piece[1]
        pieces.check(name, number, reader.read(folder / name, number))

    with threads(WORKERS, "verify") as pool:
        for _ in ordered(pool, check, _all_pieces(folder, manifest), 4 * WORKERS):
            pass


def copy_raw(
    place: Place,
    manifest: Manifest,
    to: Path,
    deadline: Deadline,
    progress: Callable[[int], None] | None = None,
) -> None:
    """A raw artifact's files in another folder, each piece checked on its way; continues from what
    is there. Raises CorruptError, DeadlineError, OSError."""
    folder, pieces = images_of(place, manifest), pieces_of(place, manifest)
    deadline.check()
    to.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, done = PieceReader(), 0
    with held(to, deadline) as own, threads(WORKERS, "copy") as pool:
        for file in manifest.files:
            deadline.check()
            with Target.open(own / file.name, file.size) as target:

                def bring(number: int, file: File = file, target: Target = target) -> int:
                    deadline.check()
                    data = reader.read(folder / file.name, number)
                    pieces.check(file.name, number, data)
                    if target.partial or not _is_zero(data):
                        target.write((data,), number * PIECE)
                    return len(data)

                check_size(folder, file)
                for size in ordered(pool, bring, range(_count(file)), 4 * WORKERS):
                    done += size
                    if progress:
                        progress(done)


def drop_raw(place: Place, manifest: Manifest) -> None:
    """Remove it: the manifest first. Raises OSError."""
    place.objects.delete([layout.manifest_key(manifest.id)])
    remove_folder(place.local / layout.folder(manifest.id))


def drop_rest(place: Place, artifact: str) -> None:
    """What a removal that was cut short has left of it. Idempotent. Raises OSError."""
    if place.root is not None:
        with suppress(FileNotFoundError):
            remove_folder(place.root / layout.folder(artifact))


def remove_folder(folder: Path) -> None:
    """An artifact's folder, and the folders above it that are empty then. Raises OSError."""
    shutil.rmtree(folder, ignore_errors=False)
    for above in (folder.parent, folder.parent.parent):
        with suppress(OSError):
            above.rmdir()


def _hashed(
    folder: Path, deadline: Deadline, named: Named | None
) -> tuple[tuple[File, ...], bytes]:
    """Sync all files, hash them meanwhile, and name their blocks."""
    sizes = image_files(folder)
    with threads(WORKERS + 1, "seal") as pool:
        synced = [pool.submit(_sync, folder / name) for name, _ in sizes]
        files, pieces = [], []
        for name, size in sizes:
            numbers = range(-(-size // PIECE))
            own = b"".join(ordered(pool, _hasher(folder / name, deadline), numbers, 16))
            files.append(File(name, size, blake3(own).hexdigest()))
            pieces.append(own)
        if named is not None:
            named.name_all(folder, pool, deadline)
        for each in synced:
            each.result()
    sync_folder(folder)
    return tuple(files), b"".join(pieces)


def _synced(folder: Path, hashed: Hashed) -> tuple[tuple[File, ...], bytes]:
    """Sync all files, which are those that were hashed. Raises CorruptError."""
    if image_files(folder) != [(file.name, file.size) for file in hashed.files]:
        raise CorruptError(f"{folder} has changed since it was read")
    for file in hashed.files:
        _sync(folder / file.name)
    sync_folder(folder)
    return hashed.files, hashed.pieces


def _hasher(path: Path, deadline: Deadline) -> Callable[[int], bytes]:
    reader = PieceReader()

    def digest(number: int) -> bytes:
        deadline.check()
        return blake3(reader.read(path, number)).digest()

    return digest


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise RefusedError(
                f"{source} is not on the file system of the place; dump where `begin` says"
            ) from error
        raise
    sync_folder(target.parent)
    sync_folder(source.parent)


def _all_pieces(folder: Path, manifest: Manifest) -> Iterator[tuple[File, int]]:
    for file in manifest.files:
        check_size(folder, file)
    yield from chain.from_iterable(
        ((file, number) for number in range(_count(file))) for file in manifest.files
    )


def check_size(folder: Path, file: File) -> None:
    """A raw artifact's file has the size that it was saved with. Raises CorruptError, OSError."""
    try:
        size = (folder / file.name).lstat().st_size
    except FileNotFoundError as error:
        raise CorruptError(f"{file.name} is not in {folder} any more") from error
    if size != file.size:
        raise CorruptError(f"{file.name} has {size} bytes, was saved with {file.size}")


def _count(file: File) -> int:
    return -(-file.size // PIECE)


def _is_zero(data: memoryview) -> bool:
    return not data[0] and not data[-1] and not bytes(data).strip(b"\0")
