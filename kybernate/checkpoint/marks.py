"""Which pieces of a pages file are there and verified, for CRIU: native/criu/filling.patch.

Beside `pages-<id>.img` lies `filled-<id>`: eight bytes, the first four of which are the number,
counted from 1, of the piece that CRIU waits for; then a byte for each piece. A byte is set when its
piece is in the file. Both sides have the file mapped, and whoever dies leaves it as it is: it is
worth nothing after a power cut, but neither is what waits for it.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from typing import TYPE_CHECKING

from kybernate.core.artifacts.manifest import PIECE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

COMES, THERE, LOST = 0, 1, 2
"""What is said of a piece. LOST: no place has it right; who waits for it ends."""

_HEAD = 8
_WANTED = struct.Struct("<I")
_PREFIX = "filled-"
_PAGES = re.compile(r"pages-[0-9]{1,9}\.img")


def is_pages(name: str) -> bool:
    """Whether a dump's file holds memory, and only ever grows."""
    return _PAGES.fullmatch(name) is not None


def path_of(pages: Path) -> Path:
    """Where the marks of a pages file are."""
    return pages.with_name(_PREFIX + pages.stem.removeprefix("pages-"))


def pages_of(folder: Path) -> list[Path]:
    """The pages files of a folder that have marks, sorted."""
    return [
        folder / f"pages-{path.name.removeprefix(_PREFIX)}.img"
        for path in sorted(folder.glob(f"{_PREFIX}*"))
    ]


def make(pages: Path, size: int) -> None:
    """Marks of a pages file of which nothing is there yet. Raises OSError."""
    with path_of(pages).open("xb") as file:
        os.fchmod(file.fileno(), 0o600)
        # Not a hole: on a disk that is full later, who writes into one by a map of it is killed.
        file.write(bytes(_HEAD + -(-size // PIECE)))


def lose(those: Iterable[Marks]) -> None:
    """Say of all that is not there yet that it never will be."""
    for one in those:
        for piece, state in enumerate(one.states()):
            if state == COMES:
                one.say(piece, LOST)


def drop(folder: Path) -> None:
    """All that they tell of is there. Raises OSError."""
    for path in pages_of(folder):
        path_of(path).unlink(missing_ok=True)


class Marks:
    """The marks of one pages file, open until `close`."""

    def __init__(self, pages: Path) -> None:
        """Raises OSError."""
        with path_of(pages).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def __len__(self) -> int:
        return len(self._map) - _HEAD

    def wanted(self) -> int:
        """The piece that is waited for, or was last; -1 if none was yet."""
        return int(_WANTED.unpack_from(self._map)[0]) - 1

    def states(self) -> bytearray:
        """What is said of each piece."""
        return bytearray(self._map[_HEAD:])

    def say(self, piece: int, state: int) -> None:
        """Tell CRIU of a piece; what THERE is said of is in the file."""
        self._map[_HEAD + piece] = state

    def close(self) -> None:
        """Nothing is said any more."""
        self._map.close()
