"""Which parts of a dump the other node has already, from a state of before. Pure.

The state of before was cut by address into blocks of at most 64 KiB, and its blocks are at the
other node. The new dump is seen as it grows, before anybody knows which addresses it holds: so
each block is expected behind the one that was found last, and where another one comes, the
beginnings of pages are looked up among the beginnings of blocks. A block counts as the same by its
name, a cryptographic hash, and whoever puts the file together compares it with what was signed.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from kybernate.core.chunks.pages import BLOCK, PAGE
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = 16
"""Bytes of a block's name."""
_BEGIN = 32
"""Bytes of a page that its block is looked up by."""
_MOST_BEGINS = 1 << 18
_BLANK = bytes(_BEGIN)
_AMBIGUOUS = -1


@dataclass(frozen=True, slots=True)
class Run:
    """The next `size` bytes of a dump. `file` and `start`: where the other node has them, -1 if it
    doesn't."""

    size: int
    file: int = -1
    start: int = 0


class Staged:
    """The blocks that the other node has. `name` gives a block's name, of `NAME` bytes.

    Takes about 30 bytes for each block, and 150 for each of those that can be found out of turn:
    all of 16 GiB, every second one of 32 GiB.
    """

    def __init__(self, name: Callable[[memoryview], bytes], total: int = 0) -> None:
        self._name = name
        self._files = array("I")
        self._starts = array("Q")
        self._sizes = array("I")
        self._names = bytearray()
        self._begins: dict[bytes, int] = {}
        self._every = 1 + total // BLOCK // _MOST_BEGINS

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, file: int, start: int, data: memoryview) -> None:
        """The next block: `data` lies in the file of this number from `start` on."""
        number = len(self)
        self._files.append(file)
        self._starts.append(start)
        self._sizes.append(len(data))
        self._names += self._name(data)
        begin = bytes(data[:_BEGIN])
        if number % self._every == 0 and begin != _BLANK:
            self._begins[begin] = _AMBIGUOUS if begin in self._begins else number

    def run(self, number: int) -> Run:
        """A block, as the part of a dump that is the same."""
        return Run(self._sizes[number], self._files[number], self._starts[number])

    def is_at(self, number: int, view: memoryview, at: int) -> bool:
        """Whether the block of this number is what begins there."""
        if not 0 <= number < len(self):
            return False
        size = self._sizes[number]
        wanted = memoryview(self._names)[NAME * number : NAME * (number + 1)]
        return size <= len(view) - at and self._name(view[at : at + size]) == wanted

    def size(self, number: int) -> int:
        """Bytes of the block of this number; of one that isn't there, the most that one has."""
        return self._sizes[number] if 0 <= number < len(self) else BLOCK

    def found(self, view: memoryview, start: int) -> tuple[int, int] | None:
        """The first page within a block's length from `start` on where a block begins: where, and
        the block's number."""
        for at in range(start, min(start + BLOCK, len(view)), PAGE):
            number = self._begins.get(bytes(view[at : at + _BEGIN]), _AMBIGUOUS)
            if self.is_at(number, view, at):
                return at, number
        return None


class Matcher:
    """Cuts one file of a dump, as it grows, into what is there already and what isn't."""

    def __init__(self, staged: Staged) -> None:
        self._staged = staged
        self._next = 0

    def runs(self, view: memoryview, *, last: bool) -> list[Run]:
        """Of the bytes that come next; fewer than a block's are left over, unless they are the
        `last` of the file: they come again, before the next."""
        found: list[Run] = []
        at = 0
        while at < len(view) and (last or len(view) - at >= BLOCK):
            for run in self._step(view, at):
                _join(found, run)
                at += run.size
        return found

    def _step(self, view: memoryview, at: int) -> list[Run]:
        staged, expected = self._staged, self._next
        if staged.is_at(expected, view, at):
            self._next += 1
            return [staged.run(expected)]
        elsewhere = staged.found(view, at)
        if elsewhere is not None:
            where, number = elsewhere
            self._next = number + 1
            return [*([Run(where - at)] if where > at else []), staged.run(number)]
        # Most likely it was changed where it is.
        self._next += 1
        return [Run(min(staged.size(expected), len(view) - at))]


def _join(found: list[Run], run: Run) -> None:
    """As the continuation of the last one, if it is one."""
    last = found[-1] if found else None
    if last is not None and last.file == run.file:
        if run.file < 0:
            found[-1] = Run(last.size + run.size)
            return
        if last.start + last.size == run.start:
            found[-1] = Run(last.size + run.size, run.file, last.start)
            return
    found.append(run)
