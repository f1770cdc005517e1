"""The file itself: pieces one after the other, within limits, and a list of what came of each."""

from __future__ import annotations

import io
import os
import tarfile
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson

from kybernate.dataclass import dataclass
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from kybernate.cli.bundle.pieces import Piece

FORMAT = 1
"""Of a bundle's folders and of its manifest."""

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a piece: how many bytes of it are in the bundle, none if it isn't; and why
    something of it is not."""

    file: str
    bytes: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """`most`: bytes of all files together; `until`: the monotonic time at which no other piece is
    begun."""

    most: int
    until: float


def write(
    path: Path,
    pieces: Iterable[Piece],
    problems: Iterable[str],
    room: Room,
    tell: Callable[[str], None],
) -> list[Outcome]:
    """Write the bundle, which only its owner may read, and tell each file before it is read.

    A bundle that was not finished leaves no file. Raises OSError, such as FileExistsError.
    """
    name = path.name.removesuffix(".gz").removesuffix(".tar")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            told = list(_taken(tar, name, pieces, room, tell))
            manifest = {
                "format": FORMAT,
                "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "problems": list(problems),
                "files": [asdict(one) for one in told],
            }
            _add(tar, f"{name}/{_MANIFEST}", orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return told


def _taken(
    tar: tarfile.TarFile,
    name: str,
    pieces: Iterable[Piece],
    room: Room,
    tell: Callable[[str], None],
) -> Iterable[Outcome]:
    free = room.most
    for piece in pieces:
        if time.monotonic() > room.until:
            yield Outcome(piece.file, None, "no time was left: raise --timeout")
            continue
        tell(piece.file)
        try:
            found = piece.read()
        except KybernateError as error:
            yield Outcome(piece.file, None, str(error))
            continue
        if len(found.body) > free:
            yield Outcome(piece.file, None, "no room was left: raise --max-size")
            continue
        free -= len(found.body)
        _add(tar, f"{name}/{piece.file}", found.body)
        yield Outcome(piece.file, len(found.body), found.note)


def _add(tar: tarfile.TarFile, name: str, body: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(body), 0o600, int(time.time())
    tar.addfile(entry, io.BytesIO(body))
