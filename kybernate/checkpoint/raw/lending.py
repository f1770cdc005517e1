"""A raw artifact's files, lent to a restore that begins before its memory has been verified.

They are linked into a folder of their own, beside marks of which memory is there: native/criu/
filling.patch. What is not memory is little, and is verified first. What tells how the rest must be
is linked there too: a tree continues even if its state is dropped meanwhile.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kybernate.adapters.objects.objects import LocalObjects
from kybernate.checkpoint import marks
from kybernate.checkpoint.ordered import ordered, threads
from kybernate.checkpoint.packs.target import held
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import WORKERS, Place, read_manifest
from kybernate.checkpoint.raw import filling
from kybernate.checkpoint.raw.mending import Mender
from kybernate.checkpoint.raw.seal import check_size, images_of, pieces_of
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.manifest import PIECE
from kybernate.errors import CorruptError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.packs.blocks import Pieces
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.lib.deadline import Deadline

_NO_LINKS = frozenset((errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS))
"""What a file system says that can't link files, or has too many links to one."""
_TOLD = "told"
"""The folder in a lent one with the manifest and the hashes, where a place has them."""


def lay_out(place: Place, manifest: Manifest, folder: Path, deadline: Deadline) -> bool:
    """All files in an empty folder; of memory nothing is said to be there yet. Whether the file
    system can do so. Raises NotFoundError if it isn't raw there, CorruptError, DeadlineError,
    OSError."""
    images, pieces = images_of(place, manifest), pieces_of(place, manifest)
    with held(folder, deadline) as own:
        _see_right(images, manifest, pieces, deadline)
        try:
            _link_told(place, manifest, own)
            for file in manifest.files:
                deadline.check()
                if marks.is_pages(file.name):
                    marks.make(own / file.name, file.size)
                os.link(images / file.name, own / file.name, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
    return True


def fill(
    artifact: str,
    folder: Path,
    others: Sequence[Place],
    keys: ArtifactKeys,
    deadline: Deadline,
) -> None:
    """Verify the memory that was lent in a folder; `others`: where else it may be had, the fastest
    first. Raises CorruptError once it is said of what is in no place; like `filling.fill`."""
    if not marks.pages_of(folder):
        return
    with held(folder, deadline) as own:
        told = Place("what it was lent", LocalObjects(own / _TOLD))
        try:
            pieces = pieces_of(told, read_manifest(told, artifact, keys))
        except (NotFoundError, CorruptError, RefusedError) as error:
            _lose(own)
            raise CorruptError(str(error)) from error
        filling.fill(own, pieces, Mender(artifact, others, keys), deadline)


def _lose(folder: Path) -> None:
    with ExitStack() as stack:
        those = [marks.Marks(path) for path in marks.pages_of(folder)]
        for one in those:
            stack.callback(one.close)
        marks.lose(those)


def lent_of(folder: Path) -> str:
    """Which artifact was lent there; empty if none was. Raises OSError."""
    told = LocalObjects(folder / _TOLD)
    for info in told.scan(layout.ARTIFACTS):
        if found := layout.id_of(info.key):
            return found
    return ""


def _link_told(place: Place, manifest: Manifest, folder: Path) -> None:
    (folder / _TOLD / layout.folder(manifest.id)).mkdir(parents=True)
    for name in (layout.MANIFEST, layout.PIECES):
        key = layout.folder(manifest.id) + name
        os.link(place.local / key, folder / _TOLD / key, follow_symlinks=False)


def _see_right(images: Path, manifest: Manifest, pieces: Pieces, deadline: Deadline) -> None:
    """All files have their size, and all but those of memory their bytes."""
    reader = PieceReader()

    def check(piece: tuple[str, int]) -> None:
        deadline.check()
        pieces.check(*piece, reader.read(images / piece[0], piece[1]))

    todo: list[tuple[str, int]] = []
    for file in manifest.files:
        check_size(images, file)
        if not marks.is_pages(file.name):
            todo += [(file.name, number) for number in range(-(-file.size // PIECE))]
    with threads(WORKERS, "lay-out") as pool:
        for _ in ordered(pool, check, todo, 4 * WORKERS):
            pass
