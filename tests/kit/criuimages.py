"""Writes images to CRIU's layout, as far as cutting them goes: page maps and pages."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kybernate.core.chunks.pages import MAP_MAGICS, PAGE
from kybernate.gen.criuimages_pb2 import MapEntry, MapHead

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_PRESENT = 4


def write_pages(
    folder: Path, pages_id: int, runs: Iterable[tuple[int, bytes]], entry_pages: int = 256
) -> None:
    """`pagemap-<n>.img` and `pages-<n>.img` of a process with this memory, (address, bytes) each.

    As CRIU does, runs are split into entries of at most `entry_pages` pages.
    """
    entries = [MapHead(pages_id=pages_id).SerializeToString()]
    with (folder / f"pages-{pages_id}.img").open("wb") as file:
        for address, data in runs:
            file.write(data)
            for start in range(0, len(data) // PAGE, entry_pages):
                count = min(entry_pages, len(data) // PAGE - start)
                entries.append(entry(address + start * PAGE, count))
    write_page_map(folder / f"pagemap-{pages_id}.img", entries)


def entry(address: int, pages: int, flags: int = _PRESENT) -> bytes:
    """One entry of a page map."""
    made = MapEntry(address=address, pages_32=min(pages, (1 << 32) - 1), flags=flags, pages=pages)
    return bytes(made.SerializeToString())


def write_page_map(path: Path, messages: Iterable[bytes]) -> None:
    """A page map of these messages."""
    head = struct.pack("<II", *MAP_MAGICS)
    path.write_bytes(head + b"".join(struct.pack("<I", len(m)) + m for m in messages))
