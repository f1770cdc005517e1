"""Where a file of memory pages is cut into blocks. Pure.

Two dumps of one process have the same pages at the same addresses, but at other offsets of the
pages file: a heap that has grown by a page moves all that follows. So the cuts follow addresses:
what the file holds of one aligned 64 KiB of memory is one block, whatever entries the page map
needs to say so.
"""

from __future__ import annotations

from array import array
from dataclasses import field
from typing import TYPE_CHECKING

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 1 << 16
PAGE = 1 << 12
MAP_MAGICS = (0x54564319, 0x56084025)
"""What a page map of CRIU's begins with: as every image of a container's state, and its own."""


@dataclass(frozen=True, slots=True)
class PageMap:
    """Which addresses a pages file holds, in its order: `counts` pages at each of `starts`."""

    pages_id: int
    starts: array[int] = field(default_factory=lambda: array("Q"))
    counts: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, start: int, count: int) -> None:
        """`count` pages from the address `start` on come next in the file."""
        self.starts.append(start)
        self.counts.append(count)

    @property
    def size(self) -> int:
        """Bytes of the pages file."""
        return sum(self.counts) * PAGE


def cut(pages: PageMap) -> Iterator[int]:
    """The sizes of the blocks of a pages file, one after another, each at most `BLOCK`."""
    block, size = -1, 0
    for start, count in zip(pages.starts, pages.counts, strict=True):
        address, end = start, start + count * PAGE
        while address < end:
            here = address // BLOCK
            step = min(end, (here + 1) * BLOCK) - address
            if size and (here != block or size + step > BLOCK):
                yield size
                size = 0
            block, size, address = here, size + step, address + step
    if size:
        yield size


def cut_plain(size: int) -> Iterator[int]:
    """The sizes of the blocks of any other file of `size` bytes."""
    for offset in range(0, size, BLOCK):
        yield min(BLOCK, size - offset)
