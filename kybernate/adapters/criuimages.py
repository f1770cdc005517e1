"""Reads of CRIU's images what cutting them needs: the page maps.

An image is two magic numbers, then messages, each after its length (32 bits, little-endian). What
is read comes from a dump of somebody's processes: every number is checked before it is used, and
what is no page map, or doesn't fit its pages file, is reported as none; its file is cut like any
other then.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from kybernate.core.artifacts.pages import MAP_MAGICS, PAGE, PageMap
from kybernate.errors import CorruptError
from kybernate.gen.criuimages_pb2 import MapEntry, MapHead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

log = logging.getLogger(__name__)

M = TypeVar("M", MapHead, MapEntry)

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_LONGEST_MESSAGE = 1024
_MOST_ENTRIES = 16_000_000
_HIGHEST = 1 << 64
_IN_PARENT, _PRESENT = 1, 4


def page_maps(folder: Path) -> dict[str, PageMap]:
    """The page map of each pages file of a dump, by the pages file's name.

    Page maps that can't be read, or that don't fit their file, are left out and logged.
    """
    maps: dict[str, PageMap] = {}
    for path in sorted(folder.glob("pagemap-*.img")):
        try:
            pages = read_page_map(path)
            name = f"pages-{pages.pages_id}.img"
            _check_size(pages, folder / name, path.name)
            # Whoever has two page maps has a made-up one: the file is cut the same either way.
            maps.setdefault(name, pages)
        except (CorruptError, OSError) as error:
            log.warning("a page map is not used: %s", error)
    return maps


def read_page_map(path: Path) -> PageMap:
    """One page map. Raises CorruptError, OSError."""
    with path.open("rb") as file:
        messages = _messages(file, path.name)
        pages = PageMap(_parse(MapHead(), next(messages, b""), path.name).pages_id)
        for message in messages:
            _add(pages, _parse(MapEntry(), message, path.name), path.name)
    return pages


def _messages(file: BinaryIO, name: str) -> Iterator[bytes]:
    head = file.read(_HEAD.size)
    if len(head) != _HEAD.size or _HEAD.unpack(head) != MAP_MAGICS:
        raise CorruptError(f"{name}: is no page map")
    for _ in range(_MOST_ENTRIES):
        size = file.read(_LENGTH.size)
        if not size:
            return
        length = _LENGTH.unpack(size)[0] if len(size) == _LENGTH.size else _LONGEST_MESSAGE + 1
        message = file.read(length) if length <= _LONGEST_MESSAGE else b""
        if length > _LONGEST_MESSAGE or len(message) != length:
            raise CorruptError(f"{name}: ends within a message, or has one that is too long")
        yield message
    raise CorruptError(f"{name}: has more than {_MOST_ENTRIES} entries")


def _parse(message: M, data: bytes, name: str) -> M:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CorruptError(f"{name}: has a message that can't be read") from error
    return message


def _add(pages: PageMap, entry: MapEntry, name: str) -> None:
    count = entry.pages if entry.HasField("pages") else entry.pages_32
    if entry.address % PAGE or entry.address + count * PAGE > _HIGHEST:
        raise CorruptError(f"{name}: has pages at an address where none can be")
    here = entry.flags & _PRESENT if entry.HasField("flags") else not entry.in_parent
    if here and not entry.flags & _IN_PARENT and count:
        pages.add(entry.address, count)


def _check_size(pages: PageMap, path: Path, name: str) -> None:
    size = path.stat().st_size
    if pages.size != size:
        raise CorruptError(f"{name}: tells of {pages.size} bytes, {path.name} has {size}")
