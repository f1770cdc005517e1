"""Leaves: the chunks that list the chunks of a file, in its order. Pure.

    "KYBL", number of packs, number of chunks       4 bytes, two 32-bit numbers
    packs                                           16 bytes each
    chunks: name, pack, offset, stored, size        32 bytes, four 32-bit numbers each

All numbers are little-endian. `pack` counts in the list above it, so that a leaf of a region that
didn't change has the same bytes in the next artifact and is not stored again. A chunk of nothing
but zeros has no name and no pack, and is stored nowhere.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.chunks.pages import BLOCK
from kybernate.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 1000
"""Chunks that one leaf lists at most, so that it is no larger than a chunk itself may be."""
OVERHEAD = 16
"""Bytes that a stored chunk has more than what it holds: its seal. One that has just these more
than its chunk holds it as it is; one that has less holds it compressed."""

_HEAD = struct.Struct("<4sII")
_CHUNK = struct.Struct("<32sIIII")
_MAGIC = b"KYBL"
_NO_PACK = 0xFFFFFFFF
_NO_NAME = bytes(32)


class Chunk(NamedTuple):
    """`size` bytes of a file, `stored` bytes from `offset` on of a pack; `pack` is empty where
    they are all zero. A tuple: there are 16,384 of them for a GiB, and a frozen dataclass takes
    three times as long to make."""

    name: bytes
    pack: str
    offset: int
    stored: int
    size: int


def zeros(size: int) -> Chunk:
    """`size` zero bytes."""
    return Chunk(_NO_NAME, "", 0, 0, size)


def encode(chunks: Sequence[Chunk]) -> bytes:
    """The leaf that lists them."""
    packs = {pack: n for n, pack in enumerate(dict.fromkeys(c.pack for c in chunks if c.pack))}
    return b"".join(
        (
            _HEAD.pack(_MAGIC, len(packs), len(chunks)),
            *(bytes.fromhex(pack) for pack in packs),
            *(
                _CHUNK.pack(name, packs.get(pack, _NO_PACK), offset, stored, size)
                for name, pack, offset, stored, size in chunks
            ),
        )
    )


def decode(data: bytes) -> list[Chunk]:
    """What the leaf lists. Raises CorruptError, also for numbers that no leaf of ours has."""
    if len(data) < _HEAD.size:
        raise CorruptError("a leaf is shorter than its head")
    magic, packs, chunks = _HEAD.unpack_from(data)
    table = _HEAD.size + 16 * packs
    if magic != _MAGIC or chunks > MOST or len(data) != table + _CHUNK.size * chunks:
        raise CorruptError("a leaf is not of its form, or not of its size")
    names = [data[_HEAD.size + 16 * n : _HEAD.size + 16 * (n + 1)].hex() for n in range(packs)]
    return [_chunk(fields, names) for fields in _CHUNK.iter_unpack(data[table:])]


def _chunk(fields: tuple[bytes, int, int, int, int], packs: Sequence[str]) -> Chunk:
    name, pack, offset, stored, size = fields
    if not 0 < size <= BLOCK or stored > size + OVERHEAD:
        raise CorruptError(f"a leaf has a chunk of {size} bytes, stored as {stored}")
    if pack == _NO_PACK:
        return zeros(size)
    if pack >= len(packs):
        raise CorruptError("a leaf has a chunk in a pack that it doesn't list")
    return Chunk(name, packs[pack], offset, stored, size)
