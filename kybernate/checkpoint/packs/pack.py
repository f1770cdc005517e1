"""Packs an artifact into a place: blocks in, chunks and a signed manifest out.

Threads load, name and compress blocks; one thread orders what is new into packs; others carry
packs away. Only what is on its way is in memory, nothing is written anywhere but in the place.
A pack that ends half-way leaves packs without a manifest: the next one builds upon them.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, NamedTuple

from kybernate.checkpoint.cipher import Cipher
from kybernate.checkpoint.ordered import ordered, threads
from kybernate.checkpoint.packs import known as knowing
from kybernate.checkpoint.packs import named as naming
from kybernate.checkpoint.packs.blocks import is_zeros
from kybernate.checkpoint.packs.packwriter import PackWriter
from kybernate.checkpoint.places import WORKERS, data_key, read_manifest
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.manifest import File, Leaf
from kybernate.core.chunks import leaf
from kybernate.core.chunks.chunkindex import ChunkTable, Stored
from kybernate.core.chunks.leaf import Chunk
from kybernate.errors import (
    ConflictError,
    CorruptError,
    NotFoundError,
    RefusedError,
    RetryableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.checkpoint.packs.blocks import Batch, Source
    from kybernate.checkpoint.packs.known import Known
    from kybernate.checkpoint.packs.named import Named
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Manifest, Pack
    from kybernate.lib.deadline import Deadline

log = logging.getLogger(__name__)

_GROUP = 3
"""Batches that a thread takes at once: to give it one takes as long as to name three blocks."""
_FEW = 6
"""New blocks of a batch that are rather copied than keep the memory it was read into."""
_AHEAD = WORKERS + 2
_AT_ONCE = _AHEAD // 2


class _New(NamedTuple):
    """A block that the place didn't have when it was loaded, and what is to be stored of it."""

    name: bytes
    payload: memoryview | bytes
    size: int


def pack(  # noqa: PLR0913, PLR0917 - what, to where, and how
    sources: Iterable[Source],
    draft: Manifest,
    place: Place,
    keys: ArtifactKeys,
    deadline: Deadline,
    progress: Callable[[int], None] | None = None,
    named: Named | None = None,
    over: Callable[[], None] | None = None,
) -> Manifest:
    """The manifest that is in the place when this returns; `draft` says all that isn't counted.
    `named`: the names that its blocks were given when it was sealed. `over`: removes the one that
    is there and isn't whole, once all is there that takes its place.

    Raises RetryableError, RefusedError, CorruptError (the source is not what was sealed),
    DeadlineError, OSError.
    """
    if over is None:
        already, over = _already(place, draft.id, keys)
        if already:
            return already
    namespace = draft.facts.namespace
    with knowing.lease(place, namespace, deadline):
        wrapped, secret = data_key(place, namespace, keys)
        cipher = Cipher(secret)
        known = knowing.load(place, namespace, cipher, deadline)
        with threads(WORKERS, "pack") as workers, threads(place.transfers, "carry") as carriers:
            writer = PackWriter(place, namespace, cipher, carriers)
            names = named.files if named is not None and named.key == wrapped else {}
            packing = _Packing(cipher, known, writer, deadline, progress, names)
            pieces = {file.name: file.pieces for file in draft.files}
            files = tuple(
                replace(packing.file(source, workers), pieces=pieces.get(source.name, ""))
                for source in sources
            )
            writer.finish()
        packs = packing.packs()
        knowing.check_there(place, namespace, packs)
        deadline.check()
        made = replace(
            draft,
            form=manifests.PACKED,
            files=files,
            total=sum(file.size for file in files),
            stored=writer.stored,
            packs=packs,
            key=wrapped,
        )
        if over is not None:
            over()
        return put_manifest(place, made, keys)


def put_manifest(place: Place, manifest: Manifest, keys: ArtifactKeys) -> Manifest:
    """Sign it and put it: from here on the artifact exists there. One that is there stays.

    Raises RetryableError if the place doesn't hold it afterwards as it was put.
    """
    key = layout.manifest_key(manifest.id)
    with suppress(ConflictError):
        body = manifests.encode(replace(manifest, node=keys.node))
        place.objects.put(key, keys.sign(body), create=True)
    try:
        return read_manifest(place, manifest.id, keys)
    except (CorruptError, RefusedError) as error:
        place.objects.delete([key])
        raise RetryableError(f"{place.name} did not keep {key} as it was put") from error
    except NotFoundError as error:
        raise RetryableError(f"{place.name} doesn't show {key} yet") from error


def _already(
    place: Place, artifact: str, keys: ArtifactKeys
) -> tuple[Manifest | None, Callable[[], None] | None]:
    """The manifest that an earlier call has put; one that isn't ours is no manifest, and how it
    goes."""
    try:
        return read_manifest(place, artifact, keys), None
    except NotFoundError:
        return None, None
    except (CorruptError, RefusedError) as error:
        log.warning("%s is packed again over a manifest that is not ours: %s", artifact, error)
        return None, partial(place.objects.delete, [layout.manifest_key(artifact)])


class _Packing:
    """One artifact on its way into packs. `names`: see `named.Named`."""

    def __init__(
        self,
        cipher: Cipher,
        known: Known,
        writer: PackWriter,
        deadline: Deadline,
        progress: Callable[[int], None] | None,
        names: Mapping[str, list[bytes]],
    ) -> None:
        self._cipher = cipher
        self._names = names
        self._known = known
        self._writer = writer
        self._deadline = deadline
        self._progress = progress
        self._fresh = ChunkTable()
        self._fresh_packs: list[str] = []
        self._used: dict[str, int] = {}
        self._done = 0

    def file(self, source: Source, workers: Executor) -> File:
        """Store what is new of a file; `packs` has all that it needs in the end."""
        leaves: list[Leaf] = []
        chunks: list[Chunk] = []
        names = chain(self._names.get(source.name, ()), repeat(b""))
        groups = _groups(zip(source.batches, names, strict=False))
        for batch, blocks in chain.from_iterable(
            ordered(workers, self._prepare_all, groups, _AHEAD, _AT_ONCE)
        ):
            self._deadline.check()
            chunks += [self._put(block) if isinstance(block, _New) else block for block in blocks]
            batch.done()
            self._tell(batch.size)
            while len(chunks) >= leaf.MOST:
                leaves.append(self._leaf(chunks[: leaf.MOST]))
                del chunks[: leaf.MOST]
        if chunks:
            leaves.append(self._leaf(chunks))
        return File(source.name, source.size, leaves=tuple(leaves))

    def packs(self) -> tuple[Pack, ...]:
        """All packs that were used, as the leaves count them; once the writer has finished."""
        old = {pack.id: pack for pack in self._known.packs}
        return tuple(self._writer.written.get(name) or old[name] for name in self._used)

    def _prepare_all(
        self, group: list[tuple[Batch, bytes]]
    ) -> list[tuple[Batch, Sequence[Chunk | _New]]]:
        return [self._prepare(batch, names) for batch, names in group]

    def _prepare(self, batch: Batch, names: bytes) -> tuple[Batch, Sequence[Chunk | _New]]:
        """Any thread: find the blocks by their names, and squeeze those that are new. If all of
        them were named and are there, nothing is read."""
        if names and (there := naming.found(self._known, batch, names)) is not None:
            return batch, there
        blocks = self._found(batch.load())
        new = {at: block for at, block in enumerate(blocks) if isinstance(block, _New)}
        if len(new) <= _FEW:
            for at, block in new.items():
                blocks[at] = block._replace(payload=bytes(block.payload))
            batch.done()  # what it was read into is in this core's cache still
        return batch, blocks

    def _found(self, blocks: list[memoryview]) -> list[Chunk | _New]:
        """Where each is already, or what is to be stored of it."""
        empty = [is_zeros(data) for data in blocks]
        filled = [data for data, zeros in zip(blocks, empty, strict=True) if not zeros]
        names = self._cipher.names(filled)
        known = zip(names, filled, self._known.find(names), strict=True)
        return [
            leaf.zeros(len(data)) if zeros else self._known_or_new(*next(known))
            for data, zeros in zip(blocks, empty, strict=True)
        ]

    def _known_or_new(self, name: bytes, data: memoryview, chunk: Chunk | None) -> Chunk | _New:
        return chunk or _New(name, self._cipher.squeezed(data), len(data))

    def _put(self, block: _New) -> Chunk:
        """The one thread that orders: where the block is, stored now if it is nowhere yet."""
        at = self._fresh.find(block.name)
        if at:
            pack = self._fresh_packs[at.pack]
            return Chunk(block.name, pack, at.offset, at.stored, block.size)
        chunk = self._writer.add(block.name, block.payload, block.size)
        if not self._fresh_packs or self._fresh_packs[-1] != chunk.pack:
            self._fresh_packs.append(chunk.pack)
        here = Stored(len(self._fresh_packs) - 1, chunk.offset, chunk.stored, block.size)
        self._fresh.add(block.name, here)
        return chunk

    def _leaf(self, chunks: list[Chunk]) -> Leaf:
        for pack in dict.fromkeys(chunk.pack for chunk in chunks if chunk.pack):
            self._number(pack)
        (block,) = self._found([memoryview(leaf.encode(chunks))])
        chunk = self._put(block) if isinstance(block, _New) else block
        covers = sum(each.size for each in chunks)
        number = self._number(chunk.pack)
        return Leaf(chunk.name.hex(), number, chunk.offset, chunk.stored, chunk.size, covers)

    def _number(self, pack: str) -> int:
        return self._used.setdefault(pack, len(self._used))

    def _tell(self, size: int) -> None:
        self._done += size
        if self._progress:
            self._progress(self._done)


def _groups(batches: Iterable[tuple[Batch, bytes]]) -> Iterator[list[tuple[Batch, bytes]]]:
    rest = iter(batches)
    while group := list(islice(rest, _GROUP)):
        yield group
