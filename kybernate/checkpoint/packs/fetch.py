"""Brings a packed artifact back into a directory, and reads its chunks for others.

Every chunk is opened and named again before it is used.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING

from kybernate.checkpoint import marks
from kybernate.checkpoint.ordered import threads
from kybernate.checkpoint.packs.blocks import Batch, Source
from kybernate.checkpoint.packs.files import Files
from kybernate.checkpoint.packs.target import held
from kybernate.checkpoint.places import WORKERS, cipher_of
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.chunks import leaf
from kybernate.core.chunks.leaf import Chunk
from kybernate.core.chunks.ranges import Placed, ranges
from kybernate.errors import CorruptError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.cipher import Cipher
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import File, Leaf, Manifest
    from kybernate.core.chunks.ranges import Range
    from kybernate.lib.deadline import Deadline

_BATCH = 16
"""Chunks of one batch for packing: 1 MiB."""


class ChunkReader:
    """The chunks of one packed artifact, from one place. Any thread may use it."""

    def __init__(self, place: Place, manifest: Manifest, keys: ArtifactKeys) -> None:
        """Raises RefusedError if our keys don't open its data key."""
        self._place = place
        self._manifest = manifest
        self._packs = {pack.id: pack for pack in manifest.packs}
        self.cipher: Cipher = cipher_of(manifest, keys)
        packs = f"{layout.PACKS}{manifest.facts.namespace}/"
        place.objects.expect([packs + pack.id for pack in manifest.packs], manifest.id)

    def chunks(self, file: File) -> Iterator[Placed]:
        """All chunks of a file, in its order. Raises CorruptError."""
        position = 0
        for ref in file.leaves:
            chunks = leaf.decode(bytes(self._leaf(ref)))
            if sum(chunk.size for chunk in chunks) != ref.covers:
                raise CorruptError(f"{self._manifest.id}: a leaf of {file.name} covers too little")
            for chunk in chunks:
                if chunk.pack and chunk.pack not in self._packs:
                    raise CorruptError(f"{self._manifest.id}: a leaf names a pack of others")
                yield Placed(chunk, position)
                position += chunk.size

    def read(self, wanted: Range) -> Iterator[tuple[Placed, memoryview | bytes]]:
        """Each chunk of the range, opened. Raises CorruptError."""
        key = f"{layout.PACKS}{self._manifest.facts.namespace}/{wanted.pack}"
        try:
            data = self._place.objects.get(key, wanted.start, wanted.end - wanted.start)
        except NotFoundError as error:
            raise CorruptError(
                f"{self._manifest.id} has lost {key} in {self._place.name}"
            ) from error
        if len(data) != wanted.end - wanted.start:
            raise CorruptError(f"{key} in {self._place.name} is cut short")
        for placed in wanted.placed:
            at = placed.chunk.offset - wanted.start
            yield placed, self.cipher.opened(placed.chunk, data[at : at + placed.chunk.stored])

    def _leaf(self, ref: Leaf) -> memoryview | bytes:
        pack = self._manifest.packs[ref.pack].id
        chunk = Chunk(bytes.fromhex(ref.name), pack, ref.offset, ref.stored, ref.size)
        (wanted,) = ranges([Placed(chunk, 0)])
        return next(self.read(wanted))[1]


def sources(reader: ChunkReader, manifest: Manifest) -> Iterator[Source]:
    """A packed artifact's files, to be packed elsewhere."""
    for file in manifest.files:
        batches = (_batch(reader, group) for group in _groups(reader.chunks(file), _BATCH))
        yield Source(file.name, file.size, batches)


def fetch(  # noqa: PLR0913, PLR0917 - what, from where, to where, and how
    place: Place,
    manifest: Manifest,
    folder: Path,
    keys: ArtifactKeys,
    deadline: Deadline,
    recorded: str = "",
    progress: Callable[[int], None] | None = None,
    laid_out: Callable[[], None] | None = None,
) -> None:
    """All files of a packed artifact, in `folder`, which is made with mode 0700. `progress` hears
    of bytes done.

    `recorded`: the content that they must have, whatever was signed; empty where that is enough.
    `laid_out` is called, unless that can't be, once all is there but memory, which is marked as it
    comes. Of each file the last is marked when all of it is what was recorded: whoever has read a
    whole file has read what is right.
    Raises CorruptError, RefusedError, RetryableError, DeadlineError, OSError.
    """
    deadline.check()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader = ChunkReader(place, manifest, keys)
    with ExitStack() as stack:
        own = stack.enter_context(held(folder, deadline))
        pool = stack.enter_context(threads(place.transfers, "fetch"))
        hashers = stack.enter_context(threads(WORKERS, "hash"))
        work = Files(own, reader, deadline, pool, hashers if recorded else None, progress)
        stack.callback(work.close)
        if laid_out and (not recorded or manifests.content(manifest.files) == recorded):
            there = _as_it_comes(work, manifest, laid_out)
        else:
            # 0.2.0 has packed some of which no file can be seen to be right by itself.
            there = [work.bring(file) for file in manifest.files]
        if recorded and manifests.content(there) != recorded:
            raise CorruptError(
                f"{manifest.id} in {place.name} does not hold what was recorded when it was saved"
            )
        marks.drop(own)


def _as_it_comes(work: Files, manifest: Manifest, laid_out: Callable[[], None]) -> list[File]:
    """A restore may begin once that is called."""
    memory = [file for file in manifest.files if marks.is_pages(file.name)]
    others = [work.bring(file, right=True) for file in manifest.files if file not in memory]
    for file in memory:
        work.lay_out(file)
    try:
        laid_out()
        return [*others, *(work.bring(file, right=True) for file in memory)]
    except BaseException:
        work.lose()
        raise


def _groups(chunks: Iterator[Placed], size: int) -> Iterator[list[Placed]]:
    while group := list(islice(chunks, size)):
        yield group


def _batch(reader: ChunkReader, group: list[Placed]) -> Batch:
    return Batch(sum(p.chunk.size for p in group), lambda: _load(reader, group))


def _load(reader: ChunkReader, group: list[Placed]) -> list[memoryview]:
    found: dict[int, memoryview] = {}
    for wanted in ranges(group):
        for placed, data in reader.read(wanted):
            found[placed.position] = memoryview(data)
    return [found.get(p.position) or memoryview(bytes(p.chunk.size)) for p in group]
