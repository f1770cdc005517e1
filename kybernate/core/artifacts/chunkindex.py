"""Which chunks a place has already: a pack's own index, and a table of many. Pure.

    "KYBI", number of chunks, bytes of the pack     4 bytes, a 32-bit and a 64-bit number
    chunks: name, offset, stored, size              32 bytes, three 32-bit numbers each

The table is one array and no objects: a million chunks, 64 GiB of memory, take 64 MiB.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.artifacts.pages import BLOCK
from kybernate.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST = 1 << 20
"""Chunks that a table takes at most; what is beyond is stored once more."""

_HEAD = struct.Struct("<4sIQ")
_CHUNK = struct.Struct("<32sIII")
_ROW = struct.Struct("<32sIIII")
_START = struct.Struct("<Q40x")
"""Of a row what its slot is found by."""
_PLACE = struct.Struct("<32xIIII")
_MAGIC = b"KYBI"
_FIRST_SLOTS = 1 << 16
_GROWTH = 4


class Stored(NamedTuple):
    """Where a chunk of `size` bytes is: `stored` bytes from `offset` on of a pack.

    `pack` is a number that the table's owner gave.
    """

    pack: int
    offset: int
    stored: int
    size: int


def encode(chunks: Sequence[tuple[bytes, int, int, int]], size: int) -> bytes:
    """The index of a pack of `size` bytes: (name, offset, stored, size) of each chunk."""
    head = _HEAD.pack(_MAGIC, len(chunks), size)
    return head + b"".join(_CHUNK.pack(*chunk) for chunk in chunks)


def pack_size(data: bytes) -> int:
    """Bytes of the pack that the index is about. Raises CorruptError if it is none."""
    if len(data) < _HEAD.size:
        raise CorruptError("an index is shorter than its head")
    magic, count, size = _HEAD.unpack_from(data)
    if magic != _MAGIC or len(data) != _HEAD.size + count * _CHUNK.size:
        raise CorruptError("an index is not of its form, or not of its size")
    return int(size)


class ChunkTable:
    """Finds a chunk by its name. Open addressing over rows of 48 bytes."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._rows = bytearray()
        self._slots = array("I", bytes(4 * _FIRST_SLOTS))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether it takes no more."""
        return self._count >= self._most

    def add_index(self, pack: int, data: bytes) -> None:
        """All chunks of a pack, by its index. Raises CorruptError, having added none."""
        size = pack_size(data)
        rows = list(_CHUNK.iter_unpack(data[_HEAD.size :]))
        if any(offset + stored > size or length > BLOCK for _, offset, stored, length in rows):
            raise CorruptError("an index has a chunk beyond the end of its pack")
        for name, offset, stored, length in rows:
            self._add(name, pack, offset, stored, length)

    def add(self, name: bytes, at: Stored) -> None:
        """One chunk; nothing happens if it is known, or the table is full."""
        self._add(name, *at)

    def find(self, name: bytes) -> Stored | None:
        """Where it is, or None."""
        (found,) = self.find_all([name])
        return Stored(*found) if found else None

    def find_all(self, names: Iterable[bytes]) -> list[tuple[int, int, int, int] | None]:
        """Where each is, as in `Stored`, or None. Quickest for names that were added in a row."""
        rows, size, place = self._rows, _ROW.size, _PLACE.unpack_from
        found: list[tuple[int, int, int, int] | None] = []
        at = 0
        for name in names:
            if not rows.startswith(name, at):
                row = self._slots[self._slot(name)]
                if not row:
                    found.append(None)
                    continue
                at = (row - 1) * size
            found.append(place(rows, at))
            at += size
        return found

    def _add(self, name: bytes, pack: int, offset: int, stored: int, size: int) -> None:
        if self._count >= self._most:
            return
        slot = self._slot(name)
        if self._slots[slot]:
            return
        self._rows += _ROW.pack(name, pack, offset, stored, size)
        self._count += 1
        self._slots[slot] = self._count
        if self._count * 3 > len(self._slots) * 2:
            self._grow()

    def _slot(self, name: bytes) -> int:
        """The slot that has it, or the free one where it would go."""
        slots = self._slots
        mask = len(slots) - 1
        slot = int.from_bytes(name[:8], "little") & mask
        while row := slots[slot]:
            if self._rows.startswith(name, (row - 1) * _ROW.size):
                break
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        slots = array("I", bytes(4 * _GROWTH * len(self._slots)))
        mask = len(slots) - 1
        for row, (start,) in enumerate(_START.iter_unpack(self._rows), 1):
            slot = start & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = row
        self._slots = slots
