"""Reads of CRIU's images what cutting them needs, the page maps, and says which pages come first.

An image is two magic numbers, then messages, each after its length (32 bits, little-endian). What
is read comes from a dump of somebody's processes: every number is checked before it is used, and
what is no page map, or doesn't fit its pages file, is reported as none; its file is cut like any
other then.
"""

from __future__ import annotations

import logging
import os
import struct
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError

from kybernate.core.chunks.pages import MAP_MAGICS, PAGE, PageMap
from kybernate.core.swap.drivermemory import split
from kybernate.errors import CorruptError
from kybernate.gen.criuimages_pb2 import MapEntry, MapHead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from kybernate.core.swap.drivermemory import Span

log = logging.getLogger(__name__)

M = TypeVar("M", MapHead, MapEntry)

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_LONGEST_MESSAGE = 1024
_MOST_ENTRIES = 16_000_000
_HIGHEST = 1 << 64
_IN_PARENT, _LAZY, _PRESENT = 1, 2, 4
_MOST_32 = (1 << 32) - 1


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


def put_first(path: Path, spans: Sequence[Span]) -> int:
    """Has a lazy restore bring in at once what a page map has of these addresses, which are sorted
    and disjoint; how many bytes. The file is the old one or the new one, whatever happens. Raises
    CorruptError, OSError."""
    marked, out = 0, [_HEAD.pack(*MAP_MAGICS)]
    with path.open("rb") as file:
        messages = _messages(file, path.name)
        out.append(_framed(next(messages, b"")))
        for message in messages:
            entry = _parse(MapEntry(), message, path.name)
            parts = list(_parts(entry, spans)) if _comes_later(entry) else []
            size = sum(part.pages * PAGE for part, first in parts if first)
            marked += size
            changed = [part.SerializeToString() for part, _ in parts] if size else [message]
            out += map(_framed, changed)
    if marked:
        _replace(path, b"".join(out))
    return marked


def _comes_later(entry: MapEntry) -> bool:
    return entry.HasField("pages") and entry.flags & (_LAZY | _IN_PARENT) == _LAZY


def _parts(entry: MapEntry, spans: Sequence[Span]) -> Iterator[tuple[MapEntry, bool]]:
    for start, end, first in split(entry.address, entry.address + entry.pages * PAGE, spans):
        part = MapEntry()
        part.CopyFrom(entry)
        part.address, part.pages = start, (end - start) // PAGE
        # CRIU requires this field, and reads the other; here a zero would be left out.
        part.pages_32 = min(part.pages, _MOST_32)
        if first:
            part.flags &= ~_LAZY
        yield part, first


def _framed(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


def _replace(path: Path, data: bytes) -> None:
    beside = path.with_name(f"{path.name}.new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    beside.replace(path)
