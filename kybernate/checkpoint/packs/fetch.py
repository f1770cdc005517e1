"""Brings a packed artifact back into a directory, and reads its chunks for others.

Blocks that the directory has already are not asked for: a fetch that was cut short continues. What
is zero is not written at all. Every chunk is opened and named again before it is used.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from blake3 import blake3

from kybernate.checkpoint.ordered import ordered, threads
from kybernate.checkpoint.packs.blocks import Batch, Source
from kybernate.checkpoint.packs.target import Target
from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import WORKERS, cipher_of
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.manifest import PIECE, File
from kybernate.core.chunks import leaf
from kybernate.core.chunks.leaf import Chunk
from kybernate.core.chunks.ranges import Placed, jobs, ranges
from kybernate.dataclass import dataclass
from kybernate.errors import CorruptError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.cipher import Cipher
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Leaf, Manifest
    from kybernate.core.chunks.ranges import Range
    from kybernate.lib.deadline import Deadline

_BATCH = 16
"""Chunks of one batch for packing: 1 MiB."""
_RUN = 16
"""Chunks that are written at once, at most."""


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
) -> None:
    """All files of a packed artifact, in `folder`, which is made with mode 0700. `progress` hears
    of bytes done.

    `recorded`: the content that they must have, whatever was signed; empty where that is enough.
    Raises CorruptError, RefusedError, RetryableError, DeadlineError, OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, there, counter = ChunkReader(place, manifest, keys), [], _Counter(progress)
    with threads(place.transfers, "fetch") as pool, threads(WORKERS, "hash") as hashers:
        for file in manifest.files:
            path = folder / file.name
            with Target.open(path, file.size) as target:
                work = _Fetching(reader, target, deadline)
                todo = jobs(reader.chunks(file))
                sizes = counter.counted(ordered(pool, work.bring, todo, 2 * place.transfers))
                if recorded:
                    there.append(_hashed(file, path, sizes, hashers))
                else:
                    deque(sizes, maxlen=0)
    if recorded and manifests.content(there) != recorded:
        raise CorruptError(
            f"{manifest.id} in {place.name} does not hold what was recorded when it was saved"
        )


class _Counter:
    """Tells `progress`, if there is any, of all sizes that pass."""

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self._progress = progress
        self._done = 0

    def counted(self, sizes: Iterable[int]) -> Iterable[int]:
        """The same sizes."""
        if self._progress is None:
            return sizes
        return map(self._count, sizes)

    def _count(self, size: int) -> int:
        self._done += size
        if self._progress:
            self._progress(self._done)
        return size


def _hashed(file: File, path: Path, sizes: Iterable[int], hashers: Executor) -> File:
    """What it holds, each piece read back as soon as `sizes` say that it is all there."""
    reader = PieceReader()

    def whole() -> Iterator[int]:
        at = 0
        for size in sizes:
            before, at = at, at + size
            yield from range(before // PIECE, at // PIECE)
        if at % PIECE:
            yield at // PIECE

    def hashed(number: int) -> bytes:
        return blake3(reader.read(path, number)).digest()

    own = b"".join(ordered(hashers, hashed, whole(), 4 * WORKERS))
    return File(file.name, file.size, blake3(own).hexdigest())


@dataclass(frozen=True, slots=True)
class _Fetching:
    reader: ChunkReader
    target: Target
    deadline: Deadline

    def bring(self, group: list[Placed]) -> int:
        """Any thread: what these chunks cover is right in the file; how many bytes that is."""
        self.deadline.check()
        missing = [placed for placed in group if not self._there(placed)]
        for wanted in ranges(missing):
            self._write(self.reader.read(wanted))
        return sum(placed.chunk.size for placed in group)

    def _write(self, read: Iterable[tuple[Placed, memoryview | bytes]]) -> None:
        """Neighbours together: writers of one file wait for each other."""
        start = end = 0
        run: list[memoryview | bytes] = []
        for placed, data in read:
            if run and (placed.position != end or len(run) == _RUN):
                self.target.write(run, start)
                run = []
            if not run:
                start = placed.position
            run.append(data)
            end = placed.position + len(data)
        if run:
            self.target.write(run, start)

    def _there(self, placed: Placed) -> bool:
        if not self.target.partial:
            return False
        data = self.target.read(placed.chunk.size, placed.position)
        if placed.chunk.pack:
            return self.reader.cipher.name(data) == placed.chunk.name
        if data.strip(b"\0"):
            self.target.write((bytes(placed.chunk.size),), placed.position)
        return True


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
