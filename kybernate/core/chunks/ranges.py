"""Which ranges of which packs to read for some chunks of a file: few and large. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kybernate.core.chunks.pages import BLOCK
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kybernate.core.chunks.leaf import Chunk

LARGEST = 9 << 20
"""Bytes that one request asks for at most: a pack as we fill them."""
GAP = BLOCK
"""Bytes between two chunks that are rather read than asked for apart."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk, and where in the file it goes."""

    chunk: Chunk
    position: int


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes `start` to `end` of a pack, and the chunks that lie within."""

    pack: str
    start: int
    end: int
    placed: tuple[Placed, ...]


_FEW, _MANY = 64, 192
"""Chunks of a job: from the first on it ends with its pack, at the second wherever it is."""


def jobs(chunks: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Chunks that follow each other, some MiB at a time: of one pack, where they lie in order."""
    job: list[Placed] = []
    for one in chunks:
        moved = job and one.chunk.pack != job[-1].chunk.pack
        if len(job) >= _MANY or (moved and len(job) >= _FEW):
            yield job
            job = []
        job.append(one)
    if job:
        yield job


def ranges(placed: Iterable[Placed]) -> list[Range]:
    """What to read for these chunks; those of zeros need nothing."""
    ordered = sorted(
        (p for p in placed if p.chunk.pack),
        key=lambda p: (p.chunk.pack, p.chunk.offset, p.position),
    )
    found: list[Range] = []
    group: list[Placed] = []
    for one in ordered:
        if group and not _joins(group, one.chunk):
            found.append(_range(group))
            group = []
        group.append(one)
    if group:
        found.append(_range(group))
    return found


def _joins(group: Sequence[Placed], chunk: Chunk) -> bool:
    first, last = group[0].chunk, group[-1].chunk
    return (
        chunk.pack == first.pack
        and chunk.offset - (last.offset + last.stored) <= GAP
        and chunk.offset + chunk.stored - first.offset <= LARGEST
    )


def _range(group: list[Placed]) -> Range:
    first = group[0].chunk
    end = max(p.chunk.offset + p.chunk.stored for p in group)
    return Range(first.pack, first.offset, end, tuple(group))
