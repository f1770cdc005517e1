"""A dump on its way to another node while CRIU still writes it, as parts of its files.

Only the files of memory pages are read while they grow, since CRIU does nothing but append to them;
all others are read when the dump is done. Each piece is hashed as it is read, so that sealing need
not read it again, and what was read is put on the disk meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import field
from typing import TYPE_CHECKING

from blake3 import blake3

from kybernate.checkpoint.marks import is_pages
from kybernate.checkpoint.ordered import threads
from kybernate.checkpoint.packs.blocks import image_files, raw_sources
from kybernate.core.artifacts.manifest import PIECE, File
from kybernate.core.chunks.pages import BLOCK
from kybernate.core.chunks.staged import NAME, Matcher, Run, Staged
from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from kybernate.lib.deadline import Deadline

PART = 512 << 10
"""Bytes that one part carries at most."""
COPY = 8 << 20
"""Bytes that one reference stands for at most: the other node hashes while it copies the next."""
_RING = 4
_SYNC_EVERY = 64 << 20
_SYNC_WRITE = 2
_PAUSE = 0.002
_libc = ctypes.CDLL(None, use_errno=True)
_PAGES = re.compile(r"pages-([0-9]{1,9})\.img")


@dataclass(frozen=True, slots=True)
class Written:
    """The next bytes of a file."""

    file: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Same:
    """The next `size` bytes of a file are those of the staged file `source` from `start` on."""

    file: str
    offset: int
    source: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A file is complete."""

    file: str
    size: int


Part = Written | Same | Whole


@dataclass(frozen=True, slots=True)
class Hashed:
    """The files of a dump as a raw artifact's manifest has them, and the hashes of their pieces."""

    files: tuple[File, ...]
    pieces: bytes

    @classmethod
    def of(cls, digests: Mapping[str, tuple[int, bytes]]) -> Hashed:
        """Of each file its size, and its pieces' hashes."""
        ordered = sorted(digests.items())
        files = tuple(File(name, size, blake3(own).hexdigest()) for name, (size, own) in ordered)
        return cls(files, b"".join(own for _, (_, own) in ordered))


@dataclass(frozen=True, slots=True)
class Seen:
    """What has just been read and hashed here, and need not be again. `hashed`: dumps that were
    followed, by their folders; `verified`: artifacts that have arrived, until they are first used.
    """

    hashed: dict[Path, Hashed] = field(default_factory=dict)
    verified: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Base:
    """A state of before, at the other node: its files, by the numbers that `blocks` has."""

    artifact: str = ""
    files: list[str] = field(default_factory=list)
    blocks: Staged = field(default_factory=lambda: Staged(name_of))


def name_of(data: memoryview) -> bytes:
    """A block's name."""
    return blake3(data).digest(NAME)


def staging(
    images: Path, base: Base, have: Mapping[str, int], deadline: Deadline
) -> Iterator[Part]:
    """The memory of a finished dump, block by block, but what is there of each file already.

    Fills `base`, which is empty. Raises DeadlineError, OSError.
    """
    sizes = {name: size for name, size in image_files(images) if is_pages(name)}
    base.blocks = Staged(name_of, sum(sizes.values()))
    for source in raw_sources(images):
        if source.name not in sizes:
            continue
        number, at, there = len(base.files), 0, have.get(source.name, 0)
        base.files.append(source.name)
        for batch in source.batches:
            deadline.check()
            blocks = batch.load()
            for block in blocks:
                base.blocks.add(number, at, block)
                at += len(block)
            begin = at - sum(map(len, blocks))
            if at > there:
                data = b"".join(blocks)[max(0, there - begin) :]
                yield from _written(source.name, at - len(data), memoryview(data))
        yield Whole(source.name, at)


def whole_files(images: Path, names: Iterator[str], deadline: Deadline) -> Iterator[Part]:
    """Some files of a finished dump, all of their bytes. Raises DeadlineError, OSError."""
    for name in names:
        with (images / name).open("rb", buffering=0) as file:
            at = 0
            while data := file.read(PART):
                deadline.check()
                yield Written(name, at, data)
                at += len(data)
        yield Whole(name, at)


class Following:
    """One dump that is being written into `images`; `dumped` is set when nothing more is written.

    `parts` is read once, by one thread; then `hashed` says what it was. A few MiB are in memory.
    """

    def __init__(
        self, images: Path, base: Base, dumped: threading.Event, deadline: Deadline
    ) -> None:
        self._images = images
        self._base = base
        self._dumped = dumped
        self._deadline = deadline
        self._tails: dict[str, _Tail] = {}
        self.hashed: Hashed | None = None

    def parts(self) -> Iterator[Part]:
        """All of it. Raises RefusedError (see `image_files`), DeadlineError, OSError."""
        with ExitStack() as stack:
            hashing = stack.enter_context(threads(_RING, "follow"))
            syncing = stack.enter_context(threads(1, "sync"))
            workers = _Workers(hashing, syncing)
            yield from self._grow(stack, workers)
            for name, _ in image_files(self._images):
                tail = self._tail(name, stack, workers)
                yield from tail.advance(self._deadline, last=True)
                # A dump may have more files than a process may have open.
                tail.close()
            tails = self._tails.items()
            self.hashed = Hashed.of({name: (tail.size, tail.digests()) for name, tail in tails})

    def _grow(self, stack: ExitStack, workers: _Workers) -> Iterator[Part]:
        while True:
            done = self._dumped.is_set()
            any_new = False
            for name in self._growing():
                for part in self._tail(name, stack, workers).advance(self._deadline):
                    any_new = True
                    yield part
            if done:
                return
            self._deadline.check()
            if not any_new:
                time.sleep(_PAUSE)

    def _growing(self) -> list[str]:
        found = (_PAGES.fullmatch(entry.name) for entry in os.scandir(self._images))
        pages = sorted((int(match[1]), match[0]) for match in found if match)
        return [name for _, name in pages]

    def _tail(self, name: str, stack: ExitStack, workers: _Workers) -> _Tail:
        if name not in self._tails:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(self._images / name, flags)
            self._tails[name] = _Tail(name, file, self._base, workers)
            stack.callback(self._tails[name].close)
        return self._tails[name]


class _Workers:
    """Threads that hash and sync, and the buffers that go round between them and the reader."""

    def __init__(self, hashing: Executor, syncing: Executor) -> None:
        self._hashing = hashing
        self.syncing = syncing
        self._ring: list[memoryview] = []
        self._busy: deque[Future[bytes]] = deque()

    def buffer(self) -> memoryview:
        """Room for what is left of a block, and for a piece behind it. Good until `_RING` others
        were asked for."""
        if len(self._ring) < _RING:
            self._ring.append(memoryview(bytearray(BLOCK + PIECE)))
        else:
            self._busy.popleft().exception()
            self._ring.append(self._ring.pop(0))
        return self._ring[-1]

    def digest(self, piece: memoryview) -> Future[bytes]:
        """The hash of the piece in the newest buffer."""
        self._busy.append(self._hashing.submit(_digest, piece))
        return self._busy[-1]


class _Tail:
    """One file that grows: read a piece at a time."""

    def __init__(self, name: str, file: int, base: Base, workers: _Workers) -> None:
        self._name, self._file, self._base, self._workers = name, file, base, workers
        self._match = self._matching()
        self._coming: deque[Future[bytes]] = deque()
        self._own: list[bytes] = []
        self._rest = b""
        self._synced = 0
        self._syncing: Future[None] | None = None
        self.size = 0

    def close(self) -> None:
        """Nothing more is read of it. Idempotent."""
        if self._file >= 0:
            if self._syncing is not None:
                self._syncing.exception()
            os.close(self._file)
            self._file = -1

    def digests(self) -> bytes:
        """The hashes of all its pieces, once it has been read to its end."""
        self._take_digests(0)
        return b"".join(self._own)

    def _take_digests(self, but: int) -> None:
        while len(self._coming) > but:
            self._own.append(self._coming.popleft().result())

    def advance(self, deadline: Deadline, *, last: bool = False) -> Iterator[Part]:
        """Whole pieces that are new; the rest too, if there is no more to come."""
        there = os.fstat(self._file).st_size
        while there - self.size >= PIECE or (last and self.size < there):
            deadline.check()
            view = self._read(min(PIECE, there - self.size))
            yield from self._cut(view, last=last and self.size == there)
            self._sync_soon()
        if last:
            yield from self._cut(memoryview(self._rest), last=True)
            yield Whole(self._name, self.size)

    def _cut(self, view: memoryview, *, last: bool) -> Iterator[Part]:
        begin, at = self.size - len(view), 0
        for run in self._match(view, last):
            yield from self._parts(run, view[at : at + run.size], begin + at)
            at += run.size
        self._rest = bytes(view[at:])

    def _matching(self) -> Callable[[memoryview, bool], list[Run]]:
        if not len(self._base.blocks) or not is_pages(self._name):
            return lambda view, last: [Run(len(view))] if len(view) else []
        matcher = Matcher(self._base.blocks)
        return lambda view, last: matcher.runs(view, last=last)

    def _read(self, wanted: int) -> memoryview:
        """What was left over, and the next piece behind it."""
        buffer = self._workers.buffer()
        begin = BLOCK - len(self._rest)
        buffer[begin:BLOCK] = self._rest
        piece, at = buffer[BLOCK : BLOCK + wanted], 0
        while at < wanted:
            step = os.preadv(self._file, [piece[at:]], self.size + at)
            if not step:
                raise OSError(f"{self._name} became shorter while it was read")
            at += step
        self._coming.append(self._workers.digest(piece))
        self._take_digests(2 * _RING)
        self.size += wanted
        return buffer[begin : BLOCK + wanted]

    def _parts(self, run: Run, data: memoryview, offset: int) -> Iterator[Part]:
        if run.file < 0:
            yield from _written(self._name, offset, data)
            return
        source = self._base.files[run.file]
        for at in range(0, run.size, COPY):
            size = min(COPY, run.size - at)
            yield Same(self._name, offset + at, source, run.start + at, size)

    def _sync_soon(self) -> None:
        """CRIU never syncs: what is on the disk by the end of the dump need not be waited for."""
        idle = self._syncing is None or self._syncing.done()
        if idle and self.size - self._synced >= _SYNC_EVERY:
            self._synced = self.size
            self._syncing = self._workers.syncing.submit(_begin_sync, self._file)


def _written(name: str, offset: int, data: memoryview) -> Iterator[Part]:
    for at in range(0, len(data), PART):
        yield Written(name, offset + at, bytes(data[at : at + PART]))


def _begin_sync(file: int) -> None:
    """Has the kernel begin to write what it holds back, without waiting or being waited for."""
    _libc.sync_file_range(file, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_WRITE)


def _digest(piece: memoryview) -> bytes:
    return blake3(piece).digest()
