"""Which chunks a place has already: a pack's own index, and a table of many. Pure.

    "KYBI", number of chunks, bytes of the pack     4 bytes, a 32-bit and a 64-bit number
    chunks: name, offset, stored, size              32 bytes, three 32-bit numbers each

The table is one array and no objects: a million chunks, 64 GiB of memory, take 60 MiB.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from kybernate.core.chunks.pages import BLOCK
from kybernate.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST = 1 << 20
"""Chunks that a table takes at most; what is beyond is stored once more."""

_HEAD = struct.Struct("<4sIQ")
_CHUNK = struct.Struct("<32sIII")
_START = struct.Struct("<Q36x")
"""Of a row what its slot is found by."""
_PLACE = struct.Struct("<32xIII")
_NAME = 32
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
    """Finds a chunk by its name. Rows as indexes have them, so that a whole one is taken over at
    once, and open addressing over them. `_spans`: where the rows of each pack in turn begin."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._rows = bytearray()
        self._spans = array("Q")
        self._packs = array("I")
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
        size, rows = pack_size(data), memoryview(data)[_HEAD.size :]
        places = _PLACE.iter_unpack(rows)
        if any(offset + stored > size or length > BLOCK for offset, stored, length in places):
            raise CorruptError("an index has a chunk beyond the end of its pack")
        self._begin(pack)
        first = self._count
        self._rows += rows[: (self._most - first) * _CHUNK.size]
        self._count = len(self._rows) // _CHUNK.size
        if not self._see_room():
            self._enter(first)

    def add(self, name: bytes, at: Stored) -> None:
        """One chunk; nothing happens if it is known, or the table is full."""
        slot = self._slot(name)
        if self._slots[slot] or self.full:
            return
        self._begin(at.pack)
        self._rows += _CHUNK.pack(name, at.offset, at.stored, at.size)
        self._count += 1
        self._slots[slot] = self._count
        self._see_room()

    def find(self, name: bytes) -> Stored | None:
        """Where it is, or None."""
        row = self._slots[self._slot(name)]
        if not row:
            return None
        at = (row - 1) * _CHUNK.size
        return Stored(self._span(at)[0], *_PLACE.unpack_from(self._rows, at))

    def find_all(self, names: Iterable[bytes]) -> list[tuple[int, int, int, int] | None]:
        """Where each is, as in `Stored`, or None. Quickest for names that were added in a row."""
        rows, size, place = self._rows, _CHUNK.size, _PLACE.unpack_from
        found: list[tuple[int, int, int, int] | None] = []
        at = pack = begin = end = 0
        for name in names:
            if not rows.startswith(name, at):
                row = self._slots[self._slot(name)]
                if not row:
                    found.append(None)
                    # Where one has changed, the next mostly follows what it was before.
                    at += size
                    continue
                at = (row - 1) * size
            if not begin <= at < end:
                pack, begin, end = self._span(at)
            found.append((pack, *place(rows, at)))
            at += size
        return found

    def _span(self, at: int) -> tuple[int, int, int]:
        """The pack of the row there, and from where to where its rows lie."""
        number = bisect_right(self._spans, at) - 1
        last = number + 1 == len(self._spans)
        end = len(self._rows) if last else self._spans[number + 1]
        return self._packs[number], self._spans[number], end

    def _begin(self, pack: int) -> None:
        """The next rows are of this pack."""
        if not self._packs or self._packs[-1] != pack:
            self._packs.append(pack)
            self._spans.append(len(self._rows))

    def _see_room(self) -> bool:
        """Whether there were too few slots; then there are more, and all rows have theirs."""
        if self._count * 3 <= len(self._slots) * 2:
            return False
        while self._count * 3 > len(self._slots) * 2:
            self._slots = array("I", bytes(4 * _GROWTH * len(self._slots)))
        self._enter(0)
        return True

    def _enter(self, first: int) -> None:
        """Give slots to all rows from there on, but to those whose names have one."""
        slots, mask, rows = self._slots, len(self._slots) - 1, self._rows
        fresh = bytes(memoryview(rows)[first * _CHUNK.size :])
        for row, (start,) in enumerate(_START.iter_unpack(fresh), first + 1):
            slot = start & mask
            while slots[slot]:
                if self._name(slots[slot]) == self._name(row):
                    break
                slot = (slot + 1) & mask
            else:
                slots[slot] = row

    def _name(self, row: int) -> bytearray:
        at = (row - 1) * _CHUNK.size
        return self._rows[at : at + _NAME]

    def _slot(self, name: bytes) -> int:
        """The slot that has it, or the free one where it would go."""
        slots = self._slots
        mask = len(slots) - 1
        slot = int.from_bytes(name[:8], "little") & mask
        while row := slots[slot]:
            if self._rows.startswith(name, (row - 1) * _CHUNK.size):
                break
            slot = (slot + 1) & mask
        return slot
