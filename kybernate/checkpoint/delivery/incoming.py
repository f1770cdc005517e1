"""One state as it arrives, part by part, into files whose pieces are hashed meanwhile."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from blake3 import blake3

from kybernate.checkpoint.pieces import PieceReader
from kybernate.checkpoint.places import WORKERS
from kybernate.checkpoint.raw.stream import COPY, Same, Whole, Written
from kybernate.core.artifacts import layout
from kybernate.core.artifacts.manifest import PIECE
from kybernate.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from kybernate.checkpoint.raw.stream import Part
    from kybernate.core.artifacts import manifest as manifests

_COPY_ERRORS = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_UNFINISHED = 4 * WORKERS
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_OPEN = 256
"""Files that one stream has open to write, and as many to copy from. A state may have more than a
process may have open, and all of them may grow together."""


class Hashing:
    """Threads that hash pieces of files as they read back, each through a buffer of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="arriving")
        self._reader = PieceReader()

    def begin(self, path: Path, number: int) -> Future[bytes]:
        """The hash of the file's piece of this number."""
        return self._pool.submit(lambda: blake3(self._reader.read(path, number)).digest())


class Incoming:
    """One stream of parts. `take` and `close` are called by one thread."""

    def __init__(
        self,
        folder: Path,
        staged: Path,
        hashing: Hashing,
        files: dict[str, Arriving],
        see: Callable[[str, int], None],
    ) -> None:
        self._folder = folder
        self._staged = staged
        self._hashing = hashing
        self._files = files
        self._see = see
        self._sources: dict[str, int] = {}
        self._open: dict[str, Arriving] = {}
        self._fresh: set[str] = set()

    def take(self, part: Part) -> None:
        """Put it where it belongs. Raises RefusedError if it doesn't follow, OSError."""
        file = self._file(part)
        match part:
            case Written():
                file.write(part.data, part.offset)
            case Same():
                file.copy(self._source(part.source), part)
            case Whole():
                file.end(part.size)
                self._open.pop(part.file, None)

    def close(self) -> None:
        """No more comes."""
        for source in self._sources.values():
            os.close(source)
        for file in self._open.values():
            file.close()

    def _file(self, part: Part) -> Arriving:
        name = part.file
        if name not in self._fresh:
            _check(name)
            # Of a file that is all there its end is all that comes.
            begins = part.size if isinstance(part, Whole) else part.offset
            staged = self._folder == self._staged
            keep = begins if staged else 0
            self._see(name, keep)
            hashing = None if staged else self._hashing
            self._files[name] = Arriving(self._folder / name, keep, hashing, self._see)
            self._fresh.add(name)
        self._open.pop(name, None)
        file = self._open[name] = self._files[name]
        while len(self._open) > _MOST_OPEN:
            self._open.pop(next(iter(self._open))).close()
        return file

    def _source(self, name: str) -> int:
        file = self._sources.pop(name, -1)
        if file < 0:
            _check(name)
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(self._staged / name, flags)
        self._sources[name] = file
        while len(self._sources) > _MOST_OPEN:
            os.close(self._sources.pop(next(iter(self._sources))))
        return file


class Arriving:
    """One file that grows by what arrives, as `see` allows; its pieces are hashed once they are
    whole, if anybody hashes."""

    def __init__(
        self, path: Path, size: int, hashing: Hashing | None, see: Callable[[str, int], None]
    ) -> None:
        self._path = path
        self._file = os.open(path, _FLAGS | os.O_CREAT, 0o600)
        try:
            self._cut(size)
        except BaseException:
            self.close()
            raise
        self._hashing, self._see = hashing, see
        self._coming: list[Future[bytes]] = []
        self.size = size
        self.whole = False

    def _cut(self, size: int) -> None:
        there = os.fstat(self._file).st_size
        if size > there:
            name = self._path.name
            raise RefusedError(f"{name} ends at {there}, and what comes begins at {size}")
        os.ftruncate(self._file, size)

    def write(self, data: bytes, offset: int) -> None:
        """The next bytes. Raises RefusedError if they aren't, or are too many; OSError."""
        self._follows(offset, len(data))
        at = 0
        while at < len(data):
            at += os.pwrite(self._opened(), memoryview(data)[at:], offset + at)
        self._grew(len(data))

    def copy(self, source: int, part: Same) -> None:
        """The next bytes, out of another open file. Raises like `write`."""
        if not 0 <= part.size <= COPY:
            raise RefusedError(f"one reference stands for {COPY} bytes at most, not {part.size}")
        if not 0 <= part.start <= os.fstat(source).st_size - part.size:
            raise RefusedError(f"{part.source} has no {part.size} bytes from {part.start} on")
        self._follows(part.offset, part.size)
        at = 0
        while at < part.size:
            step = self._copy(source, part.start + at, part.offset + at, part.size - at)
            if not step:
                raise RefusedError(f"{part.source} became shorter while it was copied")
            at += step
        self._grew(part.size)

    def _copy(self, source: int, start: int, offset: int, size: int) -> int:
        try:
            return os.copy_file_range(source, self._opened(), size, start, offset)
        except OSError as error:
            if error.errno not in _COPY_ERRORS:
                raise
            return os.pwrite(self._opened(), os.pread(source, min(size, PIECE), start), offset)

    def end(self, size: int) -> None:
        """It has that many bytes, and is all there. Raises RefusedError if it hasn't."""
        if size != self.size:
            raise RefusedError(f"{self._path.name} has {self.size} bytes here, was sent as {size}")
        if size % PIECE:
            self._hash(size // PIECE)
        self.whole = True
        # A state may have more files than a process may have open.
        self.close()

    def digests(self) -> bytes:
        """The hashes of its pieces."""
        return b"".join(one.result() for one in self._coming)

    def close(self) -> None:
        """Nothing more is written to it for now. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _opened(self) -> int:
        if self._file < 0:
            self._file = os.open(self._path, _FLAGS)
        return self._file

    def _follows(self, offset: int, size: int) -> None:
        if offset != self.size or self.whole:
            raise RefusedError(f"{self._path.name} continues at {self.size}, not at {offset}")
        self._see(self._path.name, self.size + size)

    def _grew(self, size: int) -> None:
        before, self.size = self.size // PIECE, self.size + size
        for number in range(before, self.size // PIECE):
            self._hash(number)

    def _hash(self, number: int) -> None:
        if self._hashing is None:
            return
        if len(self._coming) >= _UNFINISHED:
            self._coming[-_UNFINISHED].exception()
        self._coming.append(self._hashing.begin(self._path, number))


def arrived_as(file: Arriving | None, signed: manifests.File) -> bool:
    """Whether the file is all there, and is what was signed."""
    if file is None or not file.whole or file.size != signed.size:
        return False
    return blake3(file.digests()).hexdigest() == signed.pieces


def _check(name: str) -> None:
    if not layout.is_file(name):
        raise RefusedError(f"{name[:200]!r} is no name of a file of an artifact")
